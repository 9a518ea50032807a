"""Kernels compiled without a GPU, in processes of their own, because Triton's interpreter cannot compile.

One process has imported Triton without its interpreter; every job is a fork of it. A new process would take five
seconds to import everything and to hash Triton's library for the keys of its cache.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
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


# Reads jobs, runs each in a fork as Python runs its arguments, and answers with the exit status.
_SERVER = """
import json, os, runpy, sys
from pathlib import Path
from rownorm.launch import launcher, resources
from triton.runtime.cache import triton_key

def run(first, *rest):
    sys.argv = [first, *rest]
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv = list(rest)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")

triton_key()
for line in sys.stdin:
    arguments, environment, folder, files = json.loads(line)
    process = os.fork()
    if not process:
        for number, file in enumerate(files):
            os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), number)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        run(*arguments)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    """The process that runs jobs; it ends with this one."""
    command = [sys.executable, "-c", _SERVER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = subprocess.Popen(command, env=_environment(), **pipes)

    def stop() -> None:
        started.communicate()

    atexit.register(stop)
    return started


def _environment() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = [*map(str, TESTS), os.environ.get("PYTHONPATH")]
    return environment | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def json_of(arguments: list[str], cache: Path) -> Any:
    """What ``python ARGUMENTS`` prints, read as JSON. It compiles kernels: it runs without the interpreter."""
    environment = _environment() | {"TRITON_CACHE_DIR": str(cache)}
    server = _server()
    with tempfile.TemporaryDirectory() as folder:
        printed, errors = Path(folder) / "printed", Path(folder) / "errors"
        files = (os.devnull, str(printed), str(errors))
        server.stdin.write(json.dumps((arguments, environment, os.getcwd(), files)) + "\n")
        server.stdin.flush()
        status = server.stdout.readline().strip()
        assert status == "0", errors.read_text() if errors.exists() else "the process has ended"
        return json.loads(printed.read_text())


def backward_ptx(cases: list[tuple[int, dict]], cache: Path) -> list[str]:
    """The PTX for sm_90 of ``backward_resident`` for each (columns, settings), LayerNorm in bf16."""
    return json_of(["-c", _COMPILE, json.dumps(cases)], cache)
