"""Checks of the sharding rules. They run on four ranks, in a mesh of 2 x 2; ``mesh["b"]`` is a mesh of two."""

import itertools

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard

import rownorm
from support import sharded_models
from support.sharded_calls import PARAMETERS, check_call, distribute, random_tensors

FUNCTIONS = (rownorm.layer_norm, rownorm.rms_norm, rownorm.add_layer_norm, rownorm.add_rms_norm)
FLATTENS_SHARDS = torch.__version__ >= (2, 13)  # whether DTensor flattens any sharded dimension
PAIR = (
    rownorm.layer_norm,
    rownorm.add_rms_norm,
)  # each with an output and an input that the other lacks


def row_shards_stay_local(mesh: DeviceMesh) -> None:
    for function, shard in itertools.product(FUNCTIONS, (Shard(0), Shard(1))):
        rows = {"x": (shard,), "residual": (shard,)}
        tensors = random_tensors(function)
        result = check_call(function, tensors, mesh["b"], rows, count_collectives=True)
        result.assert_placements((shard,), (Partial(),))
        assert result.n_collectives == 0


def replicated_rows_stay_replicated(mesh: DeviceMesh) -> None:
    for function in FUNCTIONS:
        tensors = random_tensors(function)
        result = check_call(function, tensors, mesh["b"], {}, count_collectives=True)
        result.assert_placements((Replicate(),), (Replicate(),))
        assert result.n_collectives == 0


def sharded_parameters_are_gathered(mesh: DeviceMesh) -> None:
    for function in PAIR:
        placements = {name: (Shard(0),) for name in PARAMETERS}
        result = check_call(function, random_tensors(function), mesh["b"], placements)
        result.assert_placements((Replicate(),), (Replicate(),))
        placements |= {"x": (Shard(1),), "residual": (Shard(1),)}
        result = check_call(function, random_tensors(function), mesh["b"], placements)
        result.assert_placements((Shard(1),), (Partial(),))


def partial_parameters_are_summed(mesh: DeviceMesh) -> None:
    placements = {"x": (Shard(0),), "weight": (Partial(),)}
    result = check_call(rownorm.rms_norm, random_tensors(rownorm.rms_norm), mesh["b"], placements)
    result.assert_placements((Shard(0),), (Partial(),))


def columns_and_partial_rows_are_replicated(mesh: DeviceMesh) -> None:
    for function, placement in itertools.product(PAIR, (Shard(2), Partial())):
        rows = {"x": (placement,), "residual": (placement,)}
        result = check_call(function, random_tensors(function), mesh["b"], rows)
        result.assert_placements((Replicate(),), (Replicate(),))


def rows_follow_the_one_that_is_sharded(mesh: DeviceMesh) -> None:
    function = rownorm.add_rms_norm
    for other in (Replicate(), Partial(), Shard(2)):
        for sharded, unsharded in (("x", "residual"), ("residual", "x")):
            rows = {sharded: (Shard(1),), unsharded: (other,)}
            result = check_call(function, random_tensors(function), mesh["b"], rows)
            result.assert_placements((Shard(1),), (Partial(),))
    rows = {"x": (Shard(0),), "residual": (Shard(1),)}
    result = check_call(function, random_tensors(function), mesh["b"], rows)
    result.assert_placements((Shard(0),), (Partial(),))


def incoming_gradients_may_have_any_placement(mesh: DeviceMesh) -> None:
    for function in PAIR:
        for placement in (Replicate(), Partial(), Shard(0), Shard(1), Shard(2)):
            rows = {"x": (Shard(1),), "residual": (Shard(1),)}
            check_call(
                function,
                random_tensors(function),
                mesh["b"],
                rows,
                gradient_placements=(placement,),
            )


def two_dimensions_of_the_mesh(mesh: DeviceMesh) -> None:
    for function in PAIR:
        for rows, column_sums in (
            ((Shard(0), Shard(1)), (Partial(), Partial())),
            ((Shard(0), Shard(0)), (Partial(), Partial())),
            ((Replicate(), Shard(1)), (Replicate(), Partial())),
            ((Shard(0), Replicate()), (Partial(), Replicate())),
        ):
            tensors, placements = random_tensors(function), {"x": rows, "residual": rows}
            result = check_call(function, tensors, mesh, placements, count_collectives=True)
            result.assert_placements(rows, column_sums)
            assert result.n_collectives == 0
    rows = (Shard(0), Shard(2))
    result = check_call(rownorm.rms_norm, random_tensors(rownorm.rms_norm), mesh, {"x": rows})
    result.assert_placements((Shard(0), Replicate()), (Partial(), Replicate()))


