"""PyTorch's features with what is no operator of its own, groups of columns, and with the rounding of each step."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, vmap
from torch.library import opcheck

import rownorm
from rownorm.ops import inductor
from rownorm.ops.groups import in_groups
from rownorm.program import ARGUMENTS, WITH_RESIDUAL, Inputs, Program
from support.cases import call
from support.operators import same_bits
from support.pairwise import combinations
from support.torch_answers import torch_activation, torch_gate

N_COLS, GROUP = 8, 4
# Of ``grouped``.
OF_GROUPS = Program(False, 1e-6, gate_activation="silu", gate_first=True, weight_shift=1.0)


def grouped(x, gate, weight, bias):
    return rownorm.rms_norm(
        x,
        weight,
        bias,
        gate=gate,
        gate_activation="silu",
        gate_first=True,
        weight_shift=1.0,
        group_cols=GROUP,
    )


def by_torch(x, gate, weight, bias):
    u = (x * F.silu(gate)).unflatten(-1, (-1, GROUP))
    return F.rms_norm(u, (GROUP,), eps=1e-6).flatten(-2) * (1 + weight) + bias


def in_steps(x, residual, gate, scale, shift, residual_gate):
    return rownorm.add_layer_norm(
        x,
        residual,
        gate=gate,
        gate_activation="sigmoid",
        scale=scale,
        shift=shift,
        residual_gate=residual_gate,
        scale_shift=1.0,
        rounding="each",
    )


def rows_and_columns(device, rows=(3,), dtype=torch.float64, requires_grad=True):
    shapes = [(*rows, N_COLS)] * 2 + [(N_COLS,)] * 2
    make = {"dtype": dtype, "device": device, "requires_grad": requires_grad}
    return tuple(torch.randn(shape, **make) for shape in shapes)


def rows_and_samples(device, dtype=torch.float64, requires_grad=True, rows=3):
    shapes = [(2, rows, N_COLS)] * 3 + [(2, 1, N_COLS)] * 3
    return tuple(
        torch.randn(shape, device=device).to(dtype).requires_grad_(requires_grad)
        for shape in shapes
    )


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_derivatives_of_groups(device):
    inputs = rows_and_columns(device, rows=(2,))
    assert gradcheck(
        grouped, inputs, fast_mode=True, check_forward_ad=True, check_batched_grad=True
    )
    assert gradgradcheck(grouped, inputs, fast_mode=True)


def test_derivatives_with_every_step_rounded(device):
    """fp64 has no roundings."""
    inputs = rows_and_samples(device)
    assert gradcheck(in_steps, inputs, fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(in_steps, inputs, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_operators_of_groups_and_steps(dtype, device):
    """``opcheck`` of the calls that the public functions make: rows of groups are views, steps are rounded."""
    x, gate, weight, bias = rows_and_columns(device, dtype=dtype)
    inputs = Inputs(x, None, None, weight, bias, gate=gate)
    grouped_inputs, grouped_program = in_groups(inputs, OF_GROUPS, GROUP)
    x, residual, gate, scale, shift, residual_gate = rows_and_samples(device, dtype)
    samples = {"scale": scale, "shift": shift, "residual_gate": residual_gate}
    steps = Inputs(x, residual, None, None, None, **samples, gate=gate)
    each = Program(True, 1e-5, scale_shift=1.0, gate_activation="sigmoid", rounding="each")
    for name, tensors, options in (
        ("rms_norm", grouped_inputs, grouped_program),
        ("add_layer_norm", steps, each),
    ):
        without = () if name.startswith("add_") else WITH_RESIDUAL
        arguments = [getattr(tensors, one) for one in ARGUMENTS if one not in without]
        operator = getattr(torch.ops.rownorm, name).default
        opcheck(operator, tuple(arguments), options.operator_keywords())


def test_vmap_of_groups(device):
    tensors = rows_and_columns(device, rows=(5, 3), requires_grad=False)
    in_dims = (0, 0, None, None)

    def gradients(function):
        return vmap(grad(lambda *t: function(*t).sin().sum(), (0, 1, 2)), in_dims)(*tensors)

    torch.testing.assert_close(vmap(grouped, in_dims)(*tensors), by_torch(*tensors))
    torch.testing.assert_close(gradients(grouped), gradients(by_torch))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiled_groups(dynamic, device):
    compiled = torch.compile(grouped, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (3, 5) if dynamic else (3,):
        tensors = rows_and_columns(device, (rows,), torch.float32)
        y, expected = compiled(*tensors), grouped(*tensors)
        same_bits(y, expected)
        same_bits(*(torch.autograd.grad(one.sin().sum(), tensors) for one in (y, expected)))


def test_what_inductor_gets_of_groups_and_steps(device):
    """PyTorch's operators for groups and a gate that comes first; rounded steps stay an operator."""
    x, gate, weight, bias = rows_and_columns(device)
    inputs, program = in_groups(Inputs(x, None, None, weight, bias, gate=gate), OF_GROUPS, GROUP)
    assert inductor.is_forward_composed(inputs, program)
    composed = inductor.forward(inputs, program).y.flatten(-2)
    expected = by_torch(x, gate, weight, bias)
    torch.testing.assert_close(composed, expected)
    assert not inductor.is_forward_composed(inputs, program._replace(rounding="each"))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiled_steps(dynamic, device):
    compiled = torch.compile(in_steps, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (3, 5) if dynamic else (3,):
        tensors = rows_and_samples(device, torch.bfloat16, rows=rows)
        outputs, expected = compiled(*tensors), in_steps(*tensors)
        same_bits(outputs, expected)
        same_bits(*(torch.autograd.grad(one[0].sum(), tensors) for one in (outputs, expected)))


@pytest.mark.parametrize("options", [{"gate_first": True}, {"rounding": "each"}], ids=str)
def test_gates_under_autocast(options, device):
    """As a call that says what autocast makes of it, and gradients of the dtypes of the rows.

    On a GPU: rows that torch casts to fp32, so that no step rounds to bf16.
    """
    *rows, weight, _ = rows_and_columns(device, dtype=torch.bfloat16)

    def gated(**more):
        x, gate = rows
        more = options | more
        return rownorm.layer_norm(x, weight, gate=gate, gate_activation="silu", **more)

    with torch.autocast(device, torch.bfloat16):
        y = gated()
    is_cast = device == "cuda" and y.dtype == torch.float32
    expected = gated(out_dtype=y.dtype, **({"rounding": "once"} if is_cast else {}))
    same_bits(y, expected)
    leaves = (*rows, weight)
    same_bits(*(torch.autograd.grad(one.sin().sum(), leaves) for one in (y, expected)))


def test_steps_without_rownorm(device, without_interpreter):
    """The numbers of eager PyTorch, also in a program that was exported for another runtime."""
    x, residual, gate, scale, shift, residual_gate = tensors = rows_and_samples(
        "cpu", torch.bfloat16, requires_grad=False
    )
    h = residual + residual_gate * x
    y = F.layer_norm(h, (N_COLS,)) * (1 + scale) + shift
    expected = (y * torch.sigmoid(gate), h)
    same_bits(in_steps(*tensors), expected)

    class Model(torch.nn.Module):
        def forward(self, *tensors):
            return in_steps(*tensors)

    program = torch.export.export(Model(), tensors).run_decompositions()
    assert "rownorm" not in str(program.graph)
    same_bits(program.module()(*tensors), expected)


def eager_steps(case, t):
    """(y, h) by PyTorch's operators in the dtype of x. The norm and its weight and bias are one step."""
    gate = None if t["gate"] is None else torch_gate(case.gate_activation, t["gate"])
    h = t["x"] if t["pre_bias"] is None else t["x"] + t["pre_bias"]
    h = h if t["residual_gate"] is None else t["residual_gate"] * h
    h = h if t["residual"] is None else t["residual"] + h
    u = h * gate if case.gate_first and gate is not None else h
    weight = None if t["weight"] is None else t["weight"].float() + case.weight_shift
    bias = None if t["bias"] is None else t["bias"].float()
    norm = F.layer_norm if case.center else F.rms_norm
    parameters = (weight, bias) if case.center else (weight,)
    z = norm(u.float(), u.shape[-1:], *parameters, eps=case.program.eps).to(u.dtype)
    z = z if t["scale"] is None else z * (t["scale"] + case.scale_shift)
    y = torch_activation(case.activation, z if t["shift"] is None else z + t["shift"])
    return y if case.gate_first or gate is None else y * gate, h


@pytest.mark.parametrize("seed", [0, 1])
def test_any_steps_are_those_of_eager_pytorch(seed, without_interpreter):
    """The bits of y and h on a CPU, but for elements where another order of the norm's sums rounds otherwise."""
    for case in combinations(seed):
        if case.dtype.itemsize > 2:
            continue
        one_dtype = {
            "residual_dtype": case.residual_dtype and case.dtype,
            "gate_dtype": case.gate_dtype and case.dtype,
            "parameter_dtype": None,
            "out_dtype": None,
        }
        bias = case.bias and case.center  # F.rms_norm has none
        case = replace(case, **one_dtype, bias=bias, rounding="each", shape=(2, 5, 40))
        tensors = case.tensors("cpu")
        y, h = call(case, tensors)
        expected, stream = eager_steps(case, tensors)
        assert (y != expected).float().mean() < 0.02, case
        if h is not None:
            same_bits(h, stream)


def test_exported_groups(device):
    norm = rownorm.nn.RMSNormGated(N_COLS, gate_first=True, group_cols=GROUP).to(device)
    batch = {0: torch.export.Dim("batch", min=1)}
    inputs, others = (
        tuple(torch.randn(n, 3, N_COLS, device=device) for _ in range(2)) for n in (2, 7)
    )
    program = torch.export.export(norm, inputs, dynamic_shapes=(batch, batch))
    torch.testing.assert_close(program.module()(*others), norm(*others))
    program = program.run_decompositions()
    assert "rownorm" not in str(program.graph)
    torch.testing.assert_close(program.module()(*others), norm(*others))


def test_groups_of_rows_in_any_layout(device):
    """Parts of a projection, transposed rows, no rows; in any batch, and under autocast."""
    projection = torch.randn(3, 5, 24, dtype=torch.float64, device=device)
    x, gate = projection[..., :N_COLS], projection[..., 11 : 11 + N_COLS]
    weight, bias = torch.randn(2, N_COLS, dtype=torch.float64, device=device)
    torch.testing.assert_close(grouped(x, gate, weight, bias), by_torch(x, gate, weight, bias))
    x = torch.randn(N_COLS, 5, 3, dtype=torch.float64, device=device).permute(2, 1, 0)
    torch.testing.assert_close(grouped(x, x, weight, bias), by_torch(x, x, weight, bias))
    empty = rows_and_columns(device, rows=(0,))
    gradients = torch.autograd.grad(grouped(*empty).sum(), empty)
    assert [one.shape for one in gradients] == [one.shape for one in empty]
    assert not any(one.any() for one in gradients)
    x, gate, weight, bias = rows_and_columns(device, (9,), torch.float32, requires_grad=False)
    with rownorm.batch_invariant():
        together = grouped(x, gate, weight, bias)
        same_bits(grouped(x[3:5], gate[3:5], weight, bias), together[3:5])
    with torch.autocast(device, torch.bfloat16):
        y = grouped(x.bfloat16(), gate.bfloat16(), weight, bias)
    expected = by_torch(x.bfloat16().float(), gate.bfloat16().float(), weight, bias)
    torch.testing.assert_close(y.float(), expected, rtol=0.02, atol=0.02)
