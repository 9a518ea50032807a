"""What Nsight Compute prints with ``--csv``, as records: one for each kernel that it profiled.

Two layouts exist. Wide (``--page raw``): one line for each kernel, one column for each metric, and a line of units
below the header. Long (``--page details``): one line for each metric of each kernel.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
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
    records: dict[int, KernelRecord] = {}
    cells = (_long if _METRIC in header else _wide)(header, rows)
    for launch, kernel, metric, unit, value in cells:
        record = records.setdefault(int(launch), KernelRecord(int(launch), kernel, {}, {}))
        if (metric_value := _number(value)) is not None:
            record.metrics[metric] = metric_value
            if unit:
                record.units[metric] = unit
    return list(records.values())


def _wide(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    """(ID, kernel, metric, unit, value); so below."""
    units: dict[str, str] = {}
    if not rows[0][0]:  # the line of units has no ID
        units = dict(zip(header, rows[0], strict=True))
        rows = rows[1:]
    for row in rows:
        place = dict(zip(header, row, strict=True))
        for name in header:
            if "__" in name:
                yield place["ID"], place["Kernel Name"], name, units.get(name, ""), place[name]


def _long(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    places = [header.index(name) for name in ("ID", "Kernel Name", _METRIC, _UNIT, _VALUE)]
    return ([row[place] for place in places] for row in rows)


def _number(text: str) -> float | None:
    """A number that may have commas between thousands; None for other text."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
