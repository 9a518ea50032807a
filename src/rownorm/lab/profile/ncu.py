"""Nsight Compute: how it is run, and what it prints with ``--csv``, as records: one for each kernel that it profiled.

Two layouts exist. Wide (``--page raw``): one line for each kernel, one column for each metric, and a line of units
below the header. Long (``--page details``): one line for each metric of each kernel.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..results.profiles import ToolResult
from .process import failure, run, work_command
from .request import Request

DENIED = "ERR_NVGPUCTRPERM"
FILE = "ncu.csv"
PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute")
OURS = "^(forward|backward|column)_"  # the names of rownorm's kernels
NORMS = f"{OURS}|[Ll]ayer_?[Nn]orm|[Rr][Mm][Ss]_?[Nn]orm|RowwiseMoments|GammaBeta"
MOST_LAUNCHES = (
    40  # of a model or a script: every launch runs several times, once for each group of counters
)

TIME = "gpu__time_duration.sum"
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
BANDWIDTH = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
THEORETICAL = "sm__maximum_warps_per_active_cycle_pct"
REGISTERS = "launch__registers_per_thread"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_{}.sum"
REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_{}.sum"
METRICS = (
    *(TIME, READ, WRITTEN, BANDWIDTH, OCCUPANCY, THEORETICAL, REGISTERS),
    *(name.format(kind) for name in (SECTORS, REQUESTS) for kind in ("ld", "st")),
)
REMEDY = (
    f"{DENIED}: the driver lets only administrators read GPU counters. Run ncu as root, or load the driver with "
    "NVreg_RestrictProfilingToAdminUsers=0"
)
SECONDS = {"ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "s": 1.0}
_METRIC, _UNIT, _VALUE = "Metric Name", "Metric Unit", "Metric Value"


class KernelRecord(NamedTuple):
    """One launch of one kernel. Metrics that are not numbers are left out."""

    id: int  # launches are numbered in the order in which they were profiled
    kernel: str
    metrics: dict[str, float]
    units: dict[str, str]

    @property
    def seconds(self) -> float | None:
        """The time of the launch; None if it was not collected, or in a unit that is not known."""
        scale = SECONDS.get(self.units.get(TIME, "ns"))
        return None if scale is None or TIME not in self.metrics else self.metrics[TIME] * scale

    def sectors_per_request(self, kind: str) -> float | None:
        """Sectors of a load or store instruction of a warp. kind: ld or st."""
        sectors, requests = (self.metrics.get(name.format(kind)) for name in (SECTORS, REQUESTS))
        return sectors / requests if sectors is not None and requests else None


def collect(request: Request, folder: Path) -> ToolResult:
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
    found = ["--csv", "--page", "raw", "--print-units", "base", "--log-file", str(file)]
    found += ["--profile-from-start", "off", "--kernel-name-base", "function"]
    found += ["--cache-control", "all", "--clock-control", "none", "--metrics", ",".join(METRICS)]
    if only_norms:
        found += ["--kernel-name", f"regex:{NORMS}", "--launch-count", str(MOST_LAUNCHES)]
    return found


def parse(text: str) -> list[KernelRecord]:
    """The launches in the order in which they ran.

    PermissionError if the driver denied the counters. ValueError, with the reason, if there is no table of ncu, or if
    its last line is cut off.
    """
    if DENIED in text:
        raise PermissionError(REMEDY)
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("==")]
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID","Process ID"')), None)
    if start is None:
        raise ValueError('not the CSV of ncu: no line begins with "ID","Process ID"')
    header, *rows = csv.reader(lines[start:])
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise ValueError(
                f"the table of ncu is cut off: line {number} has {len(row)} of {len(header)} values"
            )
    return _long(header, rows) if _METRIC in header else _wide(header, rows)


def _wide(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[KernelRecord]:
    units: dict[str, str] = {}
    if rows and not rows[0][0]:  # the line of units has no ID
        units = {name: unit for name, unit in zip(header, rows[0], strict=True) if unit}
        rows = rows[1:]
    is_metric = ["__" in name for name in header]
    records = []
    for row in rows:
        numbers = {
            name: number
            for name, value, wanted in zip(header, row, is_metric, strict=True)
            if wanted and (number := _number(value)) is not None
        }
        place = dict(zip(header, row, strict=True))
        own = {name: units[name] for name in numbers if name in units}
        records.append(KernelRecord(int(place["ID"]), place["Kernel Name"], numbers, own))
    return records


def _long(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[KernelRecord]:
    records: dict[int, KernelRecord] = {}
    for row in rows:
        place = dict(zip(header, row, strict=True))
        number = int(place["ID"])
        record = records.setdefault(number, KernelRecord(number, place["Kernel Name"], {}, {}))
        value = _number(place[_VALUE])
        if value is not None:
            record.metrics[place[_METRIC]] = value
            record.units[place[_METRIC]] = place[_UNIT]
    return list(records.values())


def _number(text: str) -> float | None:
    """A number that may have commas between thousands; None for other text."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
