"""Trials of providers: one that works, and those that only seem to."""

import pytest
import torch

from rownorm_lab.data.suites import SUITES
from rownorm_lab.measure import trial
from rownorm_lab.providers import Refusal, all_providers


def test_the_case_of_a_trial_is_one_that_the_provider_offers():
    for provider in all_providers().values():
        assert provider.refusal(trial.trial_case(provider)) is None
    widths = {case.cols for suite in SUITES.values() for case in suite.cases()}
    assert trial.COLUMNS not in widths


@pytest.mark.parametrize("name", ["rownorm", "torch", "ceiling"])
def test_a_provider_that_works(name, without_interpreter):
    assert trial.failure(all_providers()[name]) is None


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ImportError("no libmissing.so"), "cannot be imported: no libmissing.so"),
        (RuntimeError("boom\nand more"), "a small call failed: RuntimeError: boom"),
        (Refusal("no compiler"), "a small call failed: Refusal: no compiler"),
    ],
)
@pytest.mark.parametrize("when", ["prepared", "called"])
def test_a_provider_that_fails(add_provider, error, words, when):
    def make(case, t):
        def call():
            raise error

        return call() if when == "prepared" else call

    add_provider("broken", make)
    assert trial.failure(all_providers()["broken"]) == words


def test_a_trial_in_a_process(monkeypatch):
    assert trial.failure_in_a_process("torch") is None
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "0")
        assert "a small call failed: " in trial.failure_in_a_process("plain_block")
    assert trial.failure_in_a_process("torch", 0.01) == "a small call did not end within 0.01 s"


def test_a_process_that_dies(monkeypatch):
    monkeypatch.setattr(trial.sys, "executable", "/bin/false")
    assert trial.failure_in_a_process("torch") == "its process ended with status 1"
