"""Exercise 1: reading a kernel, running it, counting sectors, and what a block size changes."""

from __future__ import annotations

import math
import random
from typing import Any

from ..grade import Task
from ..grades import Failure
from ..learner import Learner
from .questions import Question, questions

ANSWERS, ANALYSER = "answers.toml", "analyser.py"
CHOICES = {
    "pointers": Question(
        "b",
        "x_row_ptr is one number and cols a block of numbers: what is their sum?",
        "The sum of one address and a block of numbers is a block of addresses. tl.load gives a block of values.",
    ),
    "program": Question(
        "c",
        "look at the grid in softmax: (n_rows,)",
        "The grid is (n_rows,): program r takes row r, whatever its width.",
    ),
    "block_size": Question(
        "a",
        "look at what tl.arange(0, BLOCK) makes, and at the step of the loop",
        "A turn of the loop handles BLOCK columns. How many threads share them is another setting, num_warps.",
    ),
    "constexpr": Question(
        "d",
        "what must be known of tl.arange(0, BLOCK) when the kernel is compiled?",
        "tl.arange(0, BLOCK) is a block of that size, and its elements are placed in registers at compile time.",
    ),
    "scale": Question(
        "b",
        "what does Triton do when a constexpr gets a value that it did not have before?",
        "A constexpr is part of the compiled code, so a new value compiles anew. An argument is only passed.",
    ),
    "coalescing": Question(
        "a",
        "which column does lane i access, and which does lane i + 1?",
        "Lane i has column i. The 32 lanes of a warp ask for neighboring bytes, which few sectors cover.",
    ),
    "mask": Question(
        "c",
        "which lanes have cols >= n_cols, and what are their values after the load?",
        "A masked lane issues no access. Its value is other; without other it is undefined.",
    ),
    "other": Question(
        "b",
        "what do masked lanes hold here, and what does its exponential add to the sum?",
        "exp(-inf) is 0, and -inf is no maximum. For a plain sum other would have to be 0.",
    ),
    "reduction": Question(
        "d",
        "what is added inside the loop, and what once after it?",
        "The loop adds block to block, lane by lane. The lanes are combined once, at the end.",
    ),
    "passes": Question(
        "c",
        "count the loops that contain tl.load(x_row_ptr + ...)",
        "The maximum, the sum, the output. Later ones may be served by a cache; they are passes all the same.",
    ),
    "registers": Question(
        "c",
        "only tl.load and tl.store access global memory",
        "Blocks and scalars of a kernel are in registers. Only tl.load and tl.store reach global memory.",
    ),
    "fusion": Question(
        "a",
        "how many operators does PyTorch run for that line, and where is the result of each?",
        "Each operator reads its input from memory and writes its result there: several passes where one would do.",
    ),
    "precision": Question(
        "d",
        "look at what follows each tl.load, and at the conversion in tl.store",
        "fp16 ends at 65504 and has 11 bits. Sums need fp32; y is rounded when it is stored.",
    ),
    "portability": Question(
        "c",
        "which numbers were chosen for one GPU, and which lines follow from the formula?",
        "The formula, the masks and the strides stay. Blocks and warps were chosen for one GPU.",
    ),
}
RUN = {  # figures of the learner's own run, and what each is
    "programs": "the programs that ran: look at the grid in softmax",
    "turns": "the turns of the first loop, in one program",
    "masked_lanes": "the lanes of the last turn that have no column",
    "loads_of_an_element": "how many times the kernel loads each element of x",
    "checksum": "what python kernel.py ROWS COLS BLOCK prints for these sizes",
}
TABLE = {  # figures of rownorm analyze, by their names in answers.toml
    "load_bytes": "load width, B per thread",
    "loads_per_row": "loads per row",
    "sectors_loaded_per_row": "sectors loaded per row",
    "in_flight_per_program": "in flight per program, B",
}
BLOCKS = (64, 128, 256, 512, 1024)


def _is_number(value: object) -> bool:
    if isinstance(value, str) and value.strip():
        raise Failure(f"{value!r} is a text, not a number", "toml")
    return isinstance(value, int | float) and value != 0


def own_run(learner: Learner) -> None:
    """Figures of the shape that the learner chose, and of the values that its run gave."""
    given = learner.answers(ANSWERS).get("run", {})
    open_ones = [
        name for name in ("rows", "cols", "block", *RUN) if not _is_number(given.get(name))
    ]
    if open_ones:
        raise Failure(f"[run] has no number yet: {', '.join(open_ones)}", "no-answer")
    rows, cols, block = (int(given[name]) for name in ("rows", "cols", "block"))
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
        "loads_of_an_element": 3,
        "checksum": float(learner.function("kernel.py", "checksum")(rows, cols, block)),
    }
    wrong = [name for name in RUN if not math.isclose(given[name], expected[name], rel_tol=1e-3)]
    if wrong:
        lines = [f"{name} = {given[name]:g} is not right: {RUN[name]}" for name in wrong]
        raise Failure(
            f"[run] with {rows} rows, {cols} columns and block {block}:\n" + "\n".join(lines),
            "wrong-figure" if wrong != ["checksum"] else "wrong-reading",
        )


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
    given = learner.answers(ANSWERS).get("table", {})
    lines: dict[int, dict[str, Any]] = {block: given.get(f"block_{block}", {}) for block in BLOCKS}
    open_ones = [
        f"{name} of block_{block}"
        for block, line in lines.items()
        for name in TABLE
        if not _is_number(line.get(name))
    ]
    if open_ones:
        raise Failure(f"[table] has no number yet: {', '.join(open_ones)}", "no-answer")
    wrong = []
    right = learner.own("loop_figures", list(BLOCKS))
    for (block, line), figures in zip(lines.items(), right, strict=True):
        for name, value in zip(TABLE, figures, strict=True):
            if not math.isclose(line[name], value, rel_tol=0.02):
                wrong.append(
                    f"block_{block}: {name} = {line[name]:g} is not what rownorm analyze prints at "
                    f"'{TABLE[name]}', loop {block}"
                )
    if wrong:
        raise Failure("\n".join(wrong), "wrong-reading")


TASKS = [
    *questions("questions", CHOICES),
    Task("run", "your own run", own_run, ("interpret",)),
    Task("analyser", "32-byte sectors", analyser, ("interpret",)),
    Task("table", "block sizes", table, ("compile",)),
]
