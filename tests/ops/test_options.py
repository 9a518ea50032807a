"""One description of tensors and options: ``program``. Signatures, schemas, kernels and documents follow it."""

import inspect
import json
import re
from pathlib import Path
from typing import get_type_hints

import pytest
import torch

import rownorm
from rownorm import functional, nn, reference
from rownorm.ops import execute, norms
from rownorm.program import (
    ARGUMENTS,
    BACKWARD_INPUTS,
    DEFAULT_EPS,
    GROUP_COLS,
    INPUTS,
    RESULTS,
    ROWS_OF_H,
    WITH_RESIDUAL,
    Activation,
    GateActivation,
    Program,
    Rounding,
)
from rownorm.program import OPTIONS as DESCRIBED
from support import option_places
from support.edited_copy import run_in_copy
from support.option_places import FUNCTIONS, missing_places

OPTIONS = tuple(DESCRIBED)
MODE = "batch_invariant"  # a field that is no keyword of the public functions
GROUPS = "group_cols"  # a keyword that is no field
SCHEMA_TYPES = {
    float: "float",
    Rounding: "str",
    Activation | None: "Optional[str]",
    GateActivation | None: "Optional[str]",
    bool: "bool",
    torch.dtype | None: "Optional[int]",  # as PyTorch prints an optional ScalarType
}

needs_interpreter = pytest.mark.skipif(
    not execute.INTERPRETING, reason="binds kernels for the CPU, which needs Triton's interpreter"
)


def other_value(option):
    """A value that is not the default."""
    default, values = Program._field_defaults.get(option, 0.0), DESCRIBED[option].values
    return next((value for value in values if value != default), None) if values else default + 1.0


def defaults_of(name):
    return {**Program._field_defaults, "eps": DEFAULT_EPS[name.removeprefix("add_")]}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_are_those_of_the_program(name):
    function = getattr(rownorm, name)
    keywords = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in INPUTS
    ]
    assert keywords.pop().name == GROUPS
    assert tuple(parameter.name for parameter in keywords) == OPTIONS
    defaults = {parameter.name: parameter.default for parameter in keywords}
    assert defaults | {MODE: False} == defaults_of(name)
    types, fields = get_type_hints(function), get_type_hints(Program)
    assert {option: types[option] for option in OPTIONS} == {
        option: fields[option] for option in OPTIONS
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_have_the_tensors_of_the_program(name):
    function = getattr(rownorm, name)
    parameters = inspect.signature(function).parameters
    has_residual = name.startswith("add_")
    assert sorted(set(parameters) - {*OPTIONS, GROUPS}) == sorted(
        one for one in INPUTS if has_residual or one not in WITH_RESIDUAL
    )
    positional = [one for one, p in parameters.items() if p.kind is not p.KEYWORD_ONLY]
    assert positional == [
        one for one in ARGUMENTS if one in parameters and not INPUTS[one].is_keyword
    ]
    types = get_type_hints(function)
    for one in set(parameters) & set(INPUTS):
        is_required = one in ROWS_OF_H
        assert types[one] == (torch.Tensor if is_required else torch.Tensor | None)
        assert parameters[one].default is (inspect.Parameter.empty if is_required else None)


@pytest.mark.parametrize(
    "function", [functional.layer_norm, functional.rms_norm, nn.LayerNorm, nn.RMSNorm]
)
def test_what_torchs_signatures_add_is_an_option(function):
    parameters = inspect.signature(function).parameters.values()
    added = [one for one in parameters if one.kind is one.KEYWORD_ONLY]
    assert added
    hints = get_type_hints(function.__init__ if inspect.isclass(function) else function)
    for one in added:
        assert one.default == Program._field_defaults[one.name]
        assert hints[one.name] == get_type_hints(Program)[one.name]


def test_the_documents_have_every_keyword_with_its_meaning():
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    table = text.partition("| option | meaning |\n| --- | --- |\n")[2].partition("\n\n")[0]
    lines = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE))
    keywords = {name: one.meaning for name, one in INPUTS.items() if one.is_keyword}
    options = {name: one.meaning for name, one in DESCRIBED.items()}
    assert lines == keywords | options | {GROUPS: GROUP_COLS.meaning}


def test_every_option_and_every_tensor_is_described():
    assert ("center", *DESCRIBED, MODE) == Program._fields
    assert tuple(INPUTS) == reference.Gradients._fields
    assert reference.BackwardInputs._fields == BACKWARD_INPUTS
    assert reference.ForwardOutputs._fields == RESULTS
    assert tuple(INPUTS)[: len(ROWS_OF_H)] == ROWS_OF_H, "the rows of h come first"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_schemas_are_those_of_the_program(name):
    schema = getattr(torch.ops.rownorm, name).default._schema
    keywords = [argument for argument in schema.arguments if argument.kwarg_only]
    assert tuple(argument.name for argument in keywords) == (*OPTIONS, MODE)
    assert {argument.name: argument.default_value for argument in keywords} == defaults_of(name)
    fields = get_type_hints(Program)
    for argument in keywords:
        assert str(argument.type) == SCHEMA_TYPES[fields[argument.name]]
    parameters = inspect.signature(getattr(rownorm, name)).parameters
    positional = [argument.name for argument in schema.arguments if not argument.kwarg_only]
    assert {*positional, *OPTIONS, GROUPS} == set(parameters)


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
    assert missing_places(option, other_value(option)) == []


# An option that a test adds to a copy of the package: y = option_for_tests * activation(...).

ADDED_FIELD = {
    "program.py": [
        (
            "    ] = 0.0\n",  # of weight_shift
            '    option_for_tests: Annotated[float, Option("for tests")] = 1.0\n',
        )
    ]
}
# The other files that an option touches, beside the arithmetic of the kernels: after this text comes that text.
ADDED_ELSEWHERE = {
    "ops/norms.py": [
        ("    weight_shift: float = 0.0,\n", "    option_for_tests: float = 1.0,\n"),
        ("eps, weight_shift", ", option_for_tests"),
    ],
    "reference.py": [
        ("y = activate(z, program.activation)", ".mul(program.option_for_tests)"),
        ("dy = dy.to(compute)", " * program.option_for_tests"),
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
    arguments = [str(Path(option_places.__file__)), "option_for_tests", "2.0"]
    return json.loads(run_in_copy(folder, arguments, *edits, TRITON_INTERPRET="1"))


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
