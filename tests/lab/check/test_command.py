"""``rownorm check``."""

import re

import pytest

from support.lab_commands import TWO_PROVIDERS, invoke

pytestmark = pytest.mark.usefixtures("command_line")

SMALL = ("--op", "rms_norm", "--dtype", "fp32", "--data", "normal", "--pass", "forward")


def test_check_passes():
    ran = invoke("check", *SMALL, *TWO_PROVIDERS)
    assert ran.exit_code == 0, ran.output
    assert re.search(r"^rownorm rms_norm forward\n  fp32 +normal ", ran.output, re.MULTILINE)
    assert re.search(r"^rownorm: (\d+) of \1 within budget", ran.output, re.MULTILINE)


def test_quick_check_is_brief():
    """One line, the worst, for each provider, operation and pass."""
    one = ("--op", "rms_norm", "--dtype", "fp32", "--pass", "forward", "--provider", "torch")
    ran = invoke("check", "--quick", *one)
    assert ran.exit_code == 0, ran.output
    assert len(re.findall(r"^  fp32 ", ran.output, re.MULTILINE)) == 1


def test_check_fails_when_rownorm_is_wrong(monkeypatch):
    from rownorm.lab import providers

    ours = providers.all_providers()["rownorm"]

    def wrong(case, t):
        call = ours.make(case, t)
        return lambda: call() * 1.001

    monkeypatch.setitem(providers._registry, "rownorm", ours._replace(make=wrong))
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # so that no other process is started
    ran = invoke("check", *SMALL, *TWO_PROVIDERS)
    assert ran.exit_code == 1
    assert "TOO LARGE" in ran.output
