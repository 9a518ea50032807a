"""Clocks, temperature, power and throttling of a GPU, from the vendor's library (NVML or amdsmi) if it is installed.

Every query may fail on some device or driver. A failed query gives None; nothing here raises.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar

from ..data.records import Clocks

Answer = TypeVar("Answer")

# Bits of NVML's reasons for lowered clocks. Idling and clocks set by the user do not count as throttling.
NVML_REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


def clocks(index: int = 0) -> Clocks | None:
    """The present readings of torch's device ``index``; None without a GPU or a library."""
    import torch

    if not torch.cuda.is_available():
        return None
    return _amd_clocks(index) if torch.version.hip else _nvidia_clocks(index)


def reported_peak(index: int = 0) -> tuple[float, str] | None:
    """(bytes/s, source): peak memory bandwidth by the vendor's library; None if it is not reported."""
    import torch

    return _amd_peak(index) if torch.version.hip else _nvidia_peak(index)


def driver_version(index: int = 0) -> str:
    """The driver's version, or an empty string."""
    import torch

    if torch.version.hip:
        smi, handle = _amd(), _amd_handle(index)
        info = _query(lambda: smi.amdsmi_get_gpu_driver_info(handle)) or {}
        return str(info.get("driver_version", ""))
    return str(_query(lambda: _nvml().nvmlSystemGetDriverVersion()) or "")


# ---- NVIDIA ----


@cache
def _nvidia_handle(index: int) -> Any:
    """NVML's handle of torch's device. torch may see fewer GPUs in another order, so the UUID identifies it."""
    import torch

    nvml = _nvml()
    if nvml is None:
        return None
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    if uuid is None:
        return _query(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    return _query(lambda: nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))


def _nvidia_clocks(index: int) -> Clocks | None:
    nvml, handle = _nvml(), _nvidia_handle(index)
    if handle is None:
        return None
    reasons = _query(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0
    milliwatts = _query(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    return Clocks(
        sm_mhz=_query(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        memory_mhz=_query(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        temperature_c=_query(
            lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        ),
        power_w=None if milliwatts is None else milliwatts / 1000,
        throttled=throttle_reasons(reasons),
    )


def throttle_reasons(bits: int) -> list[str]:
    """The reasons in NVML's bit field, in words."""
    return [words for bit, words in NVML_REASONS.items() if bits & bit]


def _nvidia_peak(index: int) -> tuple[float, str] | None:
    nvml, handle = _nvml(), _nvidia_handle(index)
    mhz = _query(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM))
    bits = _query(lambda: nvml.nvmlDeviceGetMemoryBusWidth(handle))
    if not mhz or not bits:
        return None
    return 2 * mhz * 1e6 * bits / 8, "NVML: memory clock x bus width"


# ---- AMD ----


@cache
def _amd_handle(index: int) -> Any:
    import torch

    smi = _amd()
    handles = _query(lambda: smi.amdsmi_get_processor_handles()) or []
    at = _query(lambda: torch.cuda._get_amdsmi_device_index(index))  # type: ignore[attr-defined]
    at = index if at is None else at
    return handles[at] if at < len(handles) else None


def _amd_clocks(index: int) -> Clocks | None:
    smi, handle = _amd(), _amd_handle(index)
    if handle is None:
        return None

    def mhz(kind: str) -> int | None:
        info = _query(lambda: smi.amdsmi_get_clock_info(handle, getattr(smi.AmdSmiClkType, kind)))
        value = (info or {}).get("clk", (info or {}).get("cur_clk"))
        return value if isinstance(value, int) else None

    power = _query(lambda: smi.amdsmi_get_power_info(handle)) or {}
    watts = [power.get(name) for name in ("current_socket_power", "average_socket_power")]
    numbers = [float(one) for one in watts if isinstance(one, int | float)]
    celsius = _query(
        lambda: smi.amdsmi_get_temp_metric(
            handle, smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        )
    )
    return Clocks(
        sm_mhz=mhz("GFX"),
        memory_mhz=mhz("MEM"),
        temperature_c=celsius,
        power_w=numbers[0] if numbers else None,
    )


def _amd_peak(index: int) -> tuple[float, str] | None:
    smi, handle = _amd(), _amd_handle(index)
    info = _query(lambda: smi.amdsmi_get_gpu_vram_info(handle)) or {}
    gigabytes = info.get("vram_max_bandwidth")  # per second
    if not isinstance(gigabytes, int | float) or gigabytes <= 0:
        return None
    return gigabytes * 1e9, "amdsmi: vram_max_bandwidth"


# ---- both ----


@cache
def _library(module: str, start: str) -> Any:
    """The vendor's module, initialized once. None, of which every query fails, if there is no module or no driver."""

    def imported() -> Any:
        library = importlib.import_module(module)
        getattr(library, start)()
        return library

    return _query(imported)


_nvml = partial(_library, "pynvml", "nvmlInit")
_amd = partial(_library, "amdsmi", "amdsmi_init")


def _query(question: Callable[[], Answer]) -> Answer | None:
    try:
        return question()
    except Exception:  # each library has its own errors, and none may end a measurement
        return None
