"""``Plan``: the regime and the launch settings of a problem."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Regime = Literal["tile", "resident", "cluster", "grid", "looped", "split"]
REGIMES: tuple[Regime, ...] = ("tile", "resident", "cluster", "grid", "looped", "split")


class SumsTile(NamedTuple):
    """The tile of ``column_sums``, the kernel that adds up backward's partial sums."""

    rows: int  # partial sums that are added at a time
    cols: int
    num_warps: int


@dataclass(frozen=True)
class Plan:
    """How a problem runs. Printing a plan shows its settings; ``reason`` says why they were chosen.

    A program works on tiles of ``block_rows`` x ``block_cols`` elements. Everything that is decided about a launch is
    here: ``launch/forward.py`` and ``launch/backward.py`` only pass it on.
    """

    regime: Regime
    block_rows: int  # 1 except in the tile regime
    block_cols: int
    num_warps: int
    cluster_size: int = 1  # programs that share a row; 1 except in the cluster regime
    # tile, resident, cluster: tiles that cover one program's columns of a row.
    # looped forward: chunks of a row, if the row fills them and they are few; else 0.
    chunks: int = 0
    programs_per_sm: int = 1  # backward, cluster: programs that run on each multiprocessor
    # tiles in flight: backward tile, resident, cluster, grid; forward cluster; forward tile, resident with samples
    num_stages: int = 1
    pipeline_depth: int = 0  # grid: rows between sending a row's sums and using them
    part_cols: int = 0  # looped, split, grid: columns of one program's part of a row
    n_programs: int = 0  # backward, cluster: programs, clusters or groups that share the rows
    prefetch_parameters: bool = False  # forward tile, resident: weight and bias loaded with the row
    fast_rstd: bool = False  # forward tile, resident, cluster: rsqrt and one Newton step
    maxnreg: int = 0  # limit of registers per thread; 0: none

    # What follows from the fields above and the problem. The regime's ``finish`` sets it, in every plan: it is neither
    # in a table nor forced.
    evict_first: bool = False  # forward: results are the first to leave L2
    # forward cluster: eviction policy of loads of x and the residual; "": none
    load_eviction: str = ""
    pack_x: bool = False  # forward cluster: two 16-bit numbers of x to a register
    pack_residual: bool = False  # forward cluster: the same of the residual
    vector_width: int = 1  # forward cluster: neighboring columns of one thread
    # forward cluster: chunks of weight and bias in registers, where there are both
    kept_chunks: int = 0
    sum_rows: bool = False  # backward tile: one sum for all rows of a tile
    load_dy_with_h: bool = False  # backward tile, resident, cluster: wait once for h and dy
    # backward tile, resident, cluster: the activation's slope in fewer instructions
    latency_hidden: bool = False
    # backward tile, resident, cluster: mu and rstd without a layout
    scalar_statistics: bool = False
    send_per_warp: bool = False  # backward cluster: warps send their own sums to the cluster
    # looped, split, grid: a power of two, at least the number of parts of a row
    block_parts: int = 1
    sums_tile: SumsTile | None = None  # backward: None where no kernel adds up partial sums
    # Forward tile, resident with samples: rows that a program computes, one tile after the other; else 0.
    rows_per_program: int = 0
    # Backward with samples.
    own_samples: bool = False  # tile, resident, cluster: every row has its own scale and shift
    spans_per_sample: int = 0  # parts that the rows of a sample are divided into
    # the tile of ``sample_sums``; None where it has nothing to add up
    sample_sums_tile: SumsTile | None = None

    source: str = "rules"  # "rules", "table for <device>" or "forced"
    reason: str = dataclasses.field(default="", compare=False)
    second: str = dataclasses.field(default="", compare=False)  # table: the runner-up, in words

    def adapted(self, reason: str, **changes: Any) -> Plan:
        """This plan with other settings, and the reason for them."""
        reasons = "; ".join(filter(None, (self.reason, reason)))
        return dataclasses.replace(self, **changes, reason=reasons)

    def __str__(self) -> str:
        columns = f"{self.chunks} * {self.block_cols}" if self.chunks > 1 else f"{self.block_cols}"
        settings = {
            f"{self.regime}: {self.block_rows} x {columns} tile": True,
            _count(self.num_warps, "warp"): True,
            f"{self.cluster_size} programs per row": self.cluster_size > 1,
            f"{self.part_cols} columns per part": self.part_cols,
            _count(self.n_programs, self._sharing): self.n_programs,
            f"{self.num_stages} stages": self.num_stages > 1,
            f"pipeline depth {self.pipeline_depth}": self.pipeline_depth,
            "parameters prefetched": self.prefetch_parameters,
            "fast rstd": self.fast_rstd,
            f"at most {self.maxnreg} registers": self.maxnreg,
        }
        words = (setting for setting, is_said in settings.items() if is_said)
        return ", ".join(words) + f" ({self.source})"

    @property
    def _sharing(self) -> str:
        """What ``n_programs`` counts."""
        if self.cluster_size > 1:
            return "cluster"
        return "group" if self.regime == "grid" else "program"


def in_words(settings: Mapping[str, Any]) -> str:
    """Settings as a plan prints them, with the programs on a multiprocessor, without where they come from."""
    words = str(Plan(**settings, source="")).removesuffix(" ()")
    programs = settings.get("programs_per_sm", 1)
    return words if programs == 1 else f"{words}, {programs} programs per SM"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
