"""Cases: bad values are refused by name; bytes and flops are those counted by hand."""

import subprocess
import sys

import msgspec
import pytest
import torch

from rownorm import inside
from rownorm_lab.data.case import ACTIVATIONS, DTYPES, GATE_ACTIVATIONS, ITEMSIZE, Case, torch_dtype
from rownorm_lab.providers.data import program_of


def case(**fields):
    return Case(**({"operation": "rms_norm", "rows": 4, "cols": 8} | fields))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("operation", "batch_norm"),
        ("direction", "sideways"),
        ("dtype", "fp8"),
        ("rows", 0),
        ("rows", 2.0),
        ("cols", -1),
        ("cols", True),
        ("residual_dtype", "fp32"),  # rms_norm has no residual
        ("activation", "tanh"),
        ("sample_rows", 3),  # there are 4 rows
        ("residual_gate", True),  # rms_norm has no residual
        ("gate_activation", "gelu"),
        ("gate_first", True),  # there is no gate
        ("eps", 0.0),
        ("eps", float("nan")),
    ],
)
def test_bad_values_are_named(field, value):
    with pytest.raises(ValueError, match=f"case: {field} "):
        case(**{field: value})


def test_a_case_from_json_is_checked_too():
    good = msgspec.json.encode(case())
    assert msgspec.json.decode(good, type=Case) == case()
    with pytest.raises(msgspec.ValidationError, match="cols must be"):
        msgspec.json.decode(good.replace(b'"cols":8', b'"cols":0'), type=Case)


def test_options_are_those_of_the_row_program():
    """A case lists activations without torch, so that help needs none."""
    assert ACTIVATIONS == inside.ACTIVATIONS
    assert (None, *GATE_ACTIVATIONS) == inside.OPTIONS["gate_activation"].values
    program = program_of(case(operation="layer_norm", activation="silu", eps=1e-3))
    assert program == inside.Program(True, 1e-3, activation="silu")


def test_dtypes():
    for name in DTYPES:
        assert torch_dtype(name).itemsize == ITEMSIZE[name]
    added = case(operation="add_rms_norm", dtype="bf16", residual_dtype="fp32")
    assert (added.torch_dtype, added.torch_residual_dtype) == (torch.bfloat16, torch.float32)
    assert case(operation="add_rms_norm", dtype="fp16").torch_residual_dtype == torch.float16


# 4 rows of 8 columns are 32 elements. Counted by hand: tensors of rows, then vectors of parameters.
@pytest.mark.parametrize(
    ("fields", "moved"),
    [
        ({"dtype": "bf16"}, 32 * 4 + 8 * 2),  # x, y; weight
        ({"dtype": "fp32"}, 32 * 8 + 8 * 4),
        ({"dtype": "fp32", "operation": "layer_norm"}, 32 * 8 + 2 * 8 * 4),
        ({"dtype": "fp32", "operation": "layer_norm", "bias": False}, 32 * 8 + 8 * 4),
        ({"dtype": "fp32", "operation": "layer_norm", "pre_bias": True}, 32 * 8 + 3 * 8 * 4),
        # dy, x, dx; weight in, its gradient out
        ({"dtype": "bf16", "direction": "backward"}, 32 * 6 + 2 * 8 * 2),
        # weight in; gradients of weight and bias out
        (
            {"dtype": "bf16", "direction": "backward", "operation": "layer_norm"},
            32 * 6 + 3 * 8 * 2,
        ),
        # weight, bias and pre_bias in, three gradients out
        (
            {
                "dtype": "bf16",
                "direction": "backward",
                "operation": "layer_norm",
                "pre_bias": True,
                "activation": "silu",
            },
            32 * 6 + 6 * 8 * 2,
        ),
        ({"dtype": "bf16", "direction": "both"}, 32 * 10 + 3 * 8 * 2),
        # x, y in bf16; residual, h in fp32; weight
        (
            {"operation": "add_rms_norm", "dtype": "bf16", "residual_dtype": "fp32"},
            32 * (2 * 2 + 2 * 4) + 8 * 2,
        ),
        # dy, dx in bf16; dh, h, dresidual in fp32; weight, dweight, dpre_bias
        (
            {
                "operation": "add_rms_norm",
                "direction": "backward",
                "dtype": "bf16",
                "residual_dtype": "fp32",
                "pre_bias": True,
            },
            32 * (2 * 2 + 3 * 4) + 3 * 8 * 2,
        ),
        # dy, dh, h in bf16, and one gradient of both x and residual; weight, dweight
        (
            {"operation": "add_rms_norm", "direction": "backward", "dtype": "bf16"},
            32 * 4 * 2 + 2 * 8 * 2,
        ),
        # fp16 is another dtype than bf16, though of as many bytes
        (
            {
                "operation": "add_rms_norm",
                "direction": "backward",
                "dtype": "bf16",
                "residual_dtype": "fp16",
            },
            32 * 5 * 2 + 2 * 8 * 2,
        ),
        # x, y; scale and shift of two samples
        ({"dtype": "bf16", "weight": False, "sample_rows": 2}, 32 * 4 + 4 * 8 * 2),
        # dy, x, dx; scale in, dscale and dshift out
        (
            {"dtype": "bf16", "direction": "backward", "weight": False, "sample_rows": 2},
            32 * 6 + 6 * 8 * 2,
        ),
        # also weight and bias in, which dscale needs, and their gradients out
        (
            {
                "dtype": "bf16",
                "direction": "backward",
                "operation": "layer_norm",
                "sample_rows": 2,
            },
            32 * 6 + (6 + 4) * 8 * 2,
        ),
        # x, gate, y; weight
        ({"dtype": "bf16", "gate_activation": "silu"}, 32 * 6 + 8 * 2),
        # dy, x, gate, dx, dgate; weight in, its gradient out
        (
            {"dtype": "bf16", "direction": "backward", "gate_activation": "silu"},
            32 * 10 + 2 * 8 * 2,
        ),
        # the same, and the bias in, which dgate needs, and its gradient out; not where the gate comes first
        (
            {"dtype": "bf16", "direction": "backward", "bias": True, "gate_activation": "silu"},
            32 * 10 + 4 * 8 * 2,
        ),
        (
            {
                "dtype": "bf16",
                "direction": "backward",
                "bias": True,
                "gate_activation": "silu",
                "gate_first": True,
            },
            32 * 10 + 3 * 8 * 2,
        ),
        # x, residual, y, h; scale, shift and residual_gate of two samples
        (
            {
                "operation": "add_layer_norm",
                "weight": False,
                "sample_rows": 2,
                "residual_gate": True,
            },
            32 * 8 + 6 * 8 * 2,
        ),
        # dy, dh, h, x, dx, dresidual; scale and residual_gate in, three gradients out
        (
            {
                "operation": "add_layer_norm",
                "direction": "backward",
                "weight": False,
                "sample_rows": 2,
                "residual_gate": True,
            },
            32 * 12 + 10 * 8 * 2,
        ),
    ],
)
def test_compulsory_bytes(fields, moved):
    assert case(**fields).compulsory_bytes == moved


