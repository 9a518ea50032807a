"""Facts about a device: from the database, else from the driver, else unknown."""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from .database import database, known
from .sensors import reported_peak


class DeviceFacts(NamedTuple):
    """One device. ``l2_bytes`` is the last cache before memory; cold inputs must exceed it."""

    name: str
    kind: Literal["cuda", "hip", "cpu"]
    arch: str
    sms: int | None
    l2_bytes: int | None
    memory_bytes: int
    peak_bytes_per_second: float | None
    peak_source: str
    peak_flops_fp32: float | None


def all_devices() -> list[DeviceFacts]:
    """Every GPU that torch sees; the CPU if there is none."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [_gpu(index) for index in range(count)] or [_cpu()]


def describe(index: int = 0) -> DeviceFacts:
    """The device that measurements run on: torch's GPU ``index``, or the CPU if there is none."""
    import torch

    return _gpu(index) if torch.cuda.is_available() else _cpu()


def facts_of(
    properties: Any, kind: Literal["cuda", "hip"], reported: tuple[float, str] | None
) -> DeviceFacts:
    """Facts from torch's device properties; ``reported`` is the peak (bytes/s, source) of the vendor's library."""
    entry = known(properties.name)
    peak, source = None, "unknown"
    if entry is not None:
        peak = float(entry.peak_bytes_per_second.value)
        source = database().sources[entry.peak_bytes_per_second.source]
    elif "MIG" in properties.name:
        source = "unknown: a partition of a GPU has a part of its bandwidth"
    else:
        peak, source = reported or _from_properties(properties, kind) or (None, "unknown")
    caches = [
        getattr(properties, "L2_cache_size", 0),
        entry.l2_bytes.value if entry and entry.l2_bytes else 0,
    ]
    return DeviceFacts(
        name=properties.name,
        kind=kind,
        arch=f"sm_{properties.major}{properties.minor}"
        if kind == "cuda"
        else properties.gcnArchName.split(":")[0],
        sms=properties.multi_processor_count,
        l2_bytes=max(caches) or None,
        memory_bytes=properties.total_memory,
        peak_bytes_per_second=peak,
        peak_source=source,
        peak_flops_fp32=float(entry.peak_flops_fp32.value)
        if entry and entry.peak_flops_fp32
        else None,
    )


def _from_properties(properties: Any, kind: str) -> tuple[float, str] | None:
    kilohertz = getattr(properties, "memory_clock_rate", 0)
    bits = getattr(properties, "memory_bus_width", 0)
    # On AMD the clock is a quarter of the data rate for HBM3 and half for other memory: the peak cannot be derived.
    if kind != "cuda" or not kilohertz or not bits:
        return None
    return 2 * kilohertz * 1e3 * bits / 8, "driver: memory clock x bus width"


def _gpu(index: int) -> DeviceFacts:
    import torch

    kind: Literal["cuda", "hip"] = "hip" if torch.version.hip else "cuda"
    properties = torch.cuda.get_device_properties(index)
    reported = None if known(properties.name) else reported_peak(index)
    return facts_of(properties, kind, reported)


def _cpu() -> DeviceFacts:
    return DeviceFacts(
        name=cpu_name(),
        kind="cpu",
        arch=platform.machine(),
        sms=None,
        l2_bytes=_last_level_cache(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        peak_bytes_per_second=None,
        peak_source="unknown",
        peak_flops_fp32=None,
    )


@cache
def cpu_name() -> str:
    """The CPU's name, from the operating system."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine() or "CPU"


def _last_level_cache() -> int | None:
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    sizes = []
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        found = re.fullmatch(r"(\d+)([KMG])", file.read_text().strip())
        if found:
            sizes.append(int(found[1]) * units[found[2]])
    return max(sizes, default=None)
