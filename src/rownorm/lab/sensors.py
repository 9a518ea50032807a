"""Clocks, temperature, power and throttling of a GPU, from the vendor's library where Python can import it.

Every question may fail on some device or driver; what is not answered is None, and nothing here ever raises.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, TypeVar

from .records import Clocks

Answer = TypeVar("Answer")

# Bits of NVML's reasons why clocks are lower than they could be. Idle, and clocks that someone set, are no throttling.
NVML_REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


def clocks(index: int = 0) -> Clocks | None:
    """What the library says now of torch's device ``index``; None without a GPU or a library."""
    import torch

    if not torch.cuda.is_available():
        return None
    return _amd_clocks(index) if torch.version.hip else _nvidia_clocks(index)


def asked_peak(index: int = 0) -> tuple[float, str] | None:
    """(bytes/s, source) of the memory by the vendor's library; None where it does not say."""
    import torch

    return _amd_peak(index) if torch.version.hip else _nvidia_peak(index)


def driver_version(index: int = 0) -> str:
    """The driver's version, or an empty string."""
    import torch

    if torch.version.hip:
        smi, handle = _library("amdsmi", "amdsmi_init"), _amd_handle(index)
        info = None if smi is None else _ask(lambda: smi.amdsmi_get_gpu_driver_info(handle))
        return str((info or {}).get("driver_version", ""))
    nvml = _library("pynvml", "nvmlInit")
    return "" if nvml is None else str(_ask(lambda: nvml.nvmlSystemGetDriverVersion()) or "")


# ---- NVIDIA ----


@cache
def _nvidia_handle(index: int) -> Any:
    """torch may see a part of the GPUs, in another order: they are told apart by their UUID."""
    import torch

    nvml = _library("pynvml", "nvmlInit")
    if nvml is None:
        return None
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    if uuid is None:
        return _ask(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    return _ask(lambda: nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))


def _nvidia_clocks(index: int) -> Clocks | None:
    nvml, handle = _library("pynvml", "nvmlInit"), _nvidia_handle(index)
    if nvml is None or handle is None:
        return None
    reasons = _ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0
    milliwatts = _ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    return Clocks(
        sm_mhz=_ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        memory_mhz=_ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        temperature_c=_ask(
            lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        ),
        power_w=None if milliwatts is None else milliwatts / 1000,
        throttled=throttle_reasons(reasons),
    )


def throttle_reasons(bits: int) -> list[str]:
    """NVML's bit field in words."""
    return [words for bit, words in NVML_REASONS.items() if bits & bit]


def _nvidia_peak(index: int) -> tuple[float, str] | None:
    nvml, handle = _library("pynvml", "nvmlInit"), _nvidia_handle(index)
    if nvml is None or handle is None:
        return None
    mhz = _ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM))
    bits = _ask(lambda: nvml.nvmlDeviceGetMemoryBusWidth(handle))
    if not mhz or not bits:
        return None
    return 2 * mhz * 1e6 * bits / 8, "NVML: memory clock x bus width"


# ---- AMD ----


@cache
def _amd_handle(index: int) -> Any:
    import torch

    smi = _library("amdsmi", "amdsmi_init")
    if smi is None:
        return None
    handles = _ask(lambda: smi.amdsmi_get_processor_handles()) or []
    at = _ask(lambda: torch.cuda._get_amdsmi_device_index(index))  # type: ignore[attr-defined]
    at = index if at is None else at
    return handles[at] if at < len(handles) else None


def _amd_clocks(index: int) -> Clocks | None:
    smi, handle = _library("amdsmi", "amdsmi_init"), _amd_handle(index)
    if smi is None or handle is None:
        return None

    def mhz(kind: str) -> int | None:
        info = _ask(lambda: smi.amdsmi_get_clock_info(handle, getattr(smi.AmdSmiClkType, kind)))
        value = (info or {}).get("clk", (info or {}).get("cur_clk"))
        return value if isinstance(value, int) else None

    power = _ask(lambda: smi.amdsmi_get_power_info(handle)) or {}
    watts = [power.get(name) for name in ("current_socket_power", "average_socket_power")]
    numbers = [float(one) for one in watts if isinstance(one, int | float)]
    celsius = _ask(
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
    smi, handle = _library("amdsmi", "amdsmi_init"), _amd_handle(index)
    if smi is None or handle is None:
        return None
    info = _ask(lambda: smi.amdsmi_get_gpu_vram_info(handle)) or {}
    gigabytes = info.get("vram_max_bandwidth")  # per second
    if not isinstance(gigabytes, int | float) or gigabytes <= 0:
        return None
    return gigabytes * 1e9, "amdsmi: vram_max_bandwidth"


# ---- both ----


@cache
def _library(module: str, start: str) -> ModuleType | None:
    """The vendor's module, started once; None where it cannot be imported or finds no driver."""

    def imported() -> ModuleType:
        library = importlib.import_module(module)
        getattr(library, start)()
        return library

    return _ask(imported)


def _ask(question: Callable[[], Answer]) -> Answer | None:
    try:
        return question()
    except Exception:  # each library has errors of its own, and none may end a measurement
        return None