@pytest.mark.parametrize(
    ("fields", "per_element"),
    [
        ({}, 4),  # square, add; rstd, weight
        ({"bias": True}, 5),
        ({"pre_bias": True}, 5),
        ({"operation": "layer_norm"}, 7),  # add; subtract, square, add; rstd, weight, bias
        ({"operation": "add_layer_norm"}, 8),
        ({"direction": "backward"}, 9),
        ({"direction": "backward", "operation": "layer_norm"}, 13),
        ({"direction": "backward", "pre_bias": True}, 11),
        ({"direction": "backward", "operation": "add_rms_norm", "pre_bias": True}, 11),
        ({"direction": "both"}, 13),
        ({"weight": False, "sample_rows": 4}, 6),  # 1 + scale, times, plus shift
        ({"direction": "backward", "weight": False, "sample_rows": 1}, 11),
        ({"gate_activation": "silu"}, 5),
        ({"direction": "backward", "gate_activation": "silu"}, 12),
    ],
)
def test_flops(fields, per_element):
    assert case(**fields).flops == 32 * per_element


def test_intensity_of_wide_fp16_rms_norm_is_about_one():
    assert case(rows=512, cols=4096, dtype="fp16").intensity == pytest.approx(1, rel=2e-3)


def test_names_and_keys():
    added = case(
        operation="add_rms_norm",
        residual_dtype="fp32",
        bias=True,
        pre_bias=True,
        activation="silu",
        name="somewhere",
    )
    assert added.variant == "add_rms_norm (fp32 residual, bias, pre_bias, silu)"
    assert added.key == f"{added.variant} forward bf16 4x8 eps=1e-05"
    assert case(operation="layer_norm", bias=False).variant == "layer_norm (no bias)"
    assert case(name="one").key == case(name="other").key
    assert len({case(eps=1e-5).key, case(eps=1e-6).key, case(direction="both").key}) == 3


def test_cases_and_suites_need_no_torch():
    """Cases, suites, records and statistics import no torch, once the import by the package is removed."""
    program = """
import sys, types, importlib.util
package = types.ModuleType("rownorm")
package.__path__ = importlib.util.find_spec("rownorm").submodule_search_locations
sys.modules["rownorm"] = package
import rownorm_lab.data.suites, rownorm_lab.data.records, rownorm_lab.data.statistics
assert "torch" not in sys.modules
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_a_residual_add_whose_sum_is_no_output():
    with_h, without = (
        Case(operation="add_rms_norm", rows=8, cols=16, dtype="bf16", returns_h=returned)
        for returned in (True, False)
    )
    assert with_h.compulsory_bytes - without.compulsory_bytes == 8 * 16 * 2
    assert without.variant == "add_rms_norm (no h)"
    assert with_h.key != without.key
    for wrong in ({"operation": "rms_norm"}, {"direction": "backward"}):
        with pytest.raises(ValueError, match="returns_h=False is for the forward pass of add_"):
            Case(**{"operation": "add_rms_norm", "rows": 1, "cols": 1, "returns_h": False} | wrong)
