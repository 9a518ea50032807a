"""The lists of make same-code have every tensor, option and value of the row program."""

import json
import runpy
from pathlib import Path

import pytest
import torch

from rownorm.launch.device import DEVICES
from rownorm.launch.problem import Samples, forward_problem
from rownorm.program import INPUTS, OPTIONS, Inputs

TOOLS = Path(__file__).parents[1] / "tools"
CODE = runpy.run_path(str(TOOLS / "same_code.py"))
CASES = [CODE["Case"].of(fields) for fields in json.loads(CODE["CASES"].read_text())]


def tensors_and_options(cases):
    """The names of the tensors, and (name, value) of the options."""
    tensors = {name for case in cases for name in case.parameters.split("+")} | {"x"}
    tensors |= {"residual"} if any(case.residual_dtype for case in cases) else set()
    return tensors, {option for case in cases for option in case.options}


def test_the_cases_have_every_tensor_option_and_value():
    tensors, options = tensors_and_options(CASES)
    assert set(INPUTS) <= tensors
    assert {name for name in OPTIONS if name != "eps"} == {name for name, _ in options}
    for name in ("activation", "gate_activation", "gate_first", "rounding"):
        default = CODE["arguments"](CASES[0])[-1]._field_defaults[name]
        values = {(name, value) for value in OPTIONS[name].values if value != default}
        assert values <= options, name
    assert any(case.group_cols for case in CASES)
    assert any("scale" in case.parameters and case.samples is None for case in CASES)


def test_the_sample_has_scales_gates_and_groups():
    tensors, _ = tensors_and_options(CASES[::10])  # QUICK=1, in the Makefile
    assert {"scale", "shift", "gate"} <= tensors
    assert any(case.group_cols for case in CASES[::10])


def test_the_fixed_cases_are_in_the_list():
    assert set(CODE["fixed_cases"]()) <= set(CASES)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"parameters": "weight+scale+shift", "samples": 16}, {"samples": Samples(256, 16)}),
        ({"parameters": "weight+scale+shift"}, {"samples": Samples(1, 4096)}),
        ({"parameters": "weight", "group_cols": 512}, {"samples": Samples(1, 8), "n_cols": 512}),
        (
            {"parameters": "weight+gate", "gate_first": True},
            {"gate_dtype": torch.bfloat16, "gate_first": True, "samples": None},
        ),
        (
            {"parameters": "residual_gate", "samples": 4, "residual_dtype": "float32"},
            {"residual_gate": True, "residual_dtype": torch.float32, "samples": Samples(1024, 4)},
        ),
        ({"rounding": "each"}, {"rounds_each": True, "n_rows": 4096, "n_cols": 4096}),
    ],
)
def test_a_case_is_the_problem_that_it_names(fields, expected):
    case = CODE["Case"].of(
        {"operation": "rms_norm", "direction": "forward", "n_cols": 4096, **fields}
    )
    *tensors, program = CODE["arguments"](case)
    problem = forward_problem(Inputs(*tensors), program, DEVICES["sm_90"])
    assert {name: getattr(problem, name) for name in expected} == expected


def test_a_case_of_a_tensor_or_an_option_that_an_older_rownorm_lacks_is_left_out(monkeypatch):
    import rownorm.program as described

    def exists(fields):
        case = {"operation": "rms_norm", "direction": "forward", "n_cols": 64, **fields}
        return CODE["_exists"](CODE["Case"].of(case))

    every = (
        {"parameters": "weight+scale", "samples": 2},
        {"gate_first": True, "parameters": "gate"},
        {"rounding": "each"},
        {"group_cols": 32},
    )
    assert all(exists(fields) for fields in every)
    older = {name: one for name, one in INPUTS.items() if name not in ("scale", "gate")}
    monkeypatch.setattr(described, "INPUTS", older)
    monkeypatch.setattr(described, "ROUNDINGS", ("once", "llama"))
    monkeypatch.delattr(described, "GROUP_COLS")
    assert not any(exists(fields) for fields in every)
    assert exists({"rounding": "llama"})


@pytest.mark.parametrize("quick", [False, True])
def test_plans_are_compared_of_every_modulation(quick):
    plans = runpy.run_path(str(TOOLS / "same_plans.py"))
    found = [(kind, len(widths)) for kind, widths in plans["kinds"](("sm_90",), quick)]
    assert len({f"{kind}, {n_widths}" for kind, n_widths in found}) == len(found)  # the keys
    kinds = [kind for kind, _ in found]
    assert {kind.modulation for kind in kinds} == {"", *plans["MODULATIONS"]}
    devices = {"sm_90": DEVICES["sm_90"]}
    norm = next(
        kind for kind in kinds if kind.modulation == "gate" and kind.direction == "backward"
    )
    digests = {
        name: str(
            plans["digests"](
                norm._replace(modulation=name), [1152, 4096], devices, ["regime", "reason"]
            )
        )
        for name in ("", "gate", "scale and shift", "gate_first")
    }
    assert len(set(digests.values())) > 2