def uneven_and_empty_shards(mesh: DeviceMesh) -> None:
    flat = init_device_mesh("cpu", (4,))
    for function, n in itertools.product(PAIR, (5, 7)):  # of 5 rows, the last rank has none
        rows = {"x": (Shard(0),), "residual": (Shard(0),)}
        result = check_call(function, random_tensors(function, (n, 8)), flat, rows)
        result.assert_placements((Shard(0),), (Partial(),))
    # Fewer rows than ranks: DTensor may gather them. The numbers count.
    check_call(rownorm.rms_norm, random_tensors(rownorm.rms_norm, (3, 8)), flat, {"x": (Shard(0),)})


def frozen_parameters_before_trained_ones(mesh: DeviceMesh) -> None:
    """DTensor caches the shapes of outputs. A call with the same shapes and other gradients must not get them."""
    for function in PAIR:
        tensors, rows = random_tensors(function), {"x": (Shard(0),), "residual": (Shard(0),)}
        for frozen in (PARAMETERS, ("bias", "pre_bias"), (), ("x", "residual"), ()):
            result = check_call(function, tensors, mesh["b"], rows, frozen)
            assert result.gradients.keys() == tensors.keys() - set(frozen)
            result.assert_placements((Shard(0),), (Partial(),))


def rms_norm_before_layer_norm(mesh: DeviceMesh) -> None:
    """The same for the mean of each row, which is an empty tensor for RMSNorm."""
    for function in (rownorm.rms_norm, rownorm.layer_norm, rownorm.rms_norm):
        tensors = random_tensors(function, (4, 2, 8))
        result = check_call(function, tensors, mesh["b"], {"x": (Shard(0),)})
        result.assert_placements((Shard(0),), (Partial(),))


def options_of_one_call_do_not_reach_the_next(mesh: DeviceMesh) -> None:
    for function in PAIR:
        tensors = random_tensors(function)
        rows = {"x": (Shard(0),), "residual": (Shard(0),)}
        parts = {
            n: distribute(t, mesh["b"], rows.get(n, (Replicate(),))) for n, t in tensors.items()
        }
        for options in (
            {},
            {"out_dtype": torch.float32},
            {"activation": "silu", "weight_shift": 1.0},
            {"eps": 0.5},
            {},
        ):
            check_call(function, tensors, mesh["b"], rows, **options)
            with torch.no_grad():
                outputs, expected = function(**parts, **options), function(**tensors, **options)
            y, wanted = (
                (outputs[0], expected[0]) if isinstance(outputs, tuple) else (outputs, expected)
            )
            assert y.dtype == y.to_local().dtype == wanted.dtype
            torch.testing.assert_close(y.full_tensor(), wanted)


def absent_parameters(mesh: DeviceMesh) -> None:
    for function in PAIR:
        rows = {"x": (Shard(1),), "residual": (Shard(1),)}
        for parameters in ((), ("weight",), ("bias",), ("pre_bias",), ("weight", "bias")):
            tensors = random_tensors(function, parameters=parameters)
            check_call(function, tensors, mesh["b"], rows).assert_placements(
                (Shard(1),), (Partial(),)
            )


def only_the_residual_stream_is_used(mesh: DeviceMesh) -> None:
    def residual_stream(**tensors):
        return rownorm.add_rms_norm(**tensors)[1]

    for shard in (Shard(0), Shard(1)):
        rows = {"x": (shard,), "residual": (shard,)}
        tensors = random_tensors(rownorm.add_rms_norm, parameters=("pre_bias",))
        check_call(residual_stream, tensors, mesh["b"], rows)


def several_normalized_dimensions(mesh: DeviceMesh) -> None:
    def norm(x, weight, bias):
        return rownorm.functional.layer_norm(x, weight.shape, weight, bias)

    tensors = {"x": torch.randn(4, 6, 8, dtype=torch.float64)}
    tensors |= {name: torch.randn(6, 8, dtype=torch.float64) for name in ("weight", "bias")}
    rows = {"x": (Shard(0),)}
    result = check_call(norm, tensors, mesh["b"], rows, count_collectives=True)
    result.assert_placements((Shard(0),), (Partial(),))
    assert result.n_collectives == 0
    check_call(norm, tensors, mesh["b"], {"x": (Shard(1),)})
    for placements in ({"x": (Shard(2),)}, {"x": (Shard(0),), "weight": (Shard(1),)}):
        if FLATTENS_SHARDS:
            check_call(norm, tensors, mesh["b"], placements)
        else:
            with pytest.raises(ValueError, match="redistribute"):
                check_call(norm, tensors, mesh["b"], placements)


