"""A ``Record`` is one provider on one case, measured or refused: one line of JSON that stands alone.

Records of one case that carry the same ``run`` were measured together: ``seconds[i]`` of two of them belong to the same
round, so their ratios are paired.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .cases import Case

SCHEMA = 1
Status = Literal["ok", "missing", "refused", "wrong", "failed"]
Timer = Literal["cuda_graph", "device_events", "cpu_clock"]


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """How the seconds came about. Records are compared only where this agrees."""

    timer: Timer
    rotation: int  # sets of inputs that the calls of a round go through
    calls: int  # calls in one round
    rounds: int
    cold: bool  # the inputs of a call are not in the cache


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and its software."""

    device: str  # "NVIDIA H200", or the CPU's name
    kind: Literal["cuda", "hip", "cpu"]
    arch: str = ""  # "sm_90", "gfx942", "x86_64"
    peak_bytes_per_second: float | None = None
    peak_source: str = ""  # where that figure comes from
    host: str = ""  # the CPU's name
    platform: str = ""
    python: str = ""
    torch: str = ""
    triton: str = ""
    rownorm: str = ""
    driver: str = ""
    versions: dict[str, str] = {}  # of the providers' packages that are here
    settings: dict[str, str] = {}  # what changes results or times: contraction, interpreter, ...


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """What the vendor's library said around the measurement; None where it was silent."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttled: list[str] = []  # reasons that were active


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """The gate before timing: errors against fp64, as multiples of one rounding of the output's dtype."""

    max_error: float  # largest |got - exact|, over every output
    mean_error: float
    max_ulp: float  # the same in units of the output dtype's spacing at the exact value's scale
    worst: str = ""  # which output: "y", "dx", "dweight", ...


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One provider on one case."""

    case: Case
    provider: str
    status: Status = "ok"
    why: str = ""  # for anything but ok: what to tell a reader
    method: Method | None = None
    seconds: list[float] = []  # device time of one call, one figure a round
    host_seconds: list[float] = []  # what the caller waits for one call, the device not waited for
    peak_bytes: int | None = None  # most memory alive during one call beyond its inputs
    accuracy: Accuracy | None = None
    environment: Environment
    clocks: Clocks | None = None
    suspicions: list[
        str
    ] = []  # reasons to doubt the figures: "faster than the peak", "spread 40 %"
    run: str = ""  # the invocation of bench that made it
    time: str = ""  # UTC, ISO 8601
    schema: int = SCHEMA

    @property
    def key(self) -> tuple[str, str]:
        """The case and the provider: what ``--resume`` skips."""
        return self.case.key, self.provider
