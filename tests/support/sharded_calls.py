"""Calls of the library on DTensors, compared with the same calls on whole tensors."""

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.placement_types import Placement

import rownorm

ROWS = ("x", "residual")
PARAMETERS = ("weight", "bias", "pre_bias")
N_COLS = 8
Placements = tuple[Placement, ...]


@dataclass
class Sharded:
    """The results of a call on DTensors."""

    outputs: tuple[DTensor, ...]
    gradients: dict[str, DTensor]
    n_collectives: int | None  # of forward and backward, if they were counted

    def assert_placements(self, rows: Placements, column_sums: Placements) -> None:
        for output in self.outputs:
            assert output.placements == rows
        for name, gradient in self.gradients.items():
            assert gradient.placements == (rows if name in ROWS else column_sums), name


def random_tensors(
    function: Any, shape: tuple[int, ...] = (4, 6, N_COLS), parameters: tuple[str, ...] = PARAMETERS
) -> dict[str, Tensor]:
    """The inputs of ``function``, in fp64 and equal on all ranks, because all ranks have the same seed."""
    has_residual = function in (rownorm.add_layer_norm, rownorm.add_rms_norm)
    tensors = {"x": torch.randn(shape, dtype=torch.float64)}
    if has_residual:
        tensors["residual"] = torch.randn(shape, dtype=torch.float64)
    return tensors | {name: torch.randn(shape[-1:], dtype=torch.float64) for name in parameters}


def distribute(t: Tensor, mesh: DeviceMesh, placements: Placements) -> DTensor:
    """A DTensor with the value of ``t``. ``Partial``: each rank has its share of the sum."""
    share, whole = t, list(placements)
    for i, placement in enumerate(placements):
        if placement.is_partial():
            share, whole[i] = share / mesh.size(i), Replicate()
    local = distribute_tensor(share, mesh, whole).to_local()
    return DTensor.from_local(local, mesh, placements, shape=t.shape, stride=t.stride())


def check_call(
    function: Any,
    tensors: dict[str, Tensor],
    mesh: DeviceMesh,
    placements: dict[str, Placements],
    frozen: tuple[str, ...] = (),
    gradient_placements: Placements | None = None,
    count_collectives: bool = False,
    **options: Any,
) -> Sharded:
    """Call ``function`` on DTensors and assert that outputs and gradients are those of the call on whole tensors.

    placements: of inputs; other inputs are replicated. gradient_placements: of the incoming gradients; None: those of
    the outputs. count_collectives: under a mode that counts them, DTensor uses no cache.
    """
    replicated = (Replicate(),) * mesh.ndim
    whole = {n: t.clone().requires_grad_(n not in frozen) for n, t in tensors.items()}
    parts = {
        n: distribute(t, mesh, placements.get(n, replicated))
        .detach()
        .requires_grad_(n not in frozen)
        for n, t in tensors.items()
    }
    expected = _as_tuple(function(**whole, **options))
    incoming = [torch.randn_like(t) for t in expected]
    expected_gradients = torch.autograd.grad(expected, _trained(whole), incoming)

    collectives = CommDebugMode() if count_collectives else None
    with collectives or contextlib.nullcontext():
        outputs = _as_tuple(function(**parts, **options))
    n_forward = collectives.get_total_counts() if collectives else 0
    sharded = [
        distribute(g, mesh, gradient_placements or y.placements)
        for g, y in zip(incoming, outputs, strict=True)
    ]
    with collectives or contextlib.nullcontext():
        gradients = torch.autograd.grad(outputs, _trained(parts), sharded)
    n_collectives = n_forward + collectives.get_total_counts() if collectives else None

    for actual, wanted in zip(
        (*outputs, *gradients), (*expected, *expected_gradients), strict=True
    ):
        assert actual.dtype == wanted.dtype
        torch.testing.assert_close(actual.full_tensor(), wanted)
    names = [n for n, t in parts.items() if t.requires_grad]
    return Sharded(outputs, dict(zip(names, gradients, strict=True)), n_collectives)


def _trained(tensors: dict[str, Any]) -> list[Any]:
    return [t for t in tensors.values() if t.requires_grad]


def _as_tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)
