"""For all tests of the course."""

import pytest

from rownorm_course import observe


@pytest.fixture(autouse=True)
def threads_of_other_tests(monkeypatch):
    """A grading process is new. This one has threads of the tests before, which are no learner's."""
    monkeypatch.setattr(observe, "THREADS", observe._threads())
