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


def test_everything_keeps_the_accesses_of_all_programs():
    _, recording = kinds(race_kernels.copy)
    assert {one.program for one in recording.launches[0].accesses} == {0, 2}
    _, recording = kinds(race_kernels.copy, everything=True)
    (launch,) = recording.launches
    assert [one.program for one in launch.accesses] == [0, 0, 1, 1, 2, 2]
    assert [one.program for one in launch.shown] == [0, 0, 2, 2]


def test_a_picture_shows_lanes_outside_and_accesses_without_a_lane():
    from rownorm_lab.interpreter.picture import picture

    _, recording = kinds(race_kernels.load_without_a_mask)
    drawn = "\n".join(picture(recording.launches[0]))
    assert "14 15! 16! 17!" in drawn
    _, recording = kinds(race_kernels.copy_nothing)
    drawn = "\n".join(picture(recording.launches[0]))
    assert "x            . . . . . . . ." in drawn
    assert "0 sectors of 32 bytes" in drawn


def test_the_interpreter_is_as_before_afterwards():
    from triton.runtime import interpreter

    methods = dict(vars(interpreter.InterpreterBuilder)), dict(vars(interpreter.GridExecutor))
    kinds(race_kernels.add_to_one_sum)
    assert methods == (
        dict(vars(interpreter.InterpreterBuilder)),
        dict(vars(interpreter.GridExecutor)),
    )


COLS = 100


def rows(*shape, dtype=torch.float32):
    return torch.randn(*shape, COLS, dtype=dtype, requires_grad=True)


def rms_norm(dtype):
    return rownorm.rms_norm(rows(5, dtype=dtype), rows(dtype=dtype))


def layer_norm(dtype):
    return rownorm.layer_norm(rows(5, dtype=dtype), rows(dtype=dtype), rows(dtype=dtype))


def fused(dtype):
    y, h = rownorm.add_layer_norm(
        *(rows(5, dtype=dtype), rows(5, dtype=dtype), rows(dtype=dtype), rows(dtype=dtype)),
        pre_bias=rows(dtype=dtype),
        activation="silu",
    )
    return torch.cat([y, h])


def modulated(dtype):
    """Scale and shift belong to samples of three rows, so that rows add to one gradient."""
    scale, shift = rows(2, 1, dtype=dtype), rows(2, 1, dtype=dtype)
    return rownorm.layer_norm(rows(2, 3, dtype=dtype), scale=scale, shift=shift, scale_shift=1.0)


def gated(dtype):
    x, gate = rows(5, dtype=dtype), rows(5, dtype=dtype)
    return rownorm.rms_norm(x, rows(dtype=dtype), gate=gate, gate_activation="silu")


FORMS = (rms_norm, layer_norm, fused, modulated, gated)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        pytest.param(
            *(form, dtype),
            marks=() if (form, dtype) == (rms_norm, torch.float32) else pytest.mark.exhaustive,
        )
        for form in FORMS
        for dtype in (torch.float32, torch.bfloat16)
    ],
)
def test_rownorms_kernels_have_no_race(regime, form, dtype):
    """Forward and backward, in every regime that the interpreter can run."""
    with forced(regime), recorded(orders=1, views_only=True) as recording:
        y = form(dtype)
        y.backward(torch.randn_like(y))
    assert len(recording.launches) >= 2
    assert not recording.findings, recording.findings
