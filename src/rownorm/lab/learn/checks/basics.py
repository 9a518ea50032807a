"""Exercise 1: reading a kernel, running it, counting sectors, and what a block size changes."""

from __future__ import annotations

import math
import random
from typing import Any

from ...cases.case import Case
from ..grade import Task
from ..grades import Failure
from ..learner import Learner

ANSWERS, ANALYSER = "answers.toml", "analyser.py"
CHOICES = {  # the right answer, and where to look if another was given
    "pointers": ("b", "x_ptr is one address; adding a block of offsets gives a block of addresses, one for each lane"),
    "program": ("c", "look at the grid in rms_norm: (n_rows,)"),
    "block_size": ("a", "look at what tl.arange(0, BLOCK) makes, and at the step of the loop"),
    "constexpr": ("d", "the shape of tl.arange must be known when the kernel is compiled"),
    "eps": ("b", "eps is a plain argument here: another value needs no second compilation"),
    "coalescing": ("a", "lane i accesses column first + i: neighbors in a warp are neighbors in memory"),
    "mask": ("c", "lanes with cols >= n_cols load other, and nothing is read for them"),
    "other": ("b", "the sum is right because masked lanes load 0. Subtract a mean, and they are no longer 0"),
    "reduction": ("d", "lanes are added in registers in the loop; tl.sum combines threads and warps once, at the end"),
    "passes": ("b", "count the loops that contain tl.load(x_row_ptr + ...)"),
    "registers": ("c", "what a name in the kernel holds is in registers; only tl.store writes to global memory"),
    "fusion": ("a", "PyTorch runs square, mean, add, rsqrt and two products as operators of their own"),
    "precision": ("d", "the loads are converted to fp32, and the store rounds once"),
    "portability": ("c", "num_warps and BLOCK are chosen for a device; the source is not"),
}  # fmt: skip
TABLE = ("load_bytes", "loads_per_row", "sectors_loaded_per_row", "occupancy")
BLOCKS = (64, 128, 256, 512, 1024)


def questions(learner: Learner) -> None:
    """The multiple-choice questions."""
    given = learner.answers(ANSWERS).get("questions", {})
    for name, (right, why) in CHOICES.items():
        answer = str(given.get(name, "")).strip().lower()
        if not answer:
            raise Failure(f"[questions] {name} has no answer", "no-answer")
        if answer not in "abcd" or len(answer) != 1:
            raise Failure(f"[questions] {name} is {answer!r}, expected a, b, c or d")
        if answer != right:
            raise Failure(f"[questions] {name} = {answer!r} is not right: {why}", "wrong-choice")


def own_run(learner: Learner) -> None:
    """Figures of the shape that the learner chose, and of the values that its run gave."""
    given = learner.answers(ANSWERS).get("run", {})
    names = (
        "rows",
        "cols",
        "block",
        "programs",
        "turns",
        "masked_lanes",
        "loads_of_an_element",
        "checksum",
    )
    for name in names:
        if not isinstance(given.get(name), int | float) or given[name] == 0:
            raise Failure(f"[run] {name} has no number", "no-answer")
    rows, cols, block = (int(given[name]) for name in names[:3])
    if (
        not (1 <= rows <= 64 and 1 <= cols <= 4096)
        or block & (block - 1)
        or not 16 <= block <= 1024
    ):
        raise Failure("[run] rows is 1 to 64, cols 1 to 4096, block a power of two from 16 to 1024")
    if cols % block == 0 or cols < block:
        raise Failure(
            f"[run] cols = {cols} with block = {block}: choose more columns than a block, not a multiple of it"
        )
    turns = math.ceil(cols / block)
    expected = {
        "programs": rows,
        "turns": turns,
        "masked_lanes": turns * block - cols,
        "loads_of_an_element": 2,
        "checksum": _checksum(learner, rows, cols, block),
    }
    for name, value in expected.items():
        if not math.isclose(given[name], value, rel_tol=1e-3):
            raise Failure(
                f"[run] {name} = {given[name]:g} for {rows} rows, {cols} columns, block {block}, expected {value:.6g}",
                "wrong-figure",
            )


def _checksum(learner: Learner, rows: int, cols: int, block: int) -> float:
    return float(learner.function("kernel.py", "checksum")(rows, cols, block))


def analyser(learner: Learner) -> None:
    """``sectors`` against a count of bytes, with aligned accesses first."""
    function = learner.function(ANALYSER, "sectors")
    random.seed(learner.seed)
    start = 1 << 12
    for what, first, step, width, habit in (
        ("32 neighbors of 2 bytes", start, 2, 2, "transactions"),
        ("32 neighbors of 4 bytes", start, 4, 4, "transactions"),
        ("32 neighbors of 16 bytes", start, 16, 16, "transactions"),
        ("32 neighbors of 4 bytes that begin 16 bytes into a sector", start + 16, 4, 4, "transactions"),
        ("every second element of 4 bytes", start, 8, 4, "transactions"),
        ("a column: elements that are 4096 bytes apart", start, 4096, 2, "transactions"),
        ("the same address in all threads", start, 0, 4, "transactions"),
        ("a random start", start + 4 * random.randint(1, 1000), 4, 4, "transactions"),
        ("16 bytes in each thread that begin 24 bytes into a sector, 4096 apart", start + 24, 4096, 16, "straddle"),
        ("32 neighbors of 12 bytes that begin 28 bytes into a sector", start + 28, 12, 12, "straddle"),
        ("32 neighbors of 64 bytes", start, 64, 64, "straddle"),
        ("100 bytes in each thread from a random start, 1000 apart", start + random.randint(1, 31), 1000, 100,
         "straddle"),
    ):  # fmt: skip
        addresses = [first + step * lane for lane in range(32)]
        right = len({byte // 32 for one in addresses for byte in range(one, one + width)})
        got = function(addresses, width)
        if got != right:
            raise Failure(f"sectors of {what} is {got}, expected {right}", habit)


def table(learner: Learner) -> None:
    """The block-size table against the lab's analysis of the same kernel."""
    from ...analyze.analysis import analyze
    from ...analyze.compile import compile_loop, target_of

    given = learner.answers(ANSWERS).get("table", {})
    for block in BLOCKS:
        line: dict[str, Any] = given.get(f"block_{block}", {})
        for name in TABLE:
            if not isinstance(line.get(name), int | float) or line[name] == 0:
                raise Failure(f"[table] block_{block}: {name} has no number", "no-answer")
    case = Case(operation="rms_norm", rows=32768, cols=4096, dtype="fp16")
    for block in BLOCKS:
        one = analyze(compile_loop(case, block, target_of("sm_90")), block).kernels[0]
        right = {
            "load_bytes": max(one.load_widths),
            "loads_per_row": one.load_requests_per_row,
            "sectors_loaded_per_row": one.load_sectors_per_row,
            "occupancy": 100 * one.occupancy,
        }
        for name, value in right.items():
            if not math.isclose(given[f"block_{block}"][name], value, rel_tol=0.02):
                raise Failure(
                    f"[table] block_{block}: {name} = {given[f'block_{block}'][name]:g}, and rownorm analyze says "
                    f"{value:.6g}",
                    "wrong-figure",
                )


TASKS = [
    Task("questions", "multiple choice", questions, ("interpret",)),
    Task("run", "your own run", own_run, ("interpret",)),
    Task("analyser", "32-byte sectors", analyser, ("interpret",)),
    Task("table", "block sizes", table, ("compile",)),
]
