"""Fixtures: the extension in C++."""

from support.native_fixtures import node  # noqa: F401
