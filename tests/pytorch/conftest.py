"""Fixtures: every way that a call can take through the host."""

from support.native_fixtures import driver, node, way  # noqa: F401
