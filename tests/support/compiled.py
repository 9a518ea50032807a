"""Kernels compiled without a GPU, in a process of their own, because Triton's interpreter cannot compile."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TESTS = (
    ROOT / "tests",
    ROOT / "lab" / "tests",
)  # scripts import ``support`` and ``lab_support`` from them
_COMPILE = """
import json, sys, torch
from rownorm.launch import force, launcher, resources
from rownorm.program import Inputs, Program
compiled = []
compile_for = launcher.compile_for
def recorded(*arguments):
    compiled.append(compile_for(*arguments))
    return compiled[-1]
resources.compile_for = recorded
for n_cols, settings in json.loads(sys.argv[1]):
    x = torch.empty(4096, n_cols, dtype=torch.bfloat16, device="meta")
    with force(block_rows=1, num_stages=3, **settings):
        resources.compile_backward(*Inputs(x, None, None, x[0], x[0]), Program(True, 1e-5), resources.TARGETS["sm_90"])
print(json.dumps([kernel.asm["ptx"] for kernel in compiled if ".entry backward_resident" in kernel.asm["ptx"]]))
"""


def json_of(arguments: list[str], cache: Path) -> Any:
    """What a Python process prints, read as JSON. It compiles kernels: it runs without the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    paths = [*map(str, TESTS), os.environ.get("PYTHONPATH")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    command = [sys.executable, *arguments]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def backward_ptx(cases: list[tuple[int, dict]], cache: Path) -> list[str]:
    """The PTX for sm_90 of ``backward_resident`` for each (columns, settings), LayerNorm in bf16."""
    return json_of(["-c", _COMPILE, json.dumps(cases)], cache)
