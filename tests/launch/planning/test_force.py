"""``force``: settings that tests and tuners choose."""

import dataclasses

import torch

from rownorm import launch
from rownorm.launch import Plan, force
from support.planning import BLACKWELL, problem


def test_force_holds_within_its_context_only():
    asked = problem(n_cols=40)
    free = launch.plan(asked)
    with force(regime="split", block_cols=16):
        with force(part_cols=32):
            plan = launch.plan(asked)
        expected = ("split", 16, 32, "forced")
        assert (plan.regime, plan.block_cols, plan.part_cols, plan.source) == expected
        assert plan.reason == "forced"
        assert launch.plan(asked).part_cols != 32
    assert launch.plan(asked) == free


def test_force_changes_a_plan_with_all_options():
    asked = problem(n_rows=32768, n_cols=8192, dtype=torch.bfloat16, on=BLACKWELL, pre_bias=True)
    plan = launch.plan(asked)
    with force(num_warps=2):
        assert launch.plan(asked) == dataclasses.replace(plan, num_warps=2, source="forced")


def test_on_change_is_called_on_entry_and_exit(monkeypatch):
    calls = []
    launch.on_change(lambda: calls.append(1))
    with force(num_warps=2):
        assert len(calls) == 1
    assert len(calls) == 2


def test_a_plan_prints_its_switches():
    plan = Plan("resident", 1, 4096, 4, prefetch_parameters=True, fast_rstd=True, maxnreg=64)
    assert "parameters prefetched, fast rstd, at most 64 registers" in str(plan)
