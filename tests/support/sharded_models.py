"""A small model, trained with tensor and sequence parallelism or FSDP2, and in one process.

The checks run on four ranks, in a mesh of 2 x 2.
"""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import rownorm

BATCH, SEQUENCE, WIDTH = 4, 6, 8
N_STEPS = 3


class Model(nn.Module):
    """One layer of a transformer without attention. The second norm adds the residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = rownorm.nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.last_norm = rownorm.nn.RMSNorm(WIDTH, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        update = self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        y, h = rownorm.add_rms_norm(update, x, self.last_norm.weight)
        return y + h


def _model() -> Model:
    torch.manual_seed(1)
    model = Model().double()
    for parameter in model.parameters():  # a norm that starts with ones hides a missing weight
        nn.init.normal_(parameter)
    return model


def _train(model: nn.Module, batches: list[Tensor]) -> None:
    """A few steps. Each batch contributes the mean over its elements."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x in batches:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _batches() -> list[Tensor]:
    torch.manual_seed(2)
    return [torch.randn(BATCH, SEQUENCE, WIDTH, dtype=torch.float64) for _ in range(N_STEPS)]


def _assert_trained_alike(model: nn.Module) -> None:
    """The parameters are those of a model that one process trains on all data."""
    alone = _model()
    _train(alone, _batches())
    for (name, actual), expected in zip(model.named_parameters(), alone.parameters(), strict=True):
        whole = actual.full_tensor() if isinstance(actual, DTensor) else actual
        torch.testing.assert_close(whole, expected, msg=lambda text, name=name: f"{name}: {text}")


def _part(batches: list[Tensor], mesh: DeviceMesh) -> list[Tensor]:
    """The rows of each batch that this rank of ``mesh`` trains on."""
    return [x.chunk(mesh.size())[mesh.get_local_rank()] for x in batches]


def _sequence_parallel(model: Model, mesh: DeviceMesh) -> nn.Module:
    """Linear layers are split over ``mesh``, norms and the residual stream along the sequence."""
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "last_norm": SequenceParallel(),
    }
    return parallelize_module(model, mesh, plan)


def sequence_parallel(mesh: DeviceMesh) -> None:
    model = _sequence_parallel(_model(), mesh["b"])
    _train(model, [distribute_tensor(x, mesh["b"], [Shard(1)]) for x in _batches()])
    _assert_trained_alike(model)


def fsdp(mesh: DeviceMesh) -> None:
    model = _model()
    fully_shard(model.norm, mesh=mesh["b"])
    fully_shard(model, mesh=mesh["b"])
    _train(model, _part(_batches(), mesh["b"]))
    _assert_trained_alike(model)


def fsdp_and_sequence_parallel(mesh: DeviceMesh) -> None:
    model = _sequence_parallel(_model(), mesh["b"])
    fully_shard(model, mesh=mesh["a"])
    parts = _part(_batches(), mesh["a"])
    _train(model, [distribute_tensor(x, mesh["b"], [Shard(1)]) for x in parts])
    _assert_trained_alike(model)


CHECKS = (sequence_parallel, fsdp, fsdp_and_sequence_parallel)
