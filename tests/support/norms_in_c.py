"""A pytest plugin: without a GPU, every test calls norms through the C and then through the C++, with a fake driver."""

import pytest

from support.native_fixtures import driver, eager_in_c, node  # noqa: F401


@pytest.fixture(autouse=True)
def norms_in_c(eager_in_c):  # noqa: F811
    """The C or the C++ is installed during a test."""
