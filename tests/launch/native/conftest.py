"""Fixtures: the extension with a fake driver, and with kernels that the interpreter runs."""

from support.native_fixtures import driver, eager_in_c, node  # noqa: F401
