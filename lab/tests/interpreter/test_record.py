"""Races, bounds and orders that the interpreter must see, and rownorm's own kernels, in which there are none."""

import pytest
import torch

import rownorm
from lab_support import race_kernels
from support.regimes import REGIMES, forced

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="for the interpreter")


def recorded(*arguments, **options):
    from rownorm_lab.interpreter.record import recorded

    return recorded(*arguments, **options)


def kinds(function, **options):
    torch.manual_seed(0)
    from rownorm_lab.interpreter.devices import instead_of_a_gpu

    with instead_of_a_gpu("cpu"), recorded(**options) as recording:
        function()
    return {one.kind for one in recording.findings}, recording


@pytest.mark.parametrize("function", race_kernels.WRONG)
def test_what_is_wrong_is_found(function):
    found, recording = kinds(function)
    assert found == race_kernels.WRONG[function], recording.findings


@pytest.mark.parametrize("function", race_kernels.RIGHT)
def test_what_is_right_is_left_alone(function):
    found, recording = kinds(function)
    assert not found, recording.findings


def test_a_finding_names_tensor_programs_and_lines():
    _, recording = kinds(race_kernels.let_the_last_add)
    (race,) = (one for one in recording.findings if one.kind == "read-write")
    assert (race.kernel, race.tensor, race.element) == ("last_adds", "partial", 0)
    assert race.programs == (0, 3)
    assert [site.access for site in race.sites] == ["store", "load"]
    assert race.sites[0].line < race.sites[1].line
    assert race.lanes == 15


def test_a_view_is_left_inside_of_its_storage():
    assert kinds(race_kernels.write_into_the_next_row)[0] == set()
    assert kinds(race_kernels.write_into_the_next_row, views_only=True)[0] == {"bounds"}


def test_who_wrote_what():
    _, recording = kinds(race_kernels.copy)
    x, y = recording.launches[0].uses
    assert (x.read, x.readers, x.written, x.writers) == (15, 3, 0, 0)
    assert (y.read, y.written, y.writers) == (0, 15, 3)
    assert [(run.first, run.last, run.programs) for run in y.runs] == [
        (0, 4, (0,)),
        (5, 9, (1,)),
        (10, 14, (2,)),
    ]


def test_the_interpreter_is_as_before_afterwards():
    from triton.runtime import interpreter

    methods = dict(vars(interpreter.InterpreterBuilder)), dict(vars(interpreter.GridExecutor))
    kinds(race_kernels.add_to_one_sum)
    assert methods == (
        dict(vars(interpreter.InterpreterBuilder)),
        dict(vars(interpreter.GridExecutor)),
    )


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(
    ("operation", "dtype"),
    [
        ("rms_norm", torch.float32),
        pytest.param("rms_norm", torch.bfloat16, marks=pytest.mark.exhaustive),
        pytest.param("layer_norm", torch.float32, marks=pytest.mark.exhaustive),
        pytest.param("layer_norm", torch.bfloat16, marks=pytest.mark.exhaustive),
    ],
)
def test_rownorms_kernels_have_no_race(regime, operation, dtype):
    """Forward and backward, in every regime that the interpreter can run."""
    x = torch.randn(5, 100, dtype=dtype, requires_grad=True)
    parameters = [torch.ones(100, dtype=dtype, requires_grad=True)]
    if operation == "layer_norm":
        parameters.append(torch.zeros(100, dtype=dtype, requires_grad=True))
    with forced(regime), recorded(orders=1, views_only=True) as recording:
        y = getattr(rownorm, operation)(x, *parameters)
        y.backward(torch.randn_like(y))
    assert len(recording.launches) >= 2
    assert not recording.findings, recording.findings
