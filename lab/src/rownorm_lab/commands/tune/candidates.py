"""Launch settings worth trying for a study."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import MISSING, fields
from typing import Any

from triton import next_power_of_2

from rownorm.inside import MOST_CHUNKS, SETTINGS, Device, Plan, force

from .study import TuningCase

Settings = dict[str, Any]  # fields of Plan
# Forward, one wide row in a program, by warps: registers per thread with which 2 or 3 programs fit on an SM (FR-11).
REGISTERS = {16: 64, 8: 80}
LIMITED_COLS = 6144  # the compiler takes fewer registers for narrower rows
DEFAULTS = {
    field.name: field.default
    for field in fields(Plan)
    if field.name in SETTINGS and field.default is not MISSING
}


def forced(settings: Settings) -> AbstractContextManager[None]:
    """Within this context, plans have these settings and for the others the defaults, as a plan of a table has."""
    return force(**DEFAULTS | settings)


def candidates(study: TuningCase, device: Device) -> Iterator[Settings]:
    """All settings to try on a device, regime by regime."""
    forward = study.direction == "forward"
    if study.n_cols <= (32768 if forward else 8192):
        for block_cols, chunks in _tilings(study):
            yield from _tiles(study, block_cols, chunks)
    is_shared = study.n_cols > 8192 if forward else study.n_cols >= 4096
    if is_shared and device.clusters:
        yield from _clusters(study)
    if study.n_cols >= 16384 and not forward:
        yield from _grids(study, device.n_sms)
    yield from _loops(study)


def _loops(study: TuningCase) -> Iterator[Settings]:
    """Rows in chunks that are loaded again for the output (regime ``looped``)."""
    itemsize = study.dtype.itemsize + (study.residual.itemsize if study.residual else 0)
    sizes = [(1024, 4), (2048, 8), (2048, 16)]  # (columns of a chunk, warps)
    narrowest, limits = 12288, {}
    if study.direction == "forward":
        sizes += [(1024, 2), (1024, 8), (2048, 2), (2048, 4), (4096, 8), (4096, 16), (4096, 32)]
        sizes += [(8192, 8), (8192, 16), (8192, 32), (16384, 16), (16384, 32)]
        if study.residual:
            sizes += [(32 * study.vector * num_warps, num_warps) for num_warps in (4, 8, 16, 32)]
        narrowest = 8192 // itemsize
        # Registers per thread, so that more programs fit on an SM.
        limits = {"pre_bias": (40, 64), "gelu": (80,)}
    for block_cols, num_warps in dict.fromkeys(sizes):
        if study.n_cols < max(block_cols, narrowest):
            continue
        looped = {"regime": "looped", "block_rows": 1, "block_cols": block_cols}
        looped |= {"num_warps": num_warps, "programs_per_sm": 8}
        yield looped
        for registers in limits.get(study.option, ()) if num_warps == 8 else ():
            yield {**looped, "maxnreg": registers}


def _tilings(study: TuningCase) -> Iterator[tuple[int, int]]:
    """(columns of a chunk, chunks in a row): one chunk, or several if that wastes less or frees registers sooner."""
    forward = study.direction == "forward"
    whole = next_power_of_2(study.n_cols)
    if whole <= (32768 if forward else 8192):
        yield whole, 1
    # The columns that one warp loads at once: with them, no two warps share a row.
    narrow = 32 * study.vector
    few = [narrow] if study.n_cols in (2 * narrow, 4 * narrow) else []
    # Chunks with 16 bytes of the wider dtype for every thread of that many warps.
    mixed = [narrow * num_warps for num_warps in (2, 4, 8, 16)] if study.residual else []
    shares = [share for share in (whole // 2, whole // 4, whole // 8) if share]
    for block_cols in dict.fromkeys((*few, *shares, *mixed)):
        chunks = -(-study.n_cols // block_cols)
        is_even = chunks * block_cols == study.n_cols
        # Chunks of a wide row free registers sooner, whatever its width.
        wastes_less = chunks * block_cols < whole or (forward and study.n_cols > 8192)
        # Several rows of a width that is no power of two: chunks end where the row ends, or soon after (FR-12, BR-20).
        is_narrow = study.n_cols < min(whole, 1024)
        if (
            1 < chunks <= MOST_CHUNKS
            and (is_even or wastes_less)
            and (block_cols >= 512 or block_cols in few + mixed or is_narrow)
        ):
            yield block_cols, chunks


def _tiles(study: TuningCase, block_cols: int, chunks: int) -> Iterator[Settings]:
    """Whole rows in one program (regimes ``tile`` and ``resident``)."""
    for block_rows in (1, 2, 4, 8, 16, 32, 64):
        for num_warps in (1, 2, 4, 8, 16, 32):
            per_thread = block_rows * chunks * block_cols // (32 * num_warps)
            if not study.vector <= per_thread <= (64 if block_rows > 1 else 128):
                continue
            vectors = block_rows * block_cols / (32 * num_warps * study.vector)
            if vectors < 1 / 2:
                continue  # less than 8 bytes per thread
            if block_rows > 1 and block_rows * chunks * block_cols > 8192:
                continue
            regime = "tile" if block_rows > 1 else "resident"
            tile = {"regime": regime, "block_rows": block_rows, "num_warps": num_warps}
            tile["block_cols"] = block_cols
            if study.direction == "forward":
                yield {**tile, "prefetch_parameters": True, "fast_rstd": True}
                if study.center:
                    yield {**tile, "fast_rstd": True}
                # Rows that are not aligned have no vectors to fill.
                is_full = vectors >= 1 or study.n_cols % study.vector
                for limit in _limits(study, num_warps) if is_full else ():
                    yield {**tile, **limit}
                    yield {**tile, **limit, "prefetch_parameters": True}
            elif 8 <= per_thread <= 40:
                yield from _pipelines(tile, chunks * block_cols, study)


def _limits(study: TuningCase, num_warps: int) -> list[Settings]:
    """Forward: no limit of registers, and for wide rows one with which more programs fit on an SM."""
    if study.n_cols <= LIMITED_COLS or num_warps not in REGISTERS:
        return [{}]
    return [{}, {"maxnreg": REGISTERS[num_warps]}]


def _clusters(study: TuningCase) -> Iterator[Settings]:
    """Rows shared by the programs of a cluster, in chunks that give a thread 8, 16, 32 or 64 bytes."""
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
                    yield from _cluster_forward(one)
                elif cluster > 1:
                    yield from _pipelines(one, share, study)


def _grids(study: TuningCase, n_sms: int) -> Iterator[Settings]:
    """Rows shared by programs on all SMs: 16 KiB of each tensor per SM, three or four stages in flight."""
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


def _cluster_forward(one: Settings) -> Iterator[Settings]:
    """Forward in clusters: one row per cluster, or as many clusters as fit, which prefetch their next row."""
    most = 64 // one["num_warps"]
    for registers in (0, 64, 80, 128):
        yield {**one, "num_stages": 1, "maxnreg": registers}
    pairs = ((0, 1), (0, most // 4), (80, most * 3 // 8), (128, most // 4))
    for registers, programs_per_sm in dict.fromkeys(pairs):
        if programs_per_sm:
            persistent = {"num_stages": 2, "maxnreg": registers, "programs_per_sm": programs_per_sm}
            yield {**one, **persistent}


def _pipelines(tile: Settings, width: int, study: TuningCase) -> Iterator[Settings]:
    """Backward: programs per SM, and stages in flight in each."""
    clustered, itemsize = "cluster_size" in tile, study.dtype.itemsize
    per_element = 2 * itemsize if study.residual is None else itemsize + 2 * study.residual.itemsize
    pairs = ((1, 8), (1, 12), (2, 4), (2, 8), (4, 2), (4, 3), (4, 4), (8, 1), (8, 2), (16, 1))
    for num_warps, programs_per_sm in pairs:
        if num_warps != tile["num_warps"]:
            continue
        # 128 registers per thread are too few for two fp32 rows and two sums.
        if num_warps == 16 and itemsize == 4 and study.center:
            continue
        most_warps = 8 if width > 24 * 32 * num_warps else 12
        if clustered and num_warps * programs_per_sm > most_warps and num_warps < 16:
            continue  # too many registers for that many programs; a cluster starts only when all its programs fit
        for stages in (3, 4, 5) if clustered else (3, 4) if itemsize == 2 else (1, 3):
            tile_bytes = tile["block_rows"] * width * per_element
            if (stages - 1) * programs_per_sm * tile_bytes <= 200 << 10:
                yield {**tile, "programs_per_sm": programs_per_sm, "num_stages": stages}
