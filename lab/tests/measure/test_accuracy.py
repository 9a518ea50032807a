"""The exact values agree with PyTorch in fp64; rownorm is within its budget; wrong results are found."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from rownorm.ops import execute
from rownorm_lab.data.case import DTYPES, OPERATIONS, Case
from rownorm_lab.measure import accuracy
from rownorm_lab.measure.accuracy import exact_values, judge, judge_all, one_rounding, spacing
from rownorm_lab.providers import all_providers, as_tuple
from rownorm_lab.providers.data import DATA_SETS, output_names, rotation

OPTIONS = (
    {},
    {"pre_bias": True, "bias": True, "activation": "gelu"},
    {"bias": False, "activation": "relu"},
    {"activation": "silu"},
    {"activation": "gelu_tanh", "pre_bias": True},
    {"weight": False, "sample_rows": 4},
    {"sample_rows": 4, "activation": "relu"},
    {"gate_activation": "silu"},
    {"gate_activation": "sigmoid", "activation": "gelu", "pre_bias": True, "sample_rows": 4},
    {"gate_activation": "silu", "gate_first": True, "bias": True},
)
RESIDUAL_GATE = {"sample_rows": 4, "residual_gate": True, "pre_bias": True}


def of_operation(operation, options):
    """The options, and a residual gate beside a modulation where there is a residual."""
    adds = operation.startswith("add_") and "sample_rows" in options
    return options | (RESIDUAL_GATE if adds else {})


@pytest.fixture
def rounding(without_interpreter):
    """bf16 is rounded, as on a GPU, and rownorm takes its CPU path."""


def torch_in_fp64(case, t):
    """Outputs and gradients by PyTorch's own operators and autograd."""
    wide = t.inputs._replace(
        **{
            name: each.detach().double().requires_grad_()
            for name, each in t.inputs._asdict().items()
            if each is not None
        }
    )
    h, weight, bias = wide.x, wide.weight, wide.bias
    h = h if wide.pre_bias is None else h + wide.pre_bias
    h = h if wide.residual_gate is None else h * wide.residual_gate
    h = h if wide.residual is None else h + wide.residual
    gate = wide.gate
    if gate is not None:
        gate = gate.sigmoid() if case.gate_activation == "sigmoid" else F.silu(gate)
    u = h * gate if case.gate_first else h
    if case.centers:
        z = F.layer_norm(u, (case.cols,), weight, bias, case.eps)
    else:
        z = F.rms_norm(u, (case.cols,), weight, case.eps)
        z = z if bias is None else z + bias
    if wide.scale is not None:
        z = z * (1 + wide.scale) + wide.shift
    functions = {
        None: lambda z: z,
        "gelu": F.gelu,
        "relu": F.relu,
        "silu": F.silu,
        "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    }
    y = functions[case.activation](z)
    y = y if gate is None or case.gate_first else y * gate
    outputs = [y, h] if case.adds else [y]
    leaves = [each for each in wide if each is not None]
    gradients = torch.autograd.grad(outputs, leaves, [each.double() for each in t.cotangents])
    names = output_names(case)
    return dict(zip(names, (*(each.detach() for each in outputs), *gradients), strict=True))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_exact_values_are_those_of_torch(operation, options, monkeypatch):
    """Also if they are computed in several chunks."""
    monkeypatch.setattr(accuracy, "CHUNK", 5 * 33)
    options = of_operation(operation, options)
    has_samples = "sample_rows" in options
    rows = 16 if has_samples else 17
    case = Case(operation=operation, direction="both", rows=rows, cols=33, dtype="fp32", **options)
    (t,) = rotation(case, 1, "cpu")
    pieces = list(exact_values(case, t))
    has_vectors = case.weight or case.has_bias or case.pre_bias
    assert len(pieces) == 4 * (1 + has_samples) + has_vectors
    found = {}
    for _, piece in pieces:
        for name, exact in piece.items():
            found.setdefault(name, []).append(exact.values)
    expected = torch_in_fp64(case, t)
    assert found.keys() == expected.keys()
    for name, values in found.items():
        exact = torch.cat(values).view(expected[name].shape)
        torch.testing.assert_close(exact, expected[name], rtol=1e-11, atol=1e-11)


def test_spacing():
    values = torch.tensor([1.0, 1.5, -2.0, 0.0, 3e-5, 65000.0], dtype=torch.float64)
    assert spacing(values, torch.float16).tolist() == [
        *(2.0**-10, 2.0**-10, 2.0**-9),
        *(2.0**-24, 2.0**-24, 2.0**5),
    ]
    assert spacing(values[:1], torch.bfloat16).item() == 2.0**-7


def test_a_rounding_is_half_a_step_unless_bf16_is_truncated(monkeypatch):
    one = torch.ones(1, dtype=torch.float64)
    monkeypatch.setattr(execute, "INTERPRETING", False)
    assert one_rounding(one, torch.bfloat16) == 2.0**-8
    monkeypatch.setattr(execute, "INTERPRETING", True)
    assert one_rounding(one, torch.bfloat16) == 2.0**-7
    assert one_rounding(one, torch.float16) == 2.0**-11


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rownorm_is_within_its_budget(operation, dtype, rounding):
    for data, options in itertools.product(DATA_SETS, (*OPTIONS[:3], *OPTIONS[-3:])):
        options = of_operation(operation, options)
        case = Case(operation=operation, direction="both", rows=8, cols=200, dtype=dtype, **options)
        (t,) = rotation(case, 1, "cpu", data=data)
        outputs = as_tuple(all_providers()["rownorm"].prepare(case, t)())
        judged = judge(case, t, outputs, strict=True)
        assert judged.ok, f"{data} {options}: {judged.why}"
        assert 0 <= judged.closest.allowance_used <= 1


CASE = Case(operation="layer_norm", direction="both", rows=32, cols=128, dtype="bf16")


@pytest.fixture
def right(rounding):
    """(tensors, outputs that are right)."""
    (t,) = rotation(CASE, 1, "cpu")
    return t, [each.detach() for each in as_tuple(all_providers()["rownorm"].prepare(CASE, t)())]


def replaced(outputs, place, value):
    return [value if i == place else each for i, each in enumerate(outputs)]


def with_one(output, value):
    output = output.clone()
    output[3, 7] = value
    return output


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (lambda y: y * 1.01, "y is off by"),
        (lambda y: y + 0.02, "y is off by"),
        (lambda y: y.flip(0), "y is off by"),
        (lambda y: with_one(y, 9.0), "y is off by"),
        (lambda y: with_one(y, torch.nan), "y has values that are not finite"),
        (lambda y: with_one(y, torch.inf), "y has values that are not finite"),
        (lambda y: y.float(), "y is float32, expected bfloat16"),
        (lambda y: y[:, 1:], r"y has shape \(32, 127\), expected \(32, 128\)"),
        (lambda y: None, "y is a NoneType, expected a tensor"),
    ],
)
def test_the_reason_names_what_is_wrong(right, strict, fault, why):
    t, outputs = right
    assert judge(CASE, t, outputs, strict=strict).ok
    judged = judge(CASE, t, replaced(outputs, 0, fault(outputs[0])), strict=strict)
    assert not judged.ok
    with pytest.raises(ValueError, match=why):
        raise ValueError(judged.why)


