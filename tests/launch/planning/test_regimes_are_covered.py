"""The lists of regimes outside the planner name every regime."""

import runpy
from pathlib import Path

from rownorm.launch.planning import REGIMES
from support.regimes import FORCED

ROOT = Path(__file__).parents[3]


def test_every_regime_is_forced_by_the_tests_of_kernels():
    assert set(FORCED) == set(REGIMES)
    assert all(settings["regime"] == regime for regime, settings in FORCED.items())


def test_every_regime_is_forced_by_same_plans():
    same_plans = runpy.run_path(str(ROOT / "tools" / "same_plans.py"))
    kinds = same_plans["kinds"](("sm_90",), quick=True)
    assert {kind.regime for kind, _ in kinds} == {None, *REGIMES}
