"""Measure launch settings on this GPU and write the table that plans are taken from.

    python benchmarks/tune.py --out sm_90.json
    python benchmarks/tune.py --out new.json --update sm_90.json --dtypes bfloat16 --residual float32
    python benchmarks/tune.py --out new.json --update sm_90.json --dtypes bfloat16 --option activation

Every candidate is compiled first, in parallel; then each is timed as ``rownorm bench`` does it: device time from a CUDA
graph over inputs larger than L2. The fastest settings for each width become a row of the table.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import multiprocessing
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton

from rownorm.lab.cases import DTYPES, Case, torch_dtype
from rownorm.lab.machine import Machine, machine_of
from rownorm.lab.timing import Flush, GraphRounds
from rownorm.launch import device_of, force
from rownorm.launch.plan.capacity import next_power_of_2
from rownorm.launch.plan.tile import MOST_CHUNKS
from rownorm.launch.problem import OPTIONS
from rownorm.ops import execute
from rownorm.program import ACTIVATIONS, Program
from rownorm.reference import BackwardInputs

WIDTHS = (128, 256, 512, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192)
WIDTHS += (12288, 16384, 32768, 65536, 131072, 262144)
ELEMENTS = 1 << 28  # of one tensor
MOST_ROWS = 32768
FINALISTS = 6  # settings that are measured twice
FEW_ROWS = 8  # settings that are equal with many rows are told apart with these
FEW_COPIES = 64
NEARLY = 0.997  # of the fastest is equal: no more than runs differ by
ACTIVATION = "silu"  # what the option "activation" is tuned with


class Study(NamedTuple):
    """One row of the table to be."""

    direction: str
    center: bool
    dtype: torch.dtype
    n_cols: int
    residual: torch.dtype | None = None
    option: str = ""  # one of OPTIONS, an activation of its own, or none

    @property
    def n_rows(self) -> int:
        return min(MOST_ROWS, ELEMENTS // self.n_cols)

    @property
    def activation(self) -> str | None:
        name = ACTIVATION if self.option == "activation" else self.option
        return name if name in ACTIVATIONS else None

    def case(self, n_rows: int) -> Case:
        """What the lab calls this, with so many rows."""
        names = {torch_dtype(name): name for name in DTYPES}
        norm = "layer_norm" if self.center else "rms_norm"
        return Case(
            operation=norm if self.residual is None else f"add_{norm}",
            direction=self.direction,
            rows=n_rows,
            cols=self.n_cols,
            dtype=names[self.dtype],
            residual_dtype=None if self.residual is None else names[self.residual],
            pre_bias=self.option == "pre_bias",
            activation=self.activation,
        )

    @property
    def vector(self) -> int:
        """Columns of which a thread has 16 bytes; of the wider rows, if there are two kinds."""
        return 16 // max(dtype.itemsize for dtype in (self.dtype, self.residual) if dtype)


def candidates(study: Study) -> Iterator[dict[str, Any]]:
    """Settings worth trying."""
    forward = study.direction == "forward"
    if study.n_cols <= (32768 if forward else 8192):
        for block_cols, chunks in _tilings(study):
            yield from _tiles(study, block_cols, chunks)
    is_shared = study.n_cols > 8192 if forward else study.n_cols >= 4096
    if is_shared and device_of(0).clusters:
        yield from _clusters(study)
    if study.n_cols >= 16384 and not forward:
        yield from _grids(study)
    yield from _loops(study)


def _loops(study: Study) -> Iterator[dict[str, Any]]:
    """Rows that are read again, in chunks."""
    itemsize = study.dtype.itemsize + (study.residual.itemsize if study.residual else 0)
    sizes = [(1024, 4), (2048, 8), (2048, 16)]  # columns of a chunk, warps
    narrowest, limits = 12288, {}
    if study.direction == "forward":
        sizes += [(1024, 2), (1024, 8), (2048, 2), (2048, 4), (4096, 8), (4096, 16), (4096, 32)]
        sizes += [(8192, 8), (8192, 16), (8192, 32), (16384, 16), (16384, 32)]
        if study.residual:
            sizes += [(32 * study.vector * num_warps, num_warps) for num_warps in (4, 8, 16, 32)]
        narrowest = 8192 // itemsize
        limits = {"pre_bias": (40, 64), "gelu": (80,)}  # registers, so that more programs fit an SM
    for block_cols, num_warps in dict.fromkeys(sizes):
        if study.n_cols < max(block_cols, narrowest):
            continue
        looped = {"regime": "looped", "block_rows": 1, "block_cols": block_cols}
        looped |= {"num_warps": num_warps, "programs_per_sm": 8}
        yield looped
        for registers in limits.get(study.option, ()) if num_warps == 8 else ():
            yield {**looped, "maxnreg": registers}


def _tilings(study: Study) -> Iterator[tuple[int, int]]:
    """(columns of a tile, tiles in a row): one tile, or several where that wastes less or frees registers sooner."""
    forward = study.direction == "forward"
    whole = next_power_of_2(study.n_cols)
    if whole <= (32768 if forward else 8192):
        yield whole, 1
    # What a warp loads at once: with it no two warps share a row.
    narrow = 32 * study.vector
    few = [narrow] if study.n_cols in (2 * narrow, 4 * narrow) else []
    # Tiles with 16 bytes of the wider rows for every thread of so many warps.
    mixed = [narrow * num_warps for num_warps in (2, 4, 8, 16)] if study.residual else []
    shares = [whole // 2, whole // 4, whole // 8]
    for block_cols in dict.fromkeys((*few, *shares, *mixed)):
        chunks = -(-study.n_cols // block_cols)
        is_even = chunks * block_cols == study.n_cols
        wastes_less = forward and chunks * block_cols < whole
        if (
            1 < chunks <= MOST_CHUNKS
            and (is_even or wastes_less)
            and (block_cols >= 512 or block_cols in few + mixed)
        ):
            yield block_cols, chunks


def _tiles(study: Study, block_cols: int, chunks: int) -> Iterator[dict[str, Any]]:
    """Whole rows in one program."""
    for block_rows in (1, 2, 4, 8, 16, 32):
        for num_warps in (1, 2, 4, 8, 16, 32):
            per_thread = block_rows * chunks * block_cols // (32 * num_warps)
            if not study.vector <= per_thread <= (64 if block_rows > 1 else 128):
                continue
            vectors = block_rows * block_cols / (32 * num_warps * study.vector)
            if vectors < 1 / 2:
                continue  # less than 8 bytes for every thread
            if block_rows > 1 and block_rows * chunks * block_cols > 8192:
                continue
            regime = "tile" if block_rows > 1 else "resident"
            tile = {"regime": regime, "block_rows": block_rows, "num_warps": num_warps}
            tile["block_cols"] = block_cols
            if study.direction == "forward":
                yield {**tile, "prefetch_parameters": True, "fast_rstd": True}
                if vectors >= 1:
                    yield tile
                    yield {**tile, "prefetch_parameters": True}
            elif 8 <= per_thread <= 40:
                yield from _pipelines(tile, chunks * block_cols, study)


def _clusters(study: Study) -> Iterator[dict[str, Any]]:
    """Rows shared by the programs of a cluster: in tiles that give a thread 8, 16, 32 or 64 bytes."""
    forward = study.direction == "forward"
    most_bytes = 65536 if forward else 8192 * study.dtype.itemsize
    vector = 16 // study.dtype.itemsize
    for cluster in (1, 2, 4, 8, 16):
        share = -(-study.n_cols // cluster)
        if not most_bytes // 16 < share * study.dtype.itemsize <= most_bytes:
            continue
        for num_warps in (4, 8, 16) if forward else (1, 2, 4, 8, 16):
            for lanes in (16, 32, 64, 128):
                block_cols = lanes * num_warps * vector
                per_thread = -(-share // block_cols) * block_cols // (32 * num_warps)
                if not 16 <= per_thread <= (64 if forward else 48):
                    continue
                one = {"regime": "cluster", "block_rows": 1, "block_cols": block_cols}
                one |= {"num_warps": num_warps, "cluster_size": cluster}
                if forward:
                    yield from _passages(one)
                elif cluster > 1:
                    yield from _pipelines(one, share, study)


def _grids(study: Study) -> Iterator[dict[str, Any]]:
    """Rows shared by programs all over the GPU: 16 KiB of each tensor on an SM, three or four times in flight."""
    n_sms = device_of(0).n_sms
    for num_warps, programs_per_sm in ((2, 4), (4, 2), (8, 1), (8, 2), (4, 4), (8, 3)):
        shares = max(programs_per_sm, 4) if study.residual else programs_per_sm
        block_cols = next_power_of_2(
            16384 // study.dtype.itemsize // shares // (2 if study.residual else 1)
        )
        for stages in (3, 4):
            if -(-study.n_cols // block_cols) <= n_sms * programs_per_sm:
                one = {"regime": "grid", "block_rows": 1, "block_cols": block_cols}
                one |= {"num_warps": num_warps, "programs_per_sm": programs_per_sm}
                yield {**one, "num_stages": stages, "pipeline_depth": 2}


def _passages(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Forward of a cluster: a cluster to a row, or as many as the SMs hold, which load the next row ahead."""
    most = 64 // one["num_warps"]
    for registers in (0, 64, 80, 128):
        yield {**one, "num_stages": 1, "maxnreg": registers}
    pairs = ((0, 1), (0, most // 4), (80, most * 3 // 8), (128, most // 4))
    for registers, programs_per_sm in dict.fromkeys(pairs):
        if programs_per_sm:
            ahead = {"num_stages": 2, "maxnreg": registers, "programs_per_sm": programs_per_sm}
            yield {**one, **ahead}


def _pipelines(tile: dict[str, Any], width: int, study: Study) -> Iterator[dict[str, Any]]:
    """Backward of a tile: how many programs on an SM, and how many tiles in flight in each."""
    clustered, itemsize = "cluster_size" in tile, study.dtype.itemsize
    per_element = 2 * itemsize if study.residual is None else itemsize + 2 * study.residual.itemsize
    pairs = ((1, 8), (1, 12), (2, 4), (2, 8), (4, 2), (4, 3), (4, 4), (8, 1), (8, 2), (16, 1))
    for num_warps, programs_per_sm in pairs:
        if num_warps != tile["num_warps"]:
            continue
        # 128 registers a thread are too few for two fp32 rows and two sums.
        if num_warps == 16 and itemsize == 4 and study.center:
            continue
        most_warps = 8 if width > 24 * 32 * num_warps else 12
        if clustered and num_warps * programs_per_sm > most_warps and num_warps < 16:
            continue  # too many registers for that many programs, and a cluster that has to wait waits for all
        for stages in (3, 4, 5) if clustered else (3, 4) if itemsize == 2 else (1, 3):
            tile_bytes = tile["block_rows"] * width * per_element
            if (stages - 1) * programs_per_sm * tile_bytes <= 200 << 10:
                yield {**tile, "programs_per_sm": programs_per_sm, "num_stages": stages}


def prepared(study: Study, n_rows: int, copies: int) -> tuple[Any, Any, list[Any], int]:
    """(call, ceiling, sets of inputs, bytes one call must move)."""
    program = Program(study.center, 1e-5, activation=study.activation)
    shape, options = (n_rows, study.n_cols), {"device": "cuda", "dtype": study.dtype}
    weight = torch.randn(study.n_cols, **options)
    bias = torch.randn(study.n_cols, **options) if study.center else None
    pre_bias = torch.randn(study.n_cols, **options) if study.option == "pre_bias" else None
    adds = study.residual is not None
    rows = [torch.randn(shape, **options) for _ in range(copies)]
    beside = [torch.randn_like(x, dtype=study.residual) if adds else None for x in rows]
    moved = study.case(n_rows).compulsory_bytes
    if study.direction == "forward":

        def forward(one: Any) -> Any:
            return execute.forward(*one, pre_bias, weight, bias, program, False)

        pairs = list(zip(rows, beside, strict=True))
        return forward, _ceiling(study, moved), pairs, moved
    inputs = []
    for x, residual in zip(rows, beside, strict=True):
        _, h, mu, rstd = execute.forward(x, residual, pre_bias, weight, bias, program, True)
        inputs.append((x if h is None else h, torch.randn_like(x), residual, mu, rstd))
    own_stream = adds and study.residual != study.dtype
    wanted = (True, own_stream, pre_bias is not None, True, study.center)

    def backward(one: Any) -> Any:
        h, dy, dh, mu, rstd = one
        given = BackwardInputs(dy, dh, h, pre_bias, weight, bias, mu, rstd)
        return execute.backward(given, program, adds, wanted)

    return backward, _ceiling(study, moved), inputs, moved


def _ceiling(study: Study, moved: int) -> Any:
    """PyTorch's elementwise kernel moving as many bytes."""
    if study.residual is None and study.direction == "forward":
        return lambda one: torch.neg(one[0])
    if study.residual is None:
        return lambda one: torch.add(one[0], one[1])
    a, b = torch.zeros(2, moved // (3 * study.dtype.itemsize), dtype=study.dtype, device="cuda")
    return lambda _: torch.add(a, b)


def compile_all(jobs: list[tuple[Study, dict[str, Any]]]) -> None:
    """Fill Triton's cache on disk. What does not compile is left for the measurement to report."""
    for study, settings in jobs:
        try:
            with force(**settings):
                call, _, inputs, _ = prepared(study, n_rows=64, copies=1)
                call(inputs[0])
        except Exception as error:
            print(f"cannot compile {study} {settings}: {type(error).__name__}", file=sys.stderr)


def seconds_of(call: Any, inputs: list[Any], flush: Flush, rounds: int, repeats: int = 1) -> float:
    """Device time of one call, a median. A round goes through all inputs so many times."""
    seconds = []
    with torch.cuda.stream(torch.cuda.Stream()):
        graph = GraphRounds([functools.partial(call, one) for one in inputs], repeats, flush)
        for _ in range(rounds):
            finished = graph.run()
            torch.cuda.synchronize()
            seconds.append(finished())
    return statistics.median(seconds)


class Bench:
    """The calls of a study, to be timed with any settings."""

    def __init__(self, study: Study, machine: Machine) -> None:
        self.study, self.flush = study, machine.flush
        # Rounds as the lab's bench has them: what is fast once need not be fast when it is called again at once.
        plan = machine.plan(study.case(study.n_rows))
        self.repeats = plan.repeats
        self.call, self.ceiling, self.inputs, self.size = prepared(study, study.n_rows, plan.sets)
        torch.cuda.synchronize()

    def speed(self, settings: dict[str, Any], rounds: int) -> float:
        """In GB/s."""
        with force(**settings):
            return self._speed(self.call, rounds)

    def row(self, speed: float, settings: dict[str, Any]) -> dict[str, Any]:
        """A row of the table for this width, with its figures."""
        return {
            "direction": self.study.direction,
            "center": self.study.center,
            "itemsize": self.study.dtype.itemsize,
            "residual": self.study.residual.itemsize if self.study.residual else 0,
            "option": self.study.option,
            "max_cols": self.study.n_cols,
            "settings": settings,
            "gb_per_s": round(speed),
            "ceiling_gb_per_s": round(self._speed(self.ceiling, 9)),
        }

    def _speed(self, call: Any, rounds: int) -> float:
        return self.size / seconds_of(call, self.inputs, self.flush, rounds, self.repeats) / 1e9


def measure(study: Study, machine: Machine) -> list[dict[str, Any]]:
    """The fastest settings for one width, with their figures: a row of the table. Where they take the width in chunks,
    which it fills, there is a second row, for widths that do not.
    """
    bench = Bench(study, machine)
    measured = []
    for settings in candidates(study):
        try:
            measured.append((bench.speed(settings, 5), settings))
        except Exception as error:
            print(f"cannot run {study} {settings}: {type(error).__name__}", file=sys.stderr)
    measured.sort(key=lambda pair: -pair[0])
    final = again(bench, [settings for _, settings in measured])
    chosen = final[0]
    if study.direction == "forward":
        chosen = quickest_of_few(study, final, machine)
    rows = [bench.row(*chosen)]
    if chosen[1]["regime"] == "looped":
        held = [settings for _, settings in measured if settings["regime"] != "looped"]
        bench = Bench(study._replace(n_cols=width_between(study.n_cols)), machine)
        row = bench.row(*again(bench, held)[0])
        rows.append(row | {"max_cols": study.n_cols, "measured_cols": bench.study.n_cols})
    return rows


def again(bench: Bench, settings: list[dict[str, Any]]) -> list[tuple[float, dict[str, Any]]]:
    """The first few of them, measured more closely: (GB/s, settings), the fastest first."""
    measured = [(bench.speed(one, 15), one) for one in settings[:FINALISTS]]
    return sorted(measured, key=lambda pair: -pair[0])


def width_between(n_cols: int) -> int:
    """Nearer to this width than the next narrower one of WIDTHS is, and less even."""
    return n_cols * 7 // 8


def quickest_of_few(
    study: Study, measured: list[tuple[float, dict[str, Any]]], machine: Machine
) -> tuple[float, dict[str, Any]]:
    """Of settings nearly as fast as the fastest, those that do FEW_ROWS rows in the least time."""
    fastest = max(speed for speed, _ in measured)
    equals = [pair for pair in measured if pair[0] > NEARLY * fastest]
    if len(equals) == 1:
        return equals[0]
    call, _, inputs, _ = prepared(study, FEW_ROWS, copies=FEW_COPIES)
    torch.cuda.synchronize()

    def latency(settings: dict[str, Any]) -> float:
        with force(**settings):
            return seconds_of(call, inputs, machine.flush, rounds=15)

    return min(equals, key=lambda pair: latency(pair[1]))


def kind_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What rows of the table are for; tables are in this order."""
    kind = (row["itemsize"], row["residual"], row["option"])
    return *kind, row["direction"] == "backward", row["center"], row["max_cols"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, help="file to write; must not exist (default: <arch>.json)"
    )
    parser.add_argument("--update", type=Path, help="a table whose other rows are taken over")
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--directions", nargs="+", default=["forward", "backward"])
    parser.add_argument("--norms", nargs="+", choices=["rms", "layer"], default=["rms", "layer"])
    parser.add_argument("--residual", help="dtype of a residual beside the rows (default: none)")
    parser.add_argument(
        "--option", choices=(*OPTIONS, *ACTIVATIONS), default="", help="what else the norm has"
    )
    parser.add_argument("--workers", type=int, default=14, help="processes that compile")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU here to tune for")
    device = device_of(0)
    out = options.out or Path(f"{device.arch}.json")
    if out.exists():
        parser.error(f"{out} exists; move it away or name another file with --out")

    residual = getattr(torch, options.residual) if options.residual else None
    studies = [
        Study(direction, center, getattr(torch, dtype), n_cols, residual, options.option)
        for dtype in options.dtypes
        for direction in options.directions
        for center in sorted(norm == "layer" for norm in options.norms)
        for n_cols in sorted(options.widths)
    ]
    jobs = [(study, settings) for study in studies for settings in candidates(study)]
    # What is compiled does not depend on how many programs there are, but for a grid, of which all must be resident.
    kinds = {
        str(
            (
                study,
                settings if "pipeline_depth" in settings else {**settings, "programs_per_sm": 0},
            )
        ): (
            study,
            settings,
        )
        for study, settings in jobs
    }
    print(f"{len(jobs)} settings for {len(studies)} rows of the table", flush=True)
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        shares = [
            list(kinds.values())[i :: 4 * options.workers] for i in range(4 * options.workers)
        ]
        pool.map(compile_all, shares, chunksize=1)

    plans: list[dict[str, Any]] = []
    machine = machine_of("cuda", ())
    for study in studies:
        rows = measure(study, machine)
        plans += rows
        for row in rows:
            norm = "layer" if row["center"] else "rms"
            print(
                f"{row['direction']:8} {norm:5} {row['itemsize']}+{row['residual']} bytes {row['option']:10} "
                f"{row['max_cols']:6} columns  {row['gb_per_s']:5} of {row['ceiling_gb_per_s']:5} GB/s  "
                f"{row['settings']}",
                flush=True,
            )
        torch.cuda.empty_cache()
    if options.update:
        measured = {kind_of(row) for row in plans}
        old = json.loads(options.update.read_text())["plans"]
        plans = sorted(plans + [row for row in old if kind_of(row) not in measured], key=kind_of)
    table = {
        "device": device.name,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": datetime.date.today().isoformat(),
        "method": "device time from CUDA graphs over inputs larger than L2",
    }
    head = "".join(f" {json.dumps(name)}: {json.dumps(value)},\n" for name, value in table.items())
    lines = ",\n".join(f"  {json.dumps(row)}" for row in plans)
    out.write_text(f'{{\n{head} "plans": [\n{lines}\n ]\n}}\n')
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
