"""DTensors: sharding rules of the operators, on processes that form a gloo group.

Each test that starts processes runs several checks, because the processes take longer to start than a check to run. The
traceback names the check that failed.
"""

from typing import NamedTuple

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from rownorm.program import Program
from support import sharded_first_calls, sharding_checks
from support.ranks import run_on_ranks

R, P = Replicate(), Partial()


class Spec(NamedTuple):
    """A tensor as DTensor describes it to a rule."""

    placements: tuple
    ndim: int
    shape: tuple = ()


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
    inputs = (rows, None, rows, None, weight, weight, None, None, None, statistics)
    wanted = [True, False, False, True, False, False, False]
    assert rule(*inputs, *Program(False, 1e-6), False, wanted) == [
        ([R] * 7, [R] * 5),
        ([Shard(0), R, R, P, R, R, R], [Shard(0), Shard(0), R, R, Shard(0)]),
    ]


def test_samples_are_sharded_with_the_rows_that_share_them():
    """Where they have the dimension in which rows are sharded. Else their gradients are sums over all shards."""
    from rownorm.ops.sharding import _rule

    rule = _rule(torch.ops.rownorm.norm_backward.default)
    rows, statistics = Spec((Shard(0), Shard(1)), 3), Spec((Shard(0), Shard(1)), 2)
    scale, shift = Spec((R, R), 3, (4, 1, 8)), Spec((R, R), 2, (6, 8))
    inputs = (rows, None, rows, None, None, None, scale, shift, None, statistics)
    wanted = [True, False, False, False, False, True, True]
    outputs_and_inputs = rule(*inputs, *Program(False, 1e-6), False, wanted)
    assert outputs_and_inputs[0] == ([R] * 7, [R] * 5)
    S0, S1 = Shard(0), Shard(1)
    assert outputs_and_inputs[1:] == [
        ([S0, R, R, R, R, S0, P], [S0, S0, S0, R, S0]),
        ([S1, R, R, R, R, P, S0], [S1, S1, R, S0, S1]),
    ]
