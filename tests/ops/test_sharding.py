"""DTensors: sharding rules of the operators, on processes that form a gloo group.

Each test that starts processes runs several checks, because the processes take longer to start than a check to run. The
traceback names the check that failed.
"""

from typing import NamedTuple

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from rownorm.program import BACKWARD_INPUTS, INPUTS, Program
from support import sharded_first_calls, sharding_checks
from support.ranks import run_on_ranks

R, P = Replicate(), Partial()
N = len(INPUTS)  # gradients


class Spec(NamedTuple):
    """A tensor as DTensor describes it to a rule."""

    placements: tuple
    ndim: int
    shape: tuple = ()


def backward_arguments(dy: Spec, saved: dict[str, Spec], wanted: tuple[str, ...]) -> tuple:
    """The arguments of ``norm_backward`` of an RMSNorm without a residual."""
    tensors = [dy, *(saved.get(name) for name in BACKWARD_INPUTS[1:])]
    return (*tensors, *Program(False, 1e-6), False, [name in wanted for name in INPUTS])


def outputs(**placements) -> list:
    """The placements of all gradients. One that is not wanted is an empty tensor, the same in every process."""
    return [placements.get(name, R) for name in INPUTS]


def test_rules_on_four_ranks():
    run_on_ranks(4, sharding_checks.run_all)


def test_first_call_loads_the_rules():
    for first_call in sharded_first_calls.EAGER:
        run_on_ranks(1, first_call)


@pytest.mark.exhaustive
def test_first_compiled_call_loads_the_rules():
    for first_call in sharded_first_calls.COMPILED:
        run_on_ranks(1, first_call)


def test_forward_rule():
    """Rows may have any sharding that one of them has. The order is the same in every process."""
    from rownorm.ops.sharding import _rule

    rule = _rule(torch.ops.rownorm.add_rms_norm.default)
    x, residual, weight = (
        Spec((Shard(2), Shard(1)), 3),
        Spec((Shard(1), Shard(0)), 3),
        Spec((R, R), 1),
    )
    assert rule(x, residual, weight, None, eps=1e-3) == [
        ([R, R], [R, R, R]),
        ([Shard(1), Shard(1)], [Shard(1), Shard(1), R]),
        ([Shard(0), Shard(0)], [Shard(0), Shard(0), R]),
    ]


def test_backward_rule():
    """Gradients that are not wanted are empty tensors, the same in every process. The others of parameters are sums."""
    from rownorm.ops.sharding import _rule

    rule = _rule(torch.ops.rownorm.norm_backward.default)
    rows, statistics, weight = Spec((Shard(0),), 2), Spec((Shard(0),), 1), Spec((R,), 1)
    saved = {"h": rows, "weight": weight, "bias": weight, "rstd": statistics}
    assert rule(*backward_arguments(rows, saved, ("x", "weight"))) == [
        ([R] * N, [R] * 5),
        (
            outputs(x=Shard(0), weight=P),
            [Shard(0), Shard(0), R, R, Shard(0)],
        ),
    ]


def test_gates_are_sharded_as_rows_and_residual_gates_as_samples():
    from rownorm.ops.sharding import _rule

    rule = _rule(torch.ops.rownorm.norm_backward.default)
    rows, statistics = Spec((Shard(1),), 3), Spec((Shard(1),), 2)
    of_samples = Spec((R,), 3, (4, 1, 8))
    saved = {"h": rows, "residual_gate": of_samples, "gate": rows, "x": rows, "rstd": statistics}
    assert rule(*backward_arguments(rows, saved, ("x", "residual_gate", "gate"))) == [
        ([R] * N, [R] * 6),
        (
            outputs(x=Shard(1), residual_gate=P, gate=Shard(1)),
            [Shard(1), Shard(1), R, Shard(1), Shard(1), Shard(1)],
        ),
    ]


def test_samples_are_sharded_with_the_rows_that_share_them():
    """Where they have the dimension in which rows are sharded. Else their gradients are sums over all shards."""
    from rownorm.ops.sharding import _rule

    rule = _rule(torch.ops.rownorm.norm_backward.default)
    rows, statistics = Spec((Shard(0), Shard(1)), 3), Spec((Shard(0), Shard(1)), 2)
    scale, shift = Spec((R, R), 3, (4, 1, 8)), Spec((R, R), 2, (6, 8))
    saved = {"h": rows, "scale": scale, "shift": shift, "rstd": statistics}
    outputs_and_inputs = rule(*backward_arguments(rows, saved, ("x", "scale", "shift")))
    assert outputs_and_inputs[0] == ([R] * N, [R] * 5)
    S0, S1 = Shard(0), Shard(1)
    assert outputs_and_inputs[1:] == [
        (outputs(x=S0, scale=S0, shift=P), [S0, S0, S0, R, S0]),
        (outputs(x=S1, scale=P, shift=S0), [S1, S1, R, S0, S1]),
    ]
