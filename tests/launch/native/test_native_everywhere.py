"""The tests of PyTorch's features once more, with norms through the C and through the C++."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.fake_driver import needs_compiler, needs_interpreter

TESTS = Path(__file__).parents[2]
FILES = (
    "pytorch/test_autocast.py",
    "pytorch/test_autograd.py",
    "pytorch/test_compile.py",
    "pytorch/test_dispatch.py",
    "pytorch/test_func.py",
    "pytorch/test_saved_tensors.py",
    "test_functional.py",
    "test_nn.py",
)


@pytest.mark.exhaustive
@needs_compiler
@needs_interpreter
@pytest.mark.parametrize("file", FILES)
def test_with_norms_in_c(file):
    plugins = ("-p", "support.norms_in_c", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", "-q", *plugins, str(TESTS / file)]
    paths = (str(TESTS), os.environ.get("PYTHONPATH"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        command, cwd=TESTS.parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-5000:]