def second_derivatives(mesh: DeviceMesh) -> None:
    def gradient_of_x(x, weight):
        loss = rownorm.rms_norm(x, weight).square().sum()
        return torch.autograd.grad(loss, x, create_graph=True)[0]

    tensors = random_tensors(rownorm.rms_norm, parameters=("weight",))
    for shard in (Shard(0), Shard(1)) if FLATTENS_SHARDS else (Shard(0),):
        check_call(gradient_of_x, tensors, mesh["b"], {"x": (shard,)})


def impossible_placements_raise(mesh: DeviceMesh) -> None:
    x, weight = torch.randn(4, 8), torch.randn(8)
    rows = distribute(x, mesh["b"], (Shard(0),))
    with pytest.raises(RuntimeError, match=r"need to convert all torch\.Tensor to DTensor"):
        rownorm.rms_norm(rows, weight)
    with pytest.raises(RuntimeError, match="make sure all the arguments have the same DeviceMesh"):
        rownorm.rms_norm(rows, distribute(weight, mesh, (Replicate(), Replicate())))


def another_version_of_torch_raises(mesh: DeviceMesh) -> None:
    """Where the cache cannot be told about the options, the operators raise and say what to do."""
    from rownorm.ops import (
        sharding,
    )  # here, because the other checks depend on how the library loads it

    rows = distribute(torch.randn(6, 8), mesh["b"], (Shard(0),))
    operator, key = torch.ops.rownorm.rms_norm.default, sharding._cache_by_every_argument

    def moved(operator):
        raise AttributeError

    sharding._cache_by_every_argument = moved
    try:
        sharding._register(operator)
        with pytest.raises(NotImplementedError, match="local_map"):
            rownorm.rms_norm(rows, eps=0.25)
    finally:
        sharding._cache_by_every_argument = key
        sharding._register(operator)
    assert rownorm.rms_norm(rows, eps=0.25).placements == (Shard(0),)


def samples_are_sharded_with_their_rows(mesh: DeviceMesh) -> None:
    """The batch on one dimension of the mesh, the tokens on the other."""
    tensors = {"x": torch.randn(4, 6, 8), "scale": torch.randn(4, 1, 8), "shift": torch.randn(6, 8)}
    rows = (Shard(0), Shard(1))
    result = check_call(rownorm.layer_norm, tensors, mesh, {"x": rows}, scale_shift=1.0)
    assert result.outputs[0].placements == rows
    assert result.gradients["scale"].placements == (Shard(0), Partial())
    assert result.gradients["shift"].placements == (Partial(), Shard(0))


def gates_are_sharded_with_their_rows(mesh: DeviceMesh) -> None:
    """Gates are rows, residual gates belong to samples, and groups of columns are rows of their own."""
    tensors = {name: torch.randn(4, 6, 8) for name in ("x", "residual", "gate")}
    tensors |= {"residual_gate": torch.randn(4, 1, 8), "weight": torch.randn(8)}
    rows = (Shard(0), Shard(1))
    placements = {"x": rows, "residual": rows, "gate": rows}
    for options in ({}, {"gate_first": True}):
        result = check_call(
            rownorm.add_rms_norm, tensors, mesh, placements, gate_activation="silu", **options
        )
        assert [one.placements for one in result.outputs] == [rows, rows]
        assert result.gradients["gate"].placements == rows
        assert result.gradients["residual_gate"].placements == (Shard(0), Partial())
    grouped = {name: tensors[name] for name in ("x", "gate", "weight")}
    result = check_call(rownorm.rms_norm, grouped, mesh, placements, group_cols=4)
    assert result.outputs[0].placements == rows


CHECKS = (
    gates_are_sharded_with_their_rows,
    samples_are_sharded_with_their_rows,
    frozen_parameters_before_trained_ones,
    rms_norm_before_layer_norm,
    options_of_one_call_do_not_reach_the_next,
    row_shards_stay_local,
    replicated_rows_stay_replicated,
    sharded_parameters_are_gathered,
    partial_parameters_are_summed,
    columns_and_partial_rows_are_replicated,
    rows_follow_the_one_that_is_sharded,
    incoming_gradients_may_have_any_placement,
    two_dimensions_of_the_mesh,
    uneven_and_empty_shards,
    absent_parameters,
    only_the_residual_stream_is_used,
    several_normalized_dimensions,
    second_derivatives,
    impossible_placements_raise,
    another_version_of_torch_raises,
)


def run_all() -> None:
    """Run every check, and those of models, on this rank."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    for check in (*CHECKS, *sharded_models.CHECKS):
        check(mesh)
