"""A search without a GPU: see ``lab_support/tuning.py``."""

import pytest

from lab_support.tuning import H200, FakeClock
from rownorm_lab.commands.tune.journal import Journal
from rownorm_lab.commands.tune.search import Search


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def search(clock, tmp_path):
    """A search with the fake clock, in which nothing is left out unmeasured."""
    with Journal(tmp_path) as journal:
        yield Search(H200, journal, lambda study, several: [None] * len(several), clock.of)
