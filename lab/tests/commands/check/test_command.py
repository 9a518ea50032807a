"""``rownorm check``."""

import re

import pytest

from lab_support.lab_commands import TWO_PROVIDERS, invoke

pytestmark = pytest.mark.usefixtures("command_line")

NORM = ("--op", "rms_norm", "--dtype", "fp32", "--data", "normal", "--pass", "forward")
SMALL = (*NORM, "--form", "plain")


def test_check_passes():
    ran = invoke("check", *SMALL, *TWO_PROVIDERS)
    assert ran.exit_code == 0, ran.output
    assert re.search(r"^rownorm rms_norm forward\n  fp32 +normal ", ran.output, re.MULTILINE)
    assert re.search(r"^rownorm: (\d+) of \1 results are accurate", ran.output, re.MULTILINE)
    assert max(map(len, ran.output.splitlines())) <= 100


def test_forms_have_headings_of_their_own():
    ran = invoke("check", *NORM, "--provider", "torch")
    assert ran.exit_code == 0, ran.output
    headings = re.findall(r"^torch (.*) forward$", ran.output, re.MULTILINE)
    forms = ("modulated", "gate", "gate_first")
    assert headings == ["rms_norm", *(f"rms_norm {form}" for form in forms)]


def test_quick_check_shows_the_worst_of_each_dtype():
    one = ("--op", "rms_norm", "--pass", "forward", "--provider", "torch")
    ran = invoke("check", "--quick", *one)
    assert ran.exit_code == 0, ran.output
    assert re.findall(r"^  (bf16|fp32) ", ran.output, re.MULTILINE) == ["bf16", "fp32"]


def test_a_named_provider_that_cannot_be_checked_is_a_usage_error(add_provider):
    add_provider("absent", None, needs=("surely_not_installed",), package="surely")
    for name, why in (("absent", "pip install surely"), ("ceiling", "it computes no norm")):
        ran = invoke("check", *SMALL, "--provider", name)
        assert ran.exit_code == 2
        assert f"{name} cannot be checked: " in ran.output
        assert why in ran.output


def test_a_check_of_nothing_is_a_usage_error(add_provider):
    def is_broken(case, t):
        raise ImportError("no libmissing.so")

    add_provider("broken", is_broken)
    ran = invoke("check", *SMALL, "--provider", "broken")
    assert ran.exit_code == 2
    assert "broken: missing: cannot be imported: no libmissing.so" in ran.output
    assert "nothing was checked" in ran.output


def test_check_fails_when_rownorm_is_wrong(monkeypatch):
    from rownorm_lab import providers

    ours = providers.all_providers()["rownorm"]

    def wrong(case, t):
        call = ours.make(case, t)
        return lambda: call() * 1.001

    monkeypatch.setitem(providers._registry, "rownorm", ours._replace(make=wrong))
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # so that no other process is started
    ran = invoke("check", *SMALL, *TWO_PROVIDERS)
    assert ran.exit_code == 1
    assert "TOO LARGE" in ran.output
