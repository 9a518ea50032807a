"""``torch.export``: the operators are nodes of a program that runs, saves and loads.

What replaces them for other runtimes is in ``test_decompositions``.
"""

import io

import pytest
import torch

import rownorm
from rownorm.program import COLUMNS
from support.exported import operators
from support.operators import COLS, ROWS, every_case, full_cases, same_bits


class Norm(torch.nn.Module):
    """A case as a module with the case's columns as parameters. Its inputs are the other tensors, with a batch."""

    def __init__(self, case, tensors):
        super().__init__()
        self.case = case
        for name in case.parameters:
            if name in COLUMNS:
                self.register_parameter(name, torch.nn.Parameter(tensors[name]))
        self.inputs = [name for name in case.tensor_names if name not in COLUMNS]

    def forward(self, *inputs):
        return self.case(**dict(zip(self.inputs, inputs, strict=True)), **dict(self._parameters))


def exported(case, device, strict=False):
    """(module, its exported program with a dynamic batch, rows of another batch size)."""
    tensors = case.tensors(device, rows=(ROWS, 2))
    module = Norm(case, tensors)
    rows = tuple(tensors[name] for name in module.inputs)
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(
        module, rows, dynamic_shapes=(tuple({0: batch} for _ in rows),), strict=strict
    )
    return module, program, tuple(torch.randn(7, *t.shape[1:], device=device) for t in rows)


@every_case
@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_export(case, strict, device):
    module, program, rows = exported(case, device, strict)
    assert operators(program) == [f"rownorm.{case.operator}.default"]
    same_bits(program.module()(*rows), module(*rows))


@full_cases
def test_save_and_load(case, device):
    module, program, rows = exported(case, device)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file)
    assert operators(loaded) == operators(program)
    same_bits(loaded.module()(*rows), module(*rows))


def test_exported_program_trains(device):
    """A program exported for training has the same gradients."""
    model = torch.nn.Sequential(
        rownorm.nn.LayerNorm(COLS), torch.nn.Linear(COLS, COLS), rownorm.nn.RMSNorm(COLS)
    ).to(device)
    x = torch.randn(ROWS, COLS, device=device)
    program = torch.export.export(model, (x,)).module()

    def step(module):
        module.zero_grad()
        module(x).sin().sum().backward()
        return {name: p.grad.clone() for name, p in module.named_parameters()}

    same_bits(step(program), step(model))


def test_modules_over_several_dimensions(device):
    model = torch.nn.Sequential(
        rownorm.nn.LayerNorm((2, COLS)), rownorm.nn.RMSNorm((2, COLS), eps=1e-5)
    ).to(device)
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(
        model, (torch.randn(ROWS, 2, COLS, device=device),), dynamic_shapes=({0: batch},)
    )
    assert operators(program) == ["rownorm.layer_norm.default", "rownorm.rms_norm.default"]
    x = torch.randn(5, 2, COLS, device=device)
    same_bits(program.module()(x), model(x))
