"""DTensors: sharding rules of the operators, on processes that form a gloo group."""

from support import sharding_checks
from support.ranks import run_on_ranks


def test_rules_on_four_ranks():
    """One test for all checks, because the processes take longer to start than the checks to run."""
    run_on_ranks(4, sharding_checks.run_all)
