"""``torch.library.opcheck``: schema, autograd, fake tensors, AOT dispatch with dynamic shapes."""

import pytest
import torch
from torch.library import opcheck

from rownorm.program import (
    ARGUMENTS,
    INPUTS,
    PARAMETERS,
    ROWS,
    WITH_RESIDUAL,
    Inputs,
    Program,
)
from rownorm.reference import ForwardOutputs, backward_inputs
from support.operators import OPERATORS, cases_in_turns, every_case, few_cases, outer_cases

WANTED = {"everything": INPUTS, "rows": ROWS, "parameters": PARAMETERS}


def program_of(case) -> Program:
    return Program(case.operator.endswith("layer_norm"), **{"eps": 1e-5, **case.options})


def optional(tensors, *names):
    return tuple(tensors.get(name) for name in names)


def check_public(case, tensors):
    names = [name for name in ARGUMENTS if name not in WITH_RESIDUAL or "residual" in tensors]
    operator = getattr(torch.ops.rownorm, case.operator).default
    opcheck(operator, optional(tensors, *names), case.options)


def check_backward(case, wanted, device, requires_grad):
    inputs = Inputs(*optional(case.tensors(device), *INPUTS))
    program, has_residual = program_of(case), inputs.residual is not None
    y, h, mu, rstd = torch.ops.rownorm.norm_forward(*inputs, *program)
    h, mu = (h if has_residual else None), (mu if program.center else None)
    dh = torch.randn_like(h) if has_residual else None
    outputs = ForwardOutputs(y, h, mu, rstd)
    saved = backward_inputs(torch.randn_like(y), dh, inputs, outputs)
    for name, t in saved._asdict().items():
        if t is not None and name not in ("mu", "rstd"):
            t.requires_grad_(requires_grad)
    pairs = zip(INPUTS, inputs, strict=True)
    flags = [t is not None and name in WANTED[wanted] for name, t in pairs]
    opcheck(torch.ops.rownorm.norm_backward.default, (*saved, *program, has_residual, flags))


@every_case
def test_public_operators(case, device):
    check_public(case, case.tensors(device, requires_grad=True))


@cases_in_turns("requires_grad", [False, True])
def test_public_operators_on_strided_rows(case, requires_grad, device):
    check_public(case, case.tensors(device, strided=True, requires_grad=requires_grad))


@cases_in_turns("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_public_operators_in_other_dtypes(case, dtype, device):
    check_public(case, case.tensors(device, dtype))


@cases_in_turns("strided", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True], ids=["inference", "training"])
def test_norm_forward(case, strided, requires_grad, device):
    tensors = case.tensors(device, strided=strided, requires_grad=requires_grad)
    inputs = optional(tensors, *INPUTS)
    opcheck(torch.ops.rownorm.norm_forward.default, (*inputs, *program_of(case)))


@few_cases
@pytest.mark.parametrize("wanted", WANTED)
def test_norm_backward(case, wanted, device):
    check_backward(case, wanted, device, requires_grad=False)


@outer_cases
def test_norm_backward_that_is_differentiated(case, device):
    check_backward(case, "everything", device, requires_grad=True)


@pytest.mark.parametrize("name", [*OPERATORS, "norm_forward", "norm_backward"])
def test_operators_are_functional_and_safe_to_trace(name):
    operator = getattr(torch.ops.rownorm, name).default
    assert torch.Tag.pt2_compliant_tag in operator.tags
    assert not operator._schema.is_mutable
    assert not any(argument.alias_info for argument in operator._schema.arguments)
