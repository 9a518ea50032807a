"""Kernels as the compiler makes them for a GPU that need not be there."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_COMPILE = """
import json, sys, torch
from rownorm.launch import force, launcher, resources
from rownorm.program import Program
kept = []
compile_for = launcher.compile_for
def keep(*given):
    kept.append(compile_for(*given))
    return kept[-1]
resources.compile_for = keep
for n_cols, settings in json.loads(sys.argv[1]):
    x = torch.empty(4096, n_cols, dtype=torch.bfloat16, device="meta")
    with force(block_rows=1, num_stages=3, **settings):
        resources.compile_backward(x, None, None, x[0], x[0], Program(True, 1e-5), resources.TARGETS["sm_90"])
print(json.dumps([kernel.asm["ptx"] for kernel in kept if ".entry backward_resident" in kernel.asm["ptx"]]))
"""


def said(arguments: list[str], cache: Path) -> Any:
    """What Python prints, as JSON, where kernels are compiled: without the interpreter, and into a cache of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    command = [sys.executable, *arguments]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def backward_ptx(cases: list[tuple[int, dict]], cache: Path) -> list[str]:
    """``backward_resident`` for rows of so many bf16 columns with these settings, compiled for sm_90."""
    return said(["-c", _COMPILE, json.dumps(cases)], cache)
