"""From a launch of a user's kernel to an ``OwnAnalysis``: compile it, trace some of its programs, predict its time.

A large tensor has at least a sixteenth of the bytes of the largest. It plays the role that rows have in a norm: its
loads are in flight while a program waits, and what is loaded again comes from L2 if what all running programs load fits
in half of it.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import numpy as np

from rownorm.inside import Target

from ..data.case import Case
from ..data.own_analyses import OwnAnalysis, OwnTraffic
from ..data.user_files import Source
from . import isa, llir
from .accesses import Access
from .analysis import code_fields, traffic_fields
from .compile import CompiledKernel
from .launched import compile_launch
from .occupancy import occupancy_of
from .recorded import Launched
from .roofline import (
    Ceiling,
    ceiling_of,
    kernel_times,
    limits_of,
    memory_bytes,
    running_programs,
)
from .trace import Unresolved
from .traffic import SECTOR, Traffic, count_programs, flows_of

LARGE = 16  # a large tensor has at least this part of the largest one's bytes
# Programs that are traced: the first, the last, and some between, as many as have so many threads.
EDGE, FEWEST_INNER, INNER_THREADS = 4, 24, 1 << 15
LIMIT_S = 60.0
MATRIX = re.compile(r"mma\.|wgmma|mfma|tcgen05")


def analyze_launch(
    launched: Launched,
    source: Source,
    target: Target,
    label: str,
    ceiling: Ceiling | None = None,
    kernel: CompiledKernel | None = None,
) -> OwnAnalysis:
    """Compile and examine one launch. What cannot be told is listed, with the reason. kernel: if it is compiled."""
    import triton

    kernel = kernel or compile_launch(launched, target)
    arch, limits = target.device.arch, limits_of(target)
    roof = ceiling or ceiling_of(limits, _similar(sum(kernel.tensors.values())))
    unknown: list[str] = []
    if MATRIX.search(kernel.compiled.asm["llir"]):
        unknown.append("the time of matrix products (tl.dot): the prediction is of memory alone")
    traffic = None
    try:
        traffic = _traffic(kernel, launched, target, roof, unknown)
    except Unresolved as why:
        unknown.append(f"traffic and time: {why}")
    return OwnAnalysis(
        source=source,
        kernel=kernel.name,
        label=label,
        launch=launched.describe(),
        grid=launched.size(),
        target=arch,
        device=limits.name,
        triton=triton.__version__,
        ceiling=roof.bytes_per_second,
        ceiling_source=roof.source,
        **code_fields(kernel, occupancy_of(kernel, arch)),
        traffic=traffic,
        notes=[launched.note] if launched.note else [],
        unknown=unknown,
    )


def _traffic(
    kernel: CompiledKernel, launched: Launched, target: Target, ceiling: Ceiling, unknown: list[str]
) -> OwnTraffic:
    """Trace some programs. Accesses without a known address are added to ``unknown``; Unresolved if all are."""
    if kernel.cluster_size > 1:
        raise Unresolved("programs of a cluster (num_ctas) are not traced")
    arch, limits = target.device.arch, limits_of(target)
    function = llir.parse(kernel.compiled.asm["llir"])
    values = {name: value for name, value in kernel.arguments.items() if name not in kernel.tensors}
    large = large_tensors(kernel)
    sampled = _sample(kernel.n_programs, kernel.num_warps * kernel.warp_size)
    lost: Counter[str] = Counter()

    def on_unknown(access: Access) -> None:
        lost[access.kind] += 1

    x, y, _ = launched.size()
    counts, in_flight = count_programs(
        kernel, function, values, sampled, SECTOR[arch], large, (x, y),
        on_unknown=on_unknown, limit_s=LIMIT_S,
    )  # fmt: skip
    flows = flows_of(counts, kernel)
    if lost:
        kinds = " and ".join(f"{kind}s" for kind in lost)
        unknown.append(
            f"{kinds} whose addresses or masks depend on values of tensors; figures and time are without them"
        )
    if not flows:
        raise Unresolved("no access of a tensor has a known address")
    if untouched := [name for name in kernel.tensors if name not in {one.tensor for one in flows}]:
        unknown.append(
            f"accesses of {', '.join(untouched)}: none was seen. It is not used, or in a way that is not traced"
        )
    traffic = Traffic(flows, SECTOR[arch], in_flight)
    running = running_programs(kernel, occupancy_of(kernel, arch), limits.sms)
    unrolled = isa.unrolling(kernel.compiled)
    # A program's share of the tensors is what one row is for a norm.
    moved = memory_bytes(kernel, traffic, running, limits.l2_bytes, kernel.n_programs, large)
    times = kernel_times(traffic, moved, running, unrolled, ceiling, large)
    return OwnTraffic(
        traced_programs=len(sampled[0]),
        passes=traffic.passes(large),
        compulsory_bytes=sum(one.tensor_bytes * min(1.0, one.passes) for one in flows),
        **traffic_fields(traffic, moved, times, unrolled, "program", kernel.n_programs),
    )


def large_tensors(kernel: CompiledKernel) -> list[str]:
    """The tensors that are worth a pass over memory."""
    most = max(kernel.tensors.values(), default=0)
    return [name for name, size in kernel.tensors.items() if size * LARGE >= most]


def _sample(n_programs: int, threads: int) -> tuple[Any, Any]:
    """(programs to trace, how many each stands for): the first and the last, where masks differ, and some between.

    Those between are one of each of equal parts, at random, so that no stride hides an alignment.
    """
    count = max(FEWEST_INNER, INNER_THREADS // threads)
    if n_programs <= 2 * EDGE + count:
        return np.arange(n_programs, dtype=np.int64), np.ones(n_programs)
    bounds = np.linspace(EDGE, n_programs - EDGE, count + 1).astype(np.int64)
    parts = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
    choose = random.Random(0)
    edges = [*range(EDGE), *range(n_programs - EDGE, n_programs)]
    inner = [choose.randrange(first, end) for first, end in parts]
    weights = [1.0] * len(edges) + [float(end - first) for first, end in parts]
    return np.array([*edges, *inner], np.int64), np.array(weights)


def _similar(moved: int) -> Case:
    """A norm that moves as many bytes, to find a measured ceiling."""
    rows = max(1, moved // (2 * 2 * 4096))
    return Case(operation="rms_norm", rows=rows, cols=4096)
