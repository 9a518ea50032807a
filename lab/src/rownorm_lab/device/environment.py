"""The machine and its software versions, which every record holds."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib import metadata

import msgspec

from ..data.records import Environment
from .facts import cpu_name, describe
from .sensors import driver_version

# Environment variables that affect results or times. All that begin with PREFIX are recorded too.
VARIABLES = (
    *("TRITON_INTERPRET", "TRITON_DEFAULT_FP_FUSION", "TRITON_PTXAS_PATH", "DISABLE_PTXAS_OPT"),
    *("CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS"),
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
    *("TORCHINDUCTOR_MAX_AUTOTUNE", "TORCH_COMPILE_DISABLE", "ATEN_CPU_CAPABILITY"),
    *("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OMP_PROC_BIND", "OMP_PLACES", "MKL_NUM_THREADS"),
    *("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_BLOCKTIME", "LD_PRELOAD"),
)
PREFIX = "ROWNORM_"


def environment(versions: dict[str, str] | None = None, index: int = 0) -> Environment:
    """The environment of this process; ``versions`` are those of the providers' packages."""
    import torch

    import rownorm

    device = describe(index)
    return Environment(
        device=device.name,
        kind=device.kind,
        arch=device.arch,
        peak_bytes_per_second=device.peak_bytes_per_second,
        peak_source=device.peak_source,
        host=cpu_name(),
        platform=platform.platform(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        triton=version_of("triton"),
        rownorm=rownorm.__version__,
        driver="" if device.kind == "cpu" else driver_version(index),
        versions=versions or {},
        settings=_settings(device.kind, device.arch),
    )


def cpu_environment(versions: dict[str, str] | None = None) -> Environment:
    """The environment of a measurement on the CPU of a machine that may have a GPU."""
    here = environment(versions)
    if here.kind == "cpu":
        return here
    return msgspec.structs.replace(
        here,
        device=here.host,
        kind="cpu",
        arch="",
        peak_bytes_per_second=None,
        peak_source="unknown",
        driver="",
    )


def version_of(package: str) -> str:
    """The version of an installed package, or an empty string."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _settings(kind: str, arch: str) -> dict[str, str]:
    import torch

    own = sorted(name for name in os.environ if name.startswith(PREFIX))
    settings = {name: os.environ[name] for name in (*VARIABLES, *own) if os.environ.get(name)}
    if kind == "cpu":
        settings["threads"] = str(torch.get_num_threads())
    else:
        hip, cuda = torch.version.hip, torch.version.cuda
        settings["runtime"] = f"HIP {hip}" if hip else f"CUDA {cuda}"
        settings["fp_fusion"] = _contraction()
        settings |= _tables(arch)
    return settings


def _tables(arch: str) -> dict[str, str]:
    """The user's own table of plans, where there is one, and the Triton that the tables were measured with."""
    from rownorm.inside import tables

    file, triton = tables.own_file(arch), tables.measured_with(arch)
    own = {"own_table": str(file)} if file and file.exists() else {}
    return own | ({"table_triton": triton} if triton else {})


@cache
def _contraction() -> str:
    """Whether Triton fuses multiply and add; the default differs between versions."""
    try:
        from triton import knobs

        return "on" if knobs.language.default_fp_fusion else "off"
    except (ImportError, AttributeError):
        return os.environ.get("TRITON_DEFAULT_FP_FUSION", "unknown")
