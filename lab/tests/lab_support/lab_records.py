"""Records that could have been measured: a pretend H200, and a pretend CPU.

The time of a call is a start-up cost plus its bytes over a share of the bandwidth, with noise that all providers of a
round have in common and noise of their own.
"""

import math
import random

from rownorm_lab.data.case import Case
from rownorm_lab.data.records import Accuracy, Clocks, Environment, Method, Record

ROUNDS = 15
H200 = Environment(
    device="NVIDIA H200",
    kind="cuda",
    arch="sm_90",
    peak_bytes_per_second=4.8e12,
    peak_source="device database: NVIDIA H200 datasheet",
    host="Intel Xeon Platinum 8480+",
    platform="Linux-6.8 x86_64",
    python="3.12.3",
    torch="2.11.0+cu130",
    triton="3.6.0",
    rownorm="0.1.0",
    driver="580.65",
    versions={"liger-kernel": "0.6.2", "quack-kernels": "0.2.4"},
    settings={"TRITON_INTERPRET": "0"},
)
CPU = Environment(
    device="AMD EPYC 9654",
    kind="cpu",
    arch="x86_64",
    host="AMD EPYC 9654",
    platform="Linux-6.8 x86_64",
    python="3.11.9",
    torch="2.13.0",
    triton="3.7.1",
    rownorm="0.1.0",
)

# name: (start-up in µs, share of the ceiling at narrow and at wide rows, host µs, largest error in ulp)
PROVIDERS = {
    "rownorm": (1.6, 0.97, 0.96, 9.5, 0.52),
    "torch": (4.0, 0.55, 0.60, 11.0, 0.55),
    "torch.compile": (1.7, 0.95, 0.85, 41.0, 0.53),
    "liger": (1.6, 0.90, 0.70, 76.0, 0.58),
    "quack": (1.8, 0.93, 0.97, 43.0, 0.54),
    "plain_block": (1.9, 0.85, 0.35, 14.0, 0.61),
    "ceiling": (1.5, 1.00, 1.00, 8.0, 0.0),
}
WIDE = [(32768, 256), (32768, 4096), (16384, 16384), (4096, 65536)]
BATCHES = [(rows, 4096) for rows in (1, 8, 64, 512)]


def seconds_of(case: Case, provider: str, draw: random.Random, top: float = 4.2e12) -> list[float]:
    start, narrow, wide, *_ = PROVIDERS[provider]
    width = min(max((math.log2(case.cols) - 8) / 8, 0), 1)
    share = narrow + (wide - narrow) * width
    share *= 0.85 if case.direction != "forward" and provider != "ceiling" else 1
    ideal = start * 1e-6 + case.compulsory_bytes / (top * share)
    common = random.Random(f"{case.key}")
    return [
        ideal * common.lognormvariate(0, 0.01) * draw.lognormvariate(0, 0.006)
        for _ in range(ROUNDS)
    ]


def record(case: Case, provider: str, environment: Environment = H200, **changes) -> Record:
    """A good measurement, or what ``changes`` make of it."""
    draw = random.Random(f"{case.key} {provider}")
    host, ulp = PROVIDERS[provider][3:]
    on_cpu = environment.kind == "cpu"
    passes = {"forward": 1, "backward": 2, "both": 3}[case.direction]
    good = {
        "method": Method(
            timer="cpu_clock" if on_cpu else "cuda_graph",
            rotation=4,
            calls=20,
            rounds=ROUNDS,
            cold=not on_cpu,
        ),
        "seconds": seconds_of(case, provider, draw, 20e9 if on_cpu else 4.2e12),
        "host_seconds": []
        if on_cpu
        else [host * passes * draw.uniform(0.95, 1.1) * 1e-6 for _ in range(ROUNDS)],
        "peak_bytes": case.rows * case.cols * 2 * passes,
        "accuracy": None
        if provider == "ceiling"
        else Accuracy(max_error=ulp * 2e-2, mean_error=1e-3, max_ulp=ulp, worst="y"),
        "clocks": None if on_cpu else Clocks(sm_mhz=1980, memory_mhz=3201, temperature_c=48),
        "run": "20261115-120000",
        "time": "2026-11-15T12:00:00Z",
    }
    if changes.get("status", "ok") != "ok":
        good = {"run": good["run"], "time": good["time"]}
    return Record(case=case, provider=provider, environment=environment, **(good | changes))


def gpu_records() -> list[Record]:
    """Wide shapes in bf16, small batches in fp16; not everything went well."""
    kinds = [
        ("rms_norm", "forward", "bf16", WIDE),
        ("rms_norm", "backward", "bf16", WIDE),
        ("rms_norm", "forward", "fp16", BATCHES),
        ("layer_norm", "forward", "bf16", WIDE),
    ]
    made = []
    for operation, direction, dtype, shapes in kinds:
        for rows, cols in shapes:
            case = Case(operation=operation, direction=direction, rows=rows, cols=cols, dtype=dtype)
            made += [_of_provider(case, provider) for provider in PROVIDERS]
            made.append(record_of_missing(case, "flashinfer", "pip install flashinfer-python"))
    return made


def _of_provider(case: Case, provider: str) -> Record:
    match provider, case.cols, case.operation:
        case "liger", 65536, _:
            return record(case, provider, status="refused", why="rows wider than 65535 columns")
        case "plain_block", 65536, "rms_norm":
            return record(case, provider, status="failed", why="OutOfResources: shared memory")
        case "plain_block", 256, "layer_norm":
            bad = Accuracy(max_error=3.1, mean_error=0.4, max_ulp=812.0, worst="y")
            why = "y is off by 812 ulp; at most 2 are allowed"
            return record(case, provider, status="wrong", why=why, accuracy=bad)
        case "quack", 16384, "layer_norm":
            return record(case, provider, suspect=["spread of 40%"])
    return record(case, provider)


def record_of_missing(case: Case, provider: str, install: str) -> Record:
    return Record(
        case=case,
        provider=provider,
        status="missing",
        why=f"not installed: {install}",
        environment=H200,
        run="20261115-120000",
        time="2026-11-15T12:00:00Z",
    )


def cpu_records() -> list[Record]:
    """What a machine without a GPU gives: the CPU path, torch, the ceiling; no host cost, no peak."""
    cases = [
        Case(operation=operation, direction=direction, rows=rows, cols=cols, dtype="fp32")
        for operation in ("rms_norm", "layer_norm")
        for direction in ("forward", "backward")
        for rows, cols in ((64, 1024), (512, 1024), (512, 4096))
    ]
    return [
        record(case, provider, CPU)
        for case in cases
        for provider in ("rownorm", "torch", "ceiling")
    ]


def failed_records() -> list[Record]:
    """Nothing worked."""
    case = Case(operation="rms_norm", rows=8, cols=4096)
    return [
        record(case, "rownorm", status="failed", why="CUDA error: out of memory"),
        record(case, "torch", status="refused", why="no such operation"),
        record_of_missing(case, "liger", "pip install liger-kernel"),
    ]