@pytest.mark.parametrize("place", [1, 2, 3])
def test_wrong_gradients_are_named(right, place):
    t, outputs = right
    name = output_names(CASE)[place]
    judged = judge(CASE, t, replaced(outputs, place, outputs[place] * 1.2), strict=False)
    assert judged.why.startswith(f"{name} is off by")


def test_too_few_outputs(right):
    t, outputs = right
    judged = judge(CASE, t, outputs[:2], strict=False)
    assert judged.why == "returned 2 tensors, expected 4: y, dx, dweight, dbias"


def test_one_ulp_in_one_element_exceeds_the_budget_but_not_the_limit_for_peers(right):
    t, outputs = right
    exact = dict(part for _, piece in exact_values(CASE, t) for part in piece.items())
    away = torch.sign(outputs[0][3, 7].double() - exact["y"].values[3, 7])
    step = spacing(exact["y"].values[3, 7], torch.bfloat16)
    nudged = with_one(outputs[0], outputs[0][3, 7].double() + away * step)
    assert not judge(CASE, t, replaced(outputs, 0, nudged), strict=True).ok
    assert judge(CASE, t, replaced(outputs, 0, nudged), strict=False).ok


def test_figures_of_a_known_error(rounding):
    case = Case(operation="rms_norm", rows=4, cols=64, dtype="fp32")
    (t,) = rotation(case, 1, "cpu")
    ((_, exact),) = exact_values(case, t)
    y = exact["y"].values.float()
    y[1, 2] += 0.5
    judged = judge(case, t, [y], strict=True)
    assert judged.accuracy.worst == "y"
    assert judged.accuracy.max_error == pytest.approx(0.5, rel=1e-5)
    assert judged.accuracy.mean_error == pytest.approx(0.5 / 256, rel=1e-3)
    size = max(abs(y[1, 2] - 0.5), y[1].square().mean().sqrt()).double()
    assert judged.accuracy.max_ulp == pytest.approx(0.5 / spacing(size, y.dtype).item(), rel=1e-5)
    assert judged.closest.allowance_used > 1


def test_values_beyond_the_dtype_may_overflow(rounding):
    case = Case(operation="add_rms_norm", rows=2, cols=8, dtype="fp16")
    (t,) = rotation(case, 1, "cpu")
    t.x.fill_(60000)
    t.residual.fill_(60000)
    outputs = as_tuple(all_providers()["rownorm"].prepare(case, t)())
    assert outputs[1].isinf().all()
    assert judge(case, t, outputs, strict=True).ok


def test_providers_are_judged_separately(right):
    t, outputs = right
    made = {
        "good": outputs,
        "bad": replaced(outputs, 0, outputs[0] * 1.01),
        "odd": outputs[:1],
    }
    judged = judge_all(CASE, t, made, strict=("good",))
    assert {name: each.ok for name, each in judged.items()} == {
        "good": True,
        "bad": False,
        "odd": False,
    }
    assert judged["bad"].accuracy.worst == "y"
    assert judged["odd"].accuracy is None


def test_peers_may_round_intermediate_values(rounding):
    """Eager PyTorch rounds the stream before the norm, and accumulates sums over rows in bf16 on a CPU."""
    for operation in OPERATIONS:
        case = Case(operation=operation, direction="both", rows=500, cols=64, dtype="bf16")
        (t,) = rotation(case, 1, "cpu")
        judged = judge(case, t, as_tuple(all_providers()["torch"].prepare(case, t)()), strict=False)
        assert judged.ok, judged.why
