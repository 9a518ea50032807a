"""Nsight Compute: how it is run. What it prints is read by ``ncu_csv.py``."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..data.profiles import ToolResult
from .ncu_csv import COUNTING, DENIED, REMEDY, REQUESTS, SECTORS, TIME
from .process import failure, run, work_command
from .request import ProfileRequest

FILE = "ncu.csv"
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


def collect(request: ProfileRequest, folder: Path) -> ToolResult:
    """Run the work under ncu. Of a model or a script only norms are profiled, and not all of their launches."""
    import torch

    if torch.version.hip or not torch.cuda.is_available():
        return ToolResult(
            "ncu", "missing", "torch sees no NVIDIA GPU: run this on a machine with one"
        )
    program = find_program()
    if program is None:
        why = "ncu is not in PATH nor in /usr/local/cuda/bin: install Nsight Compute"
        return ToolResult("ncu", "missing", why)
    file = folder / FILE
    command = [program, *options(file, only_norms=request.case is None)]
    ran = run([*command, *work_command("counters", folder)], folder / "ncu.log")
    printed = file.read_text(errors="replace") if file.exists() else ""
    said = printed + ran.log.read_text(errors="replace")
    if DENIED in said:
        return ToolResult("ncu", "denied", REMEDY, [FILE] if printed else [])
    if "No kernels were profiled" in said:
        return ToolResult("ncu", "failed", "ncu met no kernel with the name of a norm; see ncu.log")
    if ran.status:
        return ToolResult("ncu", "failed", failure(ran), [FILE] if printed else [])
    return ToolResult("ncu", "ok", files=[FILE])


def find_program() -> str | None:
    """The path of ncu, or None."""
    newest = sorted(str(path.parent) for path in Path(PLACES[1]).glob("*/ncu"))[-1:]
    paths = (None, PLACES[0], *newest)
    return next(filter(None, (shutil.which("ncu", path=path) for path in paths)), None)


def options(file: Path, only_norms: bool) -> list[str]:
    """The options of ncu: counters of kernels that are launched between ``profiler.start`` and ``stop``."""
    found = [*COUNTING, "--metrics", ",".join(METRICS)]
    found += ["--log-file", str(file), "--kernel-name-base", "function"]
    if only_norms:
        found += ["--kernel-name", f"regex:{NORMS}", "--launch-count", str(MOST_LAUNCHES)]
    return found
