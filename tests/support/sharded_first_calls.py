"""The first call on a DTensor in a process, which loads the sharding rules. One rank is enough."""

import sys
from collections.abc import Callable

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import rownorm


def _first_call(call: Callable[..., DTensor], requires_grad: bool = False) -> None:
    mesh = init_device_mesh("cpu", (1,))
    x = torch.randn(4, 8)
    plain = call(x)
    assert "rownorm.ops.sharding" not in sys.modules
    rows = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_(requires_grad)
    y = call(rows)
    assert "rownorm.ops.sharding" in sys.modules
    assert y.placements == (Shard(0),)
    torch.testing.assert_close(y.full_tensor(), plain)
    # DTensor cached the first call before it knew that the dtype counts.
    assert call(rows, out_dtype=torch.bfloat16).dtype == torch.bfloat16
    assert call(rows).dtype == torch.float32
    if requires_grad:
        y.sum().backward()
        assert rows.grad.placements == (Shard(0),)


def with_gradient() -> None:
    _first_call(rownorm.rms_norm, requires_grad=True)


def without_gradient() -> None:
    _first_call(rownorm.rms_norm)


def in_inference_mode() -> None:
    with torch.inference_mode():
        _first_call(rownorm.rms_norm)


def of_an_operator() -> None:
    _first_call(torch.ops.rownorm.layer_norm, requires_grad=True)


def compiled() -> None:
    _first_call(_compiled_for_dtensors(), requires_grad=True)


def compiled_in_inference_mode() -> None:
    with torch.inference_mode():
        _first_call(_compiled_for_dtensors())


def _compiled_for_dtensors() -> Callable[..., DTensor]:
    compiled = torch.compile(rownorm.rms_norm, backend="aot_eager", fullgraph=True)

    def call(x, **options):
        return compiled(x, **options) if isinstance(x, DTensor) else rownorm.rms_norm(x, **options)

    return call


EAGER = (with_gradient, without_gradient, in_inference_mode, of_an_operator)
COMPILED = (compiled, compiled_in_inference_mode)
