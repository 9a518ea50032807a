"""The two values between a tensor and a kernel: a ``Problem`` says what is asked, a ``Plan`` how it is done."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from .cluster_capacity import SHARES, SIZES, resident_clusters
from .launcher import CAN_START_CLUSTERS

Direction = Literal["forward", "backward"]
Regime = Literal["tile", "resident", "cluster", "grid", "looped", "split"]
# What a tuned table may have rows of its own for, beside one activation. Backward of a pre_bias is one more sum.
OPTIONS = ("activation", "pre_bias")
REGIMES: tuple[Regime, ...] = ("tile", "resident", "cluster", "grid", "looped", "split")


class Device(NamedTuple):
    """What a plan needs to know of a device. ``arch`` is "sm_90", "gfx942", ... or "interpreter".

    clusters: how many of 2, 4, 8 and 16 programs run at once, with 1 program to an SM; with 2, 4 and 8, where that is
    known. Empty where there are no clusters.
    """

    name: str
    arch: str
    n_sms: int
    warp_size: int
    clusters: tuple[tuple[int, ...], ...] = ()

    def resident(self, cluster: int, programs_per_sm: int = 1) -> int:
        """How many clusters of that many programs run at once, with so many programs to an SM; 0 where none can."""
        if cluster == 1:
            return self.n_sms * programs_per_sm
        if not self.clusters or cluster not in SIZES:
            return 0
        known = zip(SHARES, self.clusters, strict=False)
        share, counts = max(pair for pair in known if programs_per_sm % pair[0] == 0)
        return programs_per_sm // share * counts[SIZES.index(cluster)]


INTERPRETER = Device("Triton interpreter", "interpreter", 4, 32)


@functools.cache
def device_of(index: int) -> Device:
    """The GPU of that index, asked once; the interpreter for -1, the index of the CPU."""
    if index < 0:
        return INTERPRETER
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip is not None:
        arch = properties.gcnArchName.split(":")[0]
        return Device(properties.name, arch, properties.multi_processor_count, 64)
    arch = f"sm_{properties.major}{properties.minor}"
    has_clusters = properties.major >= 9 and CAN_START_CLUSTERS
    clusters = resident_clusters(index) if has_clusters else ()
    return Device(properties.name, arch, properties.multi_processor_count, 32, clusters)


@dataclass(frozen=True)
class Problem:
    """Rows to be normalized, or whose gradients are wanted."""

    direction: Direction
    n_rows: int
    n_cols: int
    dtype: torch.dtype  # of x
    residual_dtype: torch.dtype | None
    center: bool
    n_column_sums: int  # backward: how many of dweight, dbias and dpre_bias are wanted
    device: Device
    activation: str | None = None
    pre_bias: bool = False  # forward: whether there is one

    @property
    def computes_in_fp64(self) -> bool:
        return torch.float64 in (self.dtype, self.residual_dtype)

    @property
    def option(self) -> str:
        """What it has beside a plain norm: one of OPTIONS, several joined by "+", or nothing."""
        more_sums = self.n_column_sums > 1 + self.center
        has = (self.activation is not None, self.pre_bias or more_sums)
        return "+".join(name for name, is_there in zip(OPTIONS, has, strict=True) if is_there)


@dataclass(frozen=True)
class Plan:
    """How a problem is run. Printing it shows the regime, the settings, and where they come from."""

    regime: Regime
    block_rows: int  # rows of one tile; 1 except in the tile regime
    block_cols: int  # columns of one tile
    num_warps: int
    cluster_size: int = 1  # programs that share a row; 1 except in the cluster regime
    # Tiles that hold a program's columns of a row: tile, resident, cluster. Forward looped: that a row fills, if few.
    chunks: int = 0
    programs_per_sm: int = 1  # backward, cluster: programs on each SM, together n_programs
    num_stages: int = 1  # tiles in flight: backward but looped and split; forward cluster, 1 or 2
    pipeline_depth: int = (
        0  # grid: rows from one whose sums are sent to the one that is finished then
    )
    part_cols: int = 0  # looped, split, grid: columns of one program's part of a row
    n_programs: int = 0  # backward, cluster: programs, clusters or groups that share the rows
    prefetch_parameters: bool = (
        False  # forward tile, resident: weight and bias are loaded along with the rows
    )
    fast_rstd: bool = (
        False  # forward but looped and split: rstd without calls, which want registers
    )
    maxnreg: int = 0  # of a thread, at most; 0: what the compiler finds best
    source: str = "rules"

    def __str__(self) -> str:
        columns = f"{self.chunks} * {self.block_cols}" if self.chunks > 1 else f"{self.block_cols}"
        words = [
            f"{self.regime}: {self.block_rows} x {columns} tile, "
            f"{self.num_warps} warp{'s' if self.num_warps > 1 else ''}"
        ]
        if self.cluster_size > 1:
            words.append(f"{self.cluster_size} programs to a row")
        if self.part_cols:
            words.append(f"{self.part_cols} columns per part")
        if self.n_programs:
            noun = (
                "cluster"
                if self.cluster_size > 1
                else "group"
                if self.pipeline_depth
                else "program"
            )
            words.append(f"{self.n_programs} {noun}{'s' if self.n_programs > 1 else ''}")
        if self.num_stages > 1:
            words.append(f"{self.num_stages} stages")
        if self.pipeline_depth:
            words.append(
                f"sums {self.pipeline_depth} row{'s' if self.pipeline_depth > 1 else ''} ahead"
            )
        if self.prefetch_parameters:
            words.append("weights loaded early")
        if self.fast_rstd:
            words.append("rstd without calls")
        if self.maxnreg:
            words.append(f"at most {self.maxnreg} registers")
        return ", ".join(words) + f" ({self.source})"
