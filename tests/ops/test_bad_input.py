"""Invalid input: the right exception and a message that says what to do."""

import math
import warnings

import pytest
import torch

import rownorm
from rownorm.ops import execute
from rownorm.program import COLUMNS, INPUTS, SAMPLES, WITH_RESIDUAL, Inputs, Program
from support.criterion import assert_same_bits

OPERATIONS = ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
N_COLS = 12


def arguments(operation: str, device: str) -> dict:
    """The arguments of a valid call."""
    rows = ("x", "residual", *SAMPLES, "gate")
    has_residual = operation.startswith("add_")
    given = {name: torch.randn(3, N_COLS, device=device) for name in rows}
    given |= {name: torch.randn(N_COLS, device=device) for name in COLUMNS}
    return {name: t for name, t in given.items() if has_residual or name not in WITH_RESIDUAL}


def elsewhere(t: torch.Tensor) -> torch.Tensor:
    return t.to("cpu" if t.is_cuda else "meta")


def nested(t: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):  # nested tensors are a prototype
        return torch.nested.nested_tensor([t, t[:1]])


# The change that makes a call invalid, the exception, and words of its message: the rule, the value, the fix.
BAD = {
    "weight too short": (
        {"weight": lambda t: t[:-1]},
        ValueError,
        ("weight must have shape (12,)", "got (11,)", "rownorm.functional"),
    ),
    "weight of one": ({"weight": lambda t: t[:1]}, ValueError, ("(12,)", "got (1,)")),
    "weight with rows": ({"weight": lambda t: t[None]}, ValueError, ("(12,)", "got (1, 12)")),
    "bias too long": ({"bias": lambda t: t.repeat(2)}, ValueError, ("bias must", "got (24,)")),
    "pre_bias shape": ({"pre_bias": lambda t: t[1:]}, ValueError, ("pre_bias must", "got (11,)")),
    "scale too short": (
        {"scale": lambda t: t[:, 1:]},
        ValueError,
        (
            "scale must broadcast to the shape of x, (3, 12), as (3, 12) and (12,) do",
            "got (3, 11)",
        ),
    ),
    "scale of two rows": ({"scale": lambda t: t[:2]}, ValueError, ("broadcast", "got (2, 12)")),
    "shift with a batch": ({"shift": lambda t: t[None]}, ValueError, ("shift", "got (1, 3, 12)")),
    "shift integers": ({"shift": lambda t: t.int()}, TypeError, ("shift must", "int32")),
    "scale elsewhere": ({"scale": elsewhere}, ValueError, ("scale must be on the device of x",)),
    "scale_shift alone": (
        {"scale": lambda t: None, "scale_shift": 1.0},
        ValueError,
        ("there is no scale", "leave scale_shift out"),
    ),
    "gate of one row": (
        {"gate": lambda t: t[:1]},
        ValueError,
        ("gate must have the shape of x, (3, 12)", "got (1, 12)", "Expand or reshape"),
    ),
    "gate integers": ({"gate": lambda t: t.int()}, TypeError, ("gate must", "int32")),
    "gate elsewhere": ({"gate": elsewhere}, ValueError, ("gate must be on the device of x",)),
    "gate_activation alone": (
        {"gate": lambda t: None, "gate_activation": "silu"},
        ValueError,
        ("there is no gate", "gate_activation='silu'", "Pass a gate"),
    ),
    "gate_first alone": (
        {"gate": lambda t: None, "gate_first": True},
        ValueError,
        ("there is no gate", "leave gate_first out"),
    ),
    "unknown gate_activation": (
        {"gate_activation": "gelu"},
        ValueError,
        ("gate_activation must be one of None, 'silu', 'sigmoid'", "got 'gelu'"),
    ),
    "groups beside scale": (
        {"group_cols": 4},
        ValueError,
        ("group_cols cannot be combined with pre_bias, scale, shift", "leave group_cols out"),
    ),
    "x integers": ({"x": lambda t: t.long()}, TypeError, ("x must be one of", "int64", ".to(")),
    "x complex": ({"x": lambda t: t.to(torch.complex64)}, TypeError, ("float32", "complex64")),
    "x bool": ({"x": lambda t: t > 0}, TypeError, ("x must", "torch.bool")),
    "x float8": ({"x": lambda t: t.to(torch.float8_e4m3fn)}, TypeError, ("float8_e4m3fn",)),
    "weight integers": ({"weight": lambda t: t.int()}, TypeError, ("weight must", "int32")),
    "bias complex": ({"bias": lambda t: t.to(torch.complex64)}, TypeError, ("bias", "complex64")),
    "x sparse": (
        {"x": lambda t: t.to_sparse()},
        TypeError,
        ("x must be a dense tensor", "sparse", ".to_dense()"),
    ),
    "x nested": (
        {"x": nested},
        TypeError,
        ("x must be a dense tensor", "nested", "to_padded_tensor"),
    ),
    "x not a tensor": (
        {"x": lambda t: t.tolist()},
        TypeError,
        ("x must be a torch.Tensor", "list"),
    ),
    "x none": ({"x": lambda t: None}, TypeError, ("x must be a torch.Tensor", "NoneType")),
    "weight a number": ({"weight": lambda t: 1.0}, TypeError, ("weight must be a", "float")),
    "weight elsewhere": (
        {"weight": elsewhere},
        ValueError,
        ("weight must be on the device of x", "got", ".to(x.device)"),
    ),
    "bias elsewhere": ({"bias": elsewhere}, ValueError, ("bias must be on the device of x",)),
    "pre_bias elsewhere": ({"pre_bias": elsewhere}, ValueError, ("pre_bias must be on",)),
    "no columns": (
        {"x": lambda t: t[:, :0], "residual": lambda t: t[:, :0]},
        ValueError,
        ("at least one column", "got shape (3, 0)"),
    ),
    "no dimensions": (
        {"x": lambda t: t[0, 0], "residual": lambda t: t[0, 0]},
        ValueError,
        ("at least one column", "got shape ()"),
    ),
    "unknown activation": (
        {"activation": "gelu_fast"},
        ValueError,
        ("activation must be one of", "'relu', 'silu', 'gelu', 'gelu_tanh'", "got 'gelu_fast'"),
    ),
    "misspelt activation": ({"activation": "sillu"}, ValueError, ("Did you mean 'silu'?",)),
    "activation a function": ({"activation": torch.relu}, (ValueError, TypeError), ("activation",)),
    "activation a list": ({"activation": ["relu"]}, (ValueError, TypeError), ("activation",)),
    "unknown rounding": (
        {"rounding": "twice"},
        ValueError,
        ("rounding must be one of 'once', 'llama', 'each'", "got 'twice'"),
    ),
    "eps nan": ({"eps": math.nan}, ValueError, ("eps must be finite", "got nan")),
    "eps beyond floats": ({"eps": 10**400}, ValueError, ("eps must be finite", "no float")),
    "eps infinite": ({"eps": math.inf}, ValueError, ("eps must be finite", "got inf")),
    "eps negative": ({"eps": -1e-6}, ValueError, ("eps must not be negative", "-1e-06")),
    "eps a string": ({"eps": "1e-5"}, TypeError, ("eps must be a Python number", "str")),
    "eps none": ({"eps": None}, TypeError, ("eps must be a Python number", "NoneType")),
    "eps a bool": ({"eps": True}, TypeError, ("eps must be a Python number", "bool")),
    "eps a tensor": ({"eps": torch.tensor(1e-5)}, TypeError, ("eps", "Tensor", ".item()")),
    "eps a list": ({"eps": [1e-5]}, TypeError, ("eps must be a Python number", "list")),
    "shift nan": ({"weight_shift": math.nan}, ValueError, ("weight_shift must be finite",)),
    "shift a string": ({"weight_shift": "1"}, TypeError, ("weight_shift must be a Python number",)),
    "shift a bool": ({"weight_shift": True}, TypeError, ("weight_shift must be a Python number",)),
    "shift without weight": (
        {"weight": lambda t: None, "weight_shift": 1.0},
        ValueError,
        ("there is no weight", "weight_shift=1.0", "Pass a weight"),
    ),
}
BAD_RESIDUAL = {
    "residual shape": (
        {"residual": lambda t: t[:2]},
        ValueError,
        ("residual must have the shape of x, (3, 12)", "got (2, 12)", "Expand or reshape"),
    ),
    "residual_gate shape": (
        {"residual_gate": lambda t: t[:2]},
        ValueError,
        ("residual_gate must broadcast to the shape of x, (3, 12)", "got (2, 12)"),
    ),
    "residual broadcast": ({"residual": lambda t: t[:1]}, ValueError, ("(3, 12)", "got (1, 12)")),
    "residual integers": ({"residual": lambda t: t.int()}, TypeError, ("residual must", "int32")),
    "residual elsewhere": (
        {"residual": elsewhere},
        ValueError,
        ("residual must be on the device",),
    ),
    "residual none": (
        {"residual": lambda t: None},
        TypeError,
        ("residual must be a torch.Tensor",),
    ),
}
CASES = [(operation, wrong) for operation in ("layer_norm", "add_rms_norm") for wrong in BAD]
CASES += [("add_layer_norm", wrong) for wrong in BAD_RESIDUAL]


