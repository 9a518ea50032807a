"""Modules of frameworks that the development environment does not have: `make test-frameworks` installs them."""

import importlib
import os
from types import ModuleType

import pytest

HOW = "make test-frameworks"
ALL_ARE_THERE = os.environ.get("ROWNORM_FRAMEWORKS") == "1"


def framework(module: str) -> ModuleType:
    """The module, or a skip that says what to do. In `make test-frameworks` a missing module is an error."""
    if ALL_ARE_THERE:
        return importlib.import_module(module)
    return pytest.importorskip(module, reason=f"needs {module.partition('.')[0]}: {HOW}")
