"""Errors of every provider on easy and hard data."""

import math
from collections import Counter

import msgspec
import pytest

import rownorm
from rownorm_lab import providers
from rownorm_lab.data.case import FORMS
from rownorm_lab.measure import check as check_module
from rownorm_lab.measure.check import check
from rownorm_lab.providers import Refusal, provider

SMALL = {"shapes": ((4, 64), (3, 33)), "device": "cpu", "kernels": False}


@pytest.fixture(autouse=True)
def cpu_path(monkeypatch, without_interpreter):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    providers.all_providers()
    monkeypatch.setattr(providers, "_registry", dict(providers._registry))


def add_provider(name, fault, **options):
    """A provider of RMSNorm whose results go through ``fault``."""
    options = {"kind": "ours", "operations": ("rms_norm",), "directions": ("forward",)} | options

    def make(case, t):
        return lambda: fault(rownorm.rms_norm(t.x, t.weight, eps=case.eps))

    provider(name, about="of a test", **options)(make)


def rows(**options):
    options = {
        "operations": ("rms_norm",),
        "dtypes": ("fp32",),
        "directions": ("forward",),
    } | options
    return list(check(**(SMALL | options)))


def test_every_combination_has_a_result():
    made = rows(
        operations=("layer_norm", "add_rms_norm"),
        dtypes=("bf16", "fp32"),
        providers=("rownorm", "torch", "ceiling"),
        directions=("forward", "backward"),
        data_sets=("normal", "near_eps"),
    )
    assert len(made) == 2 * 2 * 2 * 2 * 2  # the ceiling computes nothing
    assert {row.status for row in made} == {"ok"}
    assert {row.provider: row.ours for row in made} == {"rownorm": True, "torch": False}
    for row in made:
        assert 0 <= row.mean_error <= row.max_error < 10
        assert row.max_ulp > 0
        assert row.worst
        if row.ours:
            assert 0 <= row.allowance_used <= 1
        assert msgspec.json.decode(msgspec.json.encode(row), type=check_module.CheckResult) == row


def test_rownorm_is_within_its_budget_on_all_data():
    made = rows(
        operations=("layer_norm", "add_layer_norm"),
        dtypes=("fp16", "fp32"),
        providers=("rownorm",),
        directions=("forward", "backward"),
    )
    assert [row for row in made if not row.ok] == []
    assert len(made) == 2 * 2 * 2 * 5


def test_over_the_budget():
    add_provider("wrong", lambda y: y * (1 + 1e-4))
    row, *_ = rows(providers=("wrong",))
    assert row.status == "over"
    assert not row.ok
    assert row.allowance_used > 1
    assert row.closest_ulp > row.accepted_ulp
    assert "y is off by" in row.why
    assert row.why.startswith(("4x64: ", "3x33: "))


def test_the_worst_shape_counts():
    add_provider("wrong when narrow", lambda y: y * 2 if y.shape[1] == 33 else y)
    row, *_ = rows(providers=("wrong when narrow",))
    assert row.status == "over"
    assert row.why.startswith("3x33: ")


def test_not_finite():
    add_provider("nan", lambda y: y * math.nan)
    row, *_ = rows(providers=("nan",))
    assert (row.status, row.max_error) == ("over", None)
    assert "not finite" in row.why


def test_failed_refused_and_missing():
    def crash(y):
        raise RuntimeError("boom\nand more")

    def only_narrow(y):
        if y.shape[1] > 40:
            raise Refusal("too wide")
        return y

    def refuse(y):
        raise Refusal("no")

    def is_broken(y):
        raise ImportError("no libmissing.so")

    add_provider("crash", crash)
    add_provider("broken", is_broken)
    add_provider("narrow", only_narrow)
    add_provider("refuse", refuse)
    add_provider("absent", refuse, needs=("surely_not_installed",), package="surely")
    made = {
        row.provider: row
        for row in rows(
            providers=("crash", "broken", "narrow", "refuse", "absent"), data_sets=("normal",)
        )
    }
    assert made["broken"].status == "missing"
    assert made["broken"].why == "cannot be imported: no libmissing.so"
    assert made["crash"].status == "failed"
    assert made["crash"].why == "4x64: RuntimeError: boom"
    assert not made["crash"].ok
    assert made["narrow"].status == "ok"  # where it takes part, it is right
    assert (made["refuse"].status, made["refuse"].why) == ("refused", "no")
    assert made["refuse"].ok
    assert made["absent"].status == "missing"
    assert made["absent"].why.endswith("pip install surely")
    (backward,) = rows(providers=("narrow",), directions=("backward",), data_sets=("normal",))
    assert (backward.status, backward.why) == ("refused", "narrow has no backward pass")


def test_every_form_has_a_result():
    """Only an add has a gate of the residual. Other forms than plain ones have one data set, unless some are named."""
    asked = {"operations": ("rms_norm", "add_layer_norm"), "forms": tuple(FORMS)}
    made = rows(providers=("rownorm", "torch"), directions=("forward", "backward"), **asked)
    assert [row for row in made if row.status != "ok"] == []
    found = Counter(row.norm for row in made if row.provider == "rownorm")
    modulated = {"rms_norm modulated": 2, "add_layer_norm modulated": 2}
    gated = {
        f"{name} {form}": 2 for name in asked["operations"] for form in FORMS if "gate" in form
    }
    del gated["rms_norm residual_gate"]
    assert found == {"rms_norm": 10, "add_layer_norm": 10} | modulated | gated
    few = rows(providers=("rownorm",), forms=("gate",), data_sets=("offset", "outliers"))
    assert [row.data for row in few] == ["offset", "outliers"]


def test_a_gate_that_is_ignored_is_over_the_budget():
    add_provider("ignores", lambda y: y, options=("gate", "gate_first", "modulation", "no_weight"))
    made = rows(providers=("ignores",), forms=("modulated", "gate", "gate_first"))
    assert {row.form: row.status for row in made} == dict.fromkeys(
        ("modulated", "gate", "gate_first"), "over"
    )


def test_unknown_names():
    with pytest.raises(ValueError, match="unknown provider 'rownrom'; known: rownorm, "):
        rows(providers=("rownrom",))
    with pytest.raises(ValueError, match="unknown data set 'hard'; known: normal, offset, "):
        rows(data_sets=("hard",))
    with pytest.raises(ValueError, match="unknown form 'gates'; known: plain, modulated, "):
        rows(forms=("gates",))


def test_kernels_are_checked_in_the_interpreter():
    """A real process with TRITON_INTERPRET=1, and the CPU path in this one."""
    made = rows(
        operations=("layer_norm",),
        dtypes=("bf16",),
        providers=("rownorm", "plain_loop"),
        data_sets=("offset",),
        directions=("forward", "backward"),
        kernels=True,
        shapes=((3, 40),),
    )
    assert [(row.provider, row.direction, row.status) for row in made] == [
        ("rownorm", "forward", "ok"),
        ("rownorm", "backward", "ok"),
        ("rownorm (interpreter)", "forward", "ok"),
        ("rownorm (interpreter)", "backward", "ok"),
        ("plain_loop (interpreter)", "forward", "ok"),
        ("plain_loop (interpreter)", "backward", "refused"),
    ], [row.why for row in made]
    # bf16 is rounded here and cut off there: the kernels really ran somewhere else.
    assert made[0].max_ulp <= 0.51 < made[2].max_ulp


def test_a_process_that_dies_is_an_error(monkeypatch):
    monkeypatch.setattr(check_module.sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="ended early: exit status 1"):
        rows(providers=("rownorm",), data_sets=("normal",), kernels=True)