@pytest.mark.parametrize("requires_grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize(("operation", "wrong"), CASES, ids=str)
def test_invalid_input_raises(operation, wrong, requires_grad, device):
    """Also after a valid call of the same kind, which is prepared and not checked again."""
    good = arguments(operation, device)
    run = getattr(rownorm, operation)
    changes, exception, words = (BAD | BAD_RESIDUAL)[wrong]
    if requires_grad:
        good["weight"].requires_grad_()
    run(**good)
    before = {name: t.detach().clone() for name, t in good.items()}
    changes = {n: c for n, c in changes.items() if n in good or n != "residual"}
    bad = good | {n: change(good[n]) if n in good else change for n, change in changes.items()}
    if elsewhere in changes.values() and device == "cpu":
        # cpu and meta have the same index, -1: they could be confused in the interpreter only.
        execute._forward_calls.clear()
    with pytest.raises(exception) as raised:
        run(**bad)
    message = str(raised.value)
    assert message.startswith(f"rownorm.{operation}: "), message
    for word in words:
        assert word in message
    for name, t in good.items():
        assert_same_bits(t.detach(), before[name])


FORMS = [
    wrong
    for wrong in BAD | BAD_RESIDUAL
    if any(word in wrong for word in ("scale", "shift", "gate", "group"))
]


@pytest.mark.parametrize("wrong", FORMS)
def test_nothing_is_launched(wrong, device, monkeypatch):
    """Where a scale does not broadcast, a gate has another shape, ...: the call is refused before it is prepared."""

    def launched(*_):
        raise AssertionError("a kernel was prepared")

    for name in ("_prepare_forward", "_prepare_backward"):
        monkeypatch.setattr(execute, name, launched)
    operation = "add_rms_norm" if wrong in BAD_RESIDUAL else "rms_norm"
    good = arguments(operation, device)
    changes, exception, _ = (BAD | BAD_RESIDUAL)[wrong]
    bad = good | {n: change(good[n]) if n in good else change for n, change in changes.items()}
    execute._forward_calls.clear()
    with pytest.raises(exception, match=f"^rownorm.{operation}: "):
        getattr(rownorm, operation)(**bad)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_valid_call_is_accepted(operation, device):
    """So the tests above do not pass for another reason."""
    getattr(rownorm, operation)(**arguments(operation, device), eps=0, weight_shift=-1)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize(
    ("shape", "normalized_shape", "weight_shape", "words"),
    [
        ((2, 3, 4), (4, 3), None, ("last dimensions of input", "(2, 3, 4)", "got (4, 3)")),
        ((2, 3, 4), (2,), None, ("last dimensions of input", "got (2,)")),
        ((4,), (3, 4), None, ("last dimensions of input", "(4,)", "got (3, 4)")),
        ((2, 4), (), None, ("at least one dimension", "got ()")),
        ((2, 3, 4), (3, 4), (12,), ("weight must have shape (3, 4)", "got (12,)")),
        ((2, 0), (0,), None, ("at least one column",)),
    ],
)
def test_functional_raises(name, shape, normalized_shape, weight_shape, words, device):
    x = torch.randn(shape, device=device)
    weight = None if weight_shape is None else torch.randn(weight_shape, device=device)
    with pytest.raises(ValueError, match=rf"^rownorm\.(functional\.)?{name}: ") as raised:
        getattr(rownorm.functional, name)(x, normalized_shape, weight)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize("operation", ["layer_norm", "rms_norm"])
def test_operators_raise(operation, device):
    """``torch.ops.rownorm`` is public too."""
    x, weight = torch.randn(3, 12, device=device), torch.randn(11, device=device)
    with pytest.raises(ValueError, match=rf"^rownorm\.{operation}: weight must have shape"):
        getattr(torch.ops.rownorm, operation)(x, weight)


def test_options_are_keywords(device):
    x = torch.randn(3, 12, device=device)
    with pytest.raises(TypeError):
        rownorm.rms_norm(x, None, None, 1e-6)
    with pytest.raises(TypeError, match="epsilon"):
        rownorm.rms_norm(x, epsilon=1e-6)


def test_more_than_2_to_the_31_columns_raise():
    x = torch.empty(1, 1, dtype=torch.float16).expand(1, (1 << 30) + 1)
    with pytest.raises(ValueError, match="at most 1073741824 columns"):
        rownorm.rms_norm(x)


def test_a_row_for_each_sample_needs_a_dimension_for_its_tokens(device):
    x, scale = torch.randn(2, 3, N_COLS, device=device), torch.randn(2, N_COLS, device=device)
    with pytest.raises(ValueError, match=r"For one row for each sample, pass scale.unsqueeze\(1\)"):
        rownorm.layer_norm(x, scale=scale)


@pytest.mark.parametrize(
    ("group_cols", "exception", "words"),
    [
        (5, ValueError, ("group_cols must divide the 12 columns of x", "got 5", "12 // n")),
        (0, ValueError, ("group_cols must divide", "got 0")),
        (4.0, TypeError, ("group_cols must be an integer or None", "float")),
    ],
    ids=str,
)
def test_groups_that_do_not_divide_the_row(group_cols, exception, words, device):
    x = torch.randn(3, N_COLS, device=device)
    with pytest.raises(exception) as raised:
        rownorm.rms_norm(x, gate=x, group_cols=group_cols)
    assert all(word in str(raised.value) for word in ("rownorm.rms_norm: ", *words))


def test_a_residual_gate_of_an_operator_without_a_residual(device):
    x = torch.randn(3, N_COLS, device=device)
    arguments = (x, *[None] * (len(INPUTS) - 1))
    inputs = Inputs(*arguments)._replace(residual_gate=x)
    with pytest.raises(ValueError, match=r"there is no residual. Call rownorm.add_rms_norm"):
        torch.ops.rownorm.norm_forward(*inputs, *Program(False, 1e-6))
