"""One description of the options: ``Program``. Signatures, schemas, kernels and plain PyTorch follow it."""

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
import torch

import rownorm
from rownorm.ops import execute, norms
from rownorm.program import DEFAULT_EPS, Activation, Program, Rounding
from support import option_places
from support.option_places import FUNCTIONS, missing_places

OPTIONS = Program._fields[1:]
VALUES = {
    "eps": 1e-2,
    "weight_shift": 1.0,
    "activation": "relu",
    "rounding": "llama",
    "out_dtype": torch.float32,
}
SCHEMA_TYPES = {
    float: "float",
    Rounding: "str",
    Activation | None: "Optional[str]",
    torch.dtype | None: "Optional[int]",  # as PyTorch prints an optional ScalarType
}

needs_interpreter = pytest.mark.skipif(
    not execute.INTERPRETING, reason="binds kernels for the CPU, which needs Triton's interpreter"
)


def defaults_of(name):
    return {**Program._field_defaults, "eps": DEFAULT_EPS[name.removeprefix("add_")]}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_are_those_of_the_program(name):
    function = getattr(rownorm, name)
    keywords = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "pre_bias"
    ]
    assert tuple(parameter.name for parameter in keywords) == OPTIONS
    assert {parameter.name: parameter.default for parameter in keywords} == defaults_of(name)
    types, fields = get_type_hints(function), get_type_hints(Program)
    assert {option: types[option] for option in OPTIONS} == {
        option: fields[option] for option in OPTIONS
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_schemas_are_those_of_the_program(name):
    schema = getattr(torch.ops.rownorm, name).default._schema
    keywords = [argument for argument in schema.arguments if argument.kwarg_only]
    assert tuple(argument.name for argument in keywords) == OPTIONS
    assert {argument.name: argument.default_value for argument in keywords} == defaults_of(name)
    fields = get_type_hints(Program)
    for argument in keywords:
        assert str(argument.type) == SCHEMA_TYPES[fields[argument.name]]
    parameters = inspect.signature(getattr(rownorm, name)).parameters
    positional = [argument.name for argument in schema.arguments if not argument.kwarg_only]
    assert set(positional) | set(OPTIONS) == set(parameters)


@pytest.mark.parametrize("name", ["norm_forward", "norm_backward"])
def test_the_operators_of_autograd_take_a_whole_program(name):
    arguments = getattr(torch.ops.rownorm, name).default._schema.arguments
    names = [argument.name for argument in arguments]
    start = names.index("center")
    assert tuple(names[start : start + len(Program._fields)]) == Program._fields


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_pass_every_option_in_its_place(name, monkeypatch):
    passed = []
    monkeypatch.setattr(norms, "_norm", lambda *arguments: passed.append(arguments[-1]))
    values = {option: object() for option in OPTIONS}
    rows = (None, torch.zeros(1)) if name.startswith("add_") else (None,)
    getattr(rownorm, name)(*rows, **values)
    assert Program(*passed[0]) == Program("layer_norm" in name, **values)


@needs_interpreter
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_reaches_both_kernels_and_plain_pytorch(option):
    assert missing_places(option, VALUES[option]) == []


# An option that a test adds to a copy of the package: y = option_for_tests * activation(...).

ADDED_FIELD = {
    "program.py": [('    rounding: Rounding = "once"\n', "    option_for_tests: float = 1.0\n")]
}
# The other files that an option touches, beside the arithmetic of the kernels: after this text comes that text.
ADDED_ELSEWHERE = {
    "ops/norms.py": [
        ('    rounding: Rounding = "once",\n', "    option_for_tests: float = 1.0,\n"),
        ("weight_shift, activation, rounding", ", option_for_tests"),
    ],
    "ops/checks.py": [
        (
            '    _check_number(operation, "eps", program.eps)\n',
            '    _check_number(operation, "option_for_tests", program.option_for_tests)\n',
        )
    ],
    "reference.py": [
        ("y=activate(z, program.activation)", ".mul(program.option_for_tests)"),
        ("dz = dy.to(compute)", " * program.option_for_tests"),
    ],
    "ops/cpu.py": [
        ("y=reference.activate(z, program.activation)", ".mul(program.option_for_tests)"),
        ("dz, rstd = dy.to(row.dtype)", " * program.option_for_tests"),
    ],
    "ops/export.py": [
        ("y=reference.activate(z, program.activation)", ".mul(program.option_for_tests)")
    ],
    "kernels/bundles.py": [
        (
            '    ACTIVATION: Any  # "relu", "silu", "gelu", "gelu_tanh" or None\n',
            "    OPTION_FOR_TESTS: Any\n",
        )
    ],
}


def missing_in_copy(folder, *edits):
    """The places that lack the option ``option_for_tests`` in a copy of the package with these edits."""
    source = Path(rownorm.__file__).parent
    shutil.copytree(source, folder / "rownorm", ignore=shutil.ignore_patterns("__pycache__", "lab"))
    for file, insertions in (pair for edit in edits for pair in edit.items()):
        path = folder / "rownorm" / file
        text = path.read_text()
        for anchor, added in insertions:
            assert anchor in text, f"{file} has no {anchor!r}"
            text = text.replace(anchor, anchor + added)
        path.write_text(text)
    script = Path(option_places.__file__)
    ran = subprocess.run(
        [sys.executable, str(script), "option_for_tests", "2.0"],
        env=os.environ | {"PYTHONPATH": str(folder), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@needs_interpreter
def test_an_added_option_flows_from_the_public_functions_to_both_kernels(tmp_path):
    assert missing_in_copy(tmp_path, ADDED_FIELD, ADDED_ELSEWHERE) == []


@needs_interpreter
def test_every_place_that_lacks_an_added_option_is_named(tmp_path):
    missing = missing_in_copy(tmp_path, ADDED_FIELD)
    files = {place.split(":")[0].split(",")[0] for place in missing}
    assert files == set(ADDED_ELSEWHERE)
    assert [place for place in missing if "norms" in place] == [
        f"ops/norms.py: {name} has no keyword option_for_tests" for name in FUNCTIONS
    ]
