"""What Nsight Compute prints with ``--csv``, as records: one for each kernel that it profiled.

Two layouts exist. Wide (``--page raw``): one line for each kernel, one column for each metric, and a line of units
below the header. Long (``--page details``): one line for each metric of each kernel.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import NamedTuple

DENIED = "ERR_NVGPUCTRPERM"
# Options of ncu. COUNTING: counters of cold kernels between profiler.start and profiler.stop. PRINTING: as ``parse``
# reads them.
COUNTING = ("--profile-from-start", "off", "--cache-control", "all", "--clock-control", "none")
PRINTING = ("--csv", "--page", "raw", "--print-units", "base")
REMEDY = (
    f"{DENIED}: the driver lets only administrators read GPU counters. Run ncu as root, or load the driver with "
    "NVreg_RestrictProfilingToAdminUsers=0"
)
TIME = "gpu__time_duration.sum"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_{}.sum"
REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_{}.sum"
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
    if not rows or not {"ID", "Kernel Name"} <= set(header):
        raise ValueError("the table of ncu is cut off: it has no kernel")
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
