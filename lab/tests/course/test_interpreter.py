"""Kernels of the course in Triton's interpreter, in processes of their own."""

import os
import subprocess
import sys

import pytest
import torch

from lab_support.learning import put
from rownorm_course.catalog import exercises
from rownorm_lab.data.files import write_whole

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="for the interpreter")
TRIED = {2: "rmsnorm.py", 3: "layernorm.py", 4: "fusion.py", 5: "backward.py", 8: "wide.py"}
# Triton 3.6's interpreter with the error of NumPy 2.4, in whatever versions are here.
LOOP = """
import torch
import os
os.environ["TRITON_INTERPRET"] = "1"
import numpy
from rownorm_lab.interpreter.arithmetic import mend_scalars, mended
import triton
import triton.language as tl
from triton.runtime import interpreter

patch = interpreter._patch_lang_tensor

def refuse(self):
    raise TypeError("only 0-dimensional arrays can be converted to Python scalars")

def of_triton_36(tensor, scope):
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", refuse)

@triton.jit
def count_turns(out_ptr, n_cols, BLOCK: tl.constexpr):
    turns = 0
    for _ in range(0, n_cols, BLOCK):
        turns += 1
    tl.store(out_ptr, turns)

def turns():
    out = torch.zeros(1, dtype=torch.int32)
    count_turns[(1,)](out, 10, BLOCK=4)
    return out.item()

interpreter._patch_lang_tensor = of_triton_36
try:
    print(turns())
except interpreter.InterpreterError as error:
    print(error)
triton.__version__, numpy.__version__ = "3.6.0", "2.4.0"
with mended():
    print(turns())
mend_scalars()
mend_scalars()
print(turns())
"""

# Loads of one lane, whose other is 0: as a number, that is no other.
ONE_LANE = """
import torch
import rownorm_course.interpreter
import triton
import triton.language as tl
from rownorm_course.observe import observed

@triton.jit
def load_nothing(x_ptr, out_ptr, n):
    place = tl.program_id(0)
    lane = place + tl.arange(0, 1)
    tl.store(out_ptr, tl.load(x_ptr + place, mask=place < n, other=0.0))
    tl.store(out_ptr + 1 + lane, tl.load(x_ptr + lane, mask=lane < n, other=0))
    tl.store(out_ptr + 2, tl.load(x_ptr + place, mask=place < n))

x, out = torch.ones(1), torch.ones(3)
with observed() as seen:
    load_nothing[(1,)](x, out, 0)
print(out.tolist(), len(seen.unfilled))
"""


def python(*arguments, folder):
    """Run Python as a learner does, in a process that chooses the interpreter itself."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_loop_with_triton_36_and_numpy_24(tmp_path):
    (tmp_path / "loop.py").write_text(LOOP)  # Triton reads the source of a kernel from its file
    ran = python("loop.py", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    refused, *accepted = ran.stdout.splitlines()
    assert "0-dimensional" in refused
    assert accepted == ["3", "3"]  # mended in a block, and for the process


def test_other_of_one_lane_is_given_although_it_is_zero(tmp_path):
    (tmp_path / "lane.py").write_text(ONE_LANE)
    ran = python("lane.py", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split("\n")[0] == "[0.0, 0.0, nan] 1"


@pytest.mark.parametrize(
    ("number", "other"),
    [
        (2, "libdevice_and_autotune"),
        *(pytest.param(one, "", marks=pytest.mark.exhaustive) for one in TRIED),
    ],
)
def test_a_solution_tries_itself_without_a_gpu(number, other, tmp_path):
    """It prints small errors."""
    put(tmp_path, number, other, "also_right")
    ran = python(TRIED[number], folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stdout.splitlines() if "largest error" in line]
    assert lines
    assert max(float(line.split()[-1]) for line in lines) < 1e-4


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", TRIED)
def test_a_starter_says_what_is_to_be_written(number, tmp_path):
    for name, content in exercises()[number].starter().items():
        write_whole(tmp_path / name, content)
    assert "NotImplementedError" in python(TRIED[number], folder=tmp_path).stderr
