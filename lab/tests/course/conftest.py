"""For all tests of the course."""

import pytest

from rownorm_course import process


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left():
    """The learner's processes are forked from one for each mode, which all tests share."""
    yield
    process.close()
