"""Nsight Compute: how it is run. What it prints is read by ``ncu_csv.py`` and ``ncu_source.py``."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..data.profiles import ToolResult
from .ncu_csv import COUNTING, DENIED, PRINTING, REMEDY, REQUESTS, SECTORS, TIME
from .process import Ran, failure, run, work_command
from .request import ProfileRequest

FILE, LINES, REPORT = "ncu.csv", "ncu-source.csv", "ncu.ncu-rep"
PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute")
OURS = "^(forward|backward|column)_"  # the names of rownorm's kernels
NORMS = f"{OURS}|[Ll]ayer_?[Nn]orm|[Rr][Mm][Ss]_?[Nn]orm|RowwiseMoments|GammaBeta"
# Of a model or a script: every launch runs several times, once for each group of counters.
MOST_LAUNCHES = 40

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
BANDWIDTH = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
THEORETICAL = "sm__maximum_warps_per_active_cycle_pct"
REGISTERS = "launch__registers_per_thread"
METRICS = (
    *(TIME, READ, WRITTEN, BANDWIDTH, OCCUPANCY, THEORETICAL, REGISTERS),
    *(name.format(kind) for name in (SECTORS, REQUESTS) for kind in ("ld", "st")),
)
BASE_NAMES = ("--kernel-name-base", "function")
# Counters of each instruction, and the texts of the source files.
BY_LINE = ("--section", "SourceCounters", "--import-source", "yes")
SOURCE_PAGE = ("--csv", "--page", "source", "--print-source", "cuda,sass", *BASE_NAMES)
NO_KERNEL = "ncu met neither a norm, by its name, nor a Triton kernel of the script; see ncu.log"
NO_LINES = "no counters by source line"


def collect(request: ProfileRequest, folder: Path) -> ToolResult:
    """Run the work under ncu. Of a model or a script only norms and the script's own Triton kernels are profiled, and
    not all of their launches.
    """
    import torch

    if torch.version.hip or not torch.cuda.is_available():
        return ToolResult(
            "ncu", "missing", "torch sees no NVIDIA GPU: run this on a machine with one"
        )
    program = find_program()
    if program is None:
        why = "ncu is not in PATH nor in /usr/local/cuda/bin: install Nsight Compute"
        return ToolResult("ncu", "missing", why)
    return _Collecting(program, request, folder).result()


class _Collecting:
    """Makes a report, and prints its pages into files."""

    def __init__(self, program: str, request: ProfileRequest, folder: Path) -> None:
        self.program, self.request, self.folder = program, request, folder
        self.report = folder / REPORT

    def result(self) -> ToolResult:
        """What became of it. Without counters by line, those of whole kernels remain."""
        ran, why = self._counted(BY_LINE), ""
        said = ran.log.read_text(errors="replace")
        if not self.report.exists() and _could_be_the_section(said):
            why = f"{NO_LINES}: {_error(said)}"
            ran = self._counted(())
            said = ran.log.read_text(errors="replace")
        if DENIED in said:
            return ToolResult("ncu", "denied", REMEDY)
        if not self.report.exists():
            if "No kernels were profiled" in said:
                return ToolResult("ncu", "failed", NO_KERNEL)
            return ToolResult("ncu", "failed", failure(ran))
        printed = self._printed(FILE, *PRINTING)
        if printed.status:
            return ToolResult("ncu", "failed", failure(printed), [REPORT])
        files = [FILE, REPORT]
        if not why:
            why = self._lines()
            files[1:1] = [] if why else [LINES]
        if ran.status:
            return ToolResult("ncu", "failed", failure(ran), files)
        return ToolResult("ncu", "ok", why, files)

    def _counted(self, by_line: Sequence[str]) -> Ran:
        command = [self.program, *options(self.request), *by_line, "-f", "-o"]
        command += [str(self.report.with_suffix("")), *work_command("counters", self.folder)]
        return run(command, self.folder / "ncu.log")

    def _printed(self, name: str, *page: str) -> Ran:
        return run([self.program, "--import", str(self.report), *page], self.folder / name)

    def _lines(self) -> str:
        """Print the source page; why it has no lines."""
        printed = self._printed(LINES, *SOURCE_PAGE)
        text = printed.log.read_text(errors="replace")
        if not printed.status and '"Line No"' in text:
            return ""
        printed.log.unlink()
        if printed.status:
            return f"{NO_LINES}: {_error(text)}"
        return f"{NO_LINES}: no kernel has line numbers (CUDA C++ needs nvcc -lineinfo)"


def _could_be_the_section(said: str) -> bool:
    """Whether a run without a report may succeed without counters by line."""
    others = (DENIED, "No kernels were profiled", "The application returned an error code")
    return not any(one in said for one in others)


def _error(said: str) -> str:
    """The first error of ncu, or else the last line that it printed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("==ERROR==")]
    return (errors[:1] or lines[-1:] or ["ncu printed nothing"])[0].removeprefix("==ERROR== ")[:300]


def find_program() -> str | None:
    """The path of ncu, or None."""
    newest = sorted(str(path.parent) for path in Path(PLACES[1]).glob("*/ncu"))[-1:]
    paths = (None, PLACES[0], *newest)
    return next(filter(None, (shutil.which("ncu", path=path) for path in paths)), None)


def options(request: ProfileRequest) -> list[str]:
    """The options of ncu: counters of kernels that are launched between ``profiler.start`` and ``stop``."""
    found = [*COUNTING, "--metrics", ",".join(METRICS), *BASE_NAMES]
    if request.case is None:
        own = own_kernels(Path(request.script.path)) if request.script else []
        names = "|".join([NORMS, *(f"^{name}$" for name in own)])
        found += ["--kernel-name", f"regex:{names}", "--launch-count", str(MOST_LAUNCHES)]
    return found


def own_kernels(script: Path) -> list[str]:
    """The functions under ``@triton.jit`` in a script, and in the files beside it that it imports."""
    tree = _tree(script)
    beside = [script.parent / f"{name.replace('.', '/')}.py" for name in _imported(tree)]
    trees = [tree, *(_tree(file) for file in dict.fromkeys(beside) if file.is_file())]
    return [
        node.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list))
    ]


def _imported(tree: ast.Module) -> Iterator[str]:
    """The names of the modules that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _tree(file: Path) -> ast.Module:
    """The syntax of a file; of one that Python cannot read, that of an empty file."""
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _is_jit(decorator: ast.expr) -> bool:
    """Whether a decorator is triton.jit, with options or without, by any name that ends in jit."""
    name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
    return name.rpartition(".")[2] == "jit"
