"""Exercise 2: RMSNorm, kernel, module and comparison."""

from __future__ import annotations

import math
import random
from statistics import median
from typing import Any

from rownorm_lab.data.case import Case
from rownorm_lab.providers.data import Tensors

from ..alternatives import RMS_NORM, RMS_NORM_GRADIENT
from ..grade import Task
from ..grades import Failure
from ..judge import TriedCase, try_all, try_one
from ..learner import Learner, LearnerError
from .norms import Norm, norm_case

FILE, BENCHMARK = "rmsnorm.py", "benchmark.py"
NORM = Norm(FILE)
ROWS = 4096  # of the comparison; the time of few rows is that of a launch
BLOCKS = (64, 128, 256, 512, 1024)
MANY = 140  # rows; every program takes milliseconds in the interpreter
PASSES = 2.05  # over the rows: some elements may be loaded again
ENOUGH = 0.6  # of the ceiling: what a loop with two passes reaches where the second is served by L2


def wide(learner: Learner) -> None:
    """Rows of several blocks, of widths that differ in every check, and wider than a solution may have counted on."""
    random.seed(learner.seed)
    widest = random.randint(66_000, 70_000)
    NORM.try_all(
        learner,
        TriedCase(norm_case(2, 2500)),
        TriedCase(norm_case(2, random.randint(4200, 9000)), habit="wide-rows"),
        TriedCase(norm_case(1, widest), habit="wide-rows"),
    )


def many(learner: Learner) -> None:
    """More rows than a solution may have counted on, in every check others."""
    rows = MANY + learner.seed % 50
    NORM.try_all(learner, TriedCase(norm_case(rows, 8), orders=0, habit="many-rows"))


def two_passes(learner: Learner) -> None:
    """What the programs load, as the interpreter has recorded it."""
    trial = TriedCase(norm_case(4, 2500))
    found = NORM.passes(learner, trial)
    if found > PASSES:
        raise Failure(
            f"{trial}: your kernel loads each row {found:.2g} times, expected twice at most",
            "passes",
        )


def trains(learner: Learner) -> None:
    """A module with one parameter; values and gradients of rows against fp64."""
    trial = TriedCase(norm_case(5, 200, direction="both"))
    own_eps = TriedCase(norm_case(3, 200, direction="both", eps=0.05), data="near_eps")
    of_sum = trial._replace(layout="expanded dy", habit="any-dy")
    try_all(learner, _module_call(learner), [trial, own_eps, of_sum], RMS_NORM_GRADIENT)


def frozen_x(learner: Learner) -> None:
    """The weight trains although x needs no gradient."""
    trial = TriedCase(norm_case(5, 200, direction="both"), layout="frozen")
    _against_the_usual_call(learner, trial, "frozen-x")


def calls_in_a_row(learner: Learner) -> None:
    """The gradients of a call, after another call of the same module."""
    trial = TriedCase(norm_case(5, 200, direction="both"))
    _against_the_usual_call(learner, trial, "saved-elsewhere", again=True)


def _against_the_usual_call(
    learner: Learner, trial: TriedCase, habit: str, again: bool = False
) -> None:
    """One trial; the step before has shown that the usual call is right, so that the difference is the reason."""
    try:
        try_all(learner, _module_call(learner, again), [trial], RMS_NORM_GRADIENT)
    except LearnerError:
        raise
    except Failure as failure:
        raise Failure(str(failure), habit) from None


def shapes(learner: Learner) -> None:
    """Values and gradients of other shapes than (rows, columns), and of a transposed x."""
    trials = [
        TriedCase(
            norm_case(math.prod(shape[:-1]), 96, direction="both"), shape=shape, habit="any-shape"
        )
        for shape in ((2, 5, 96), (2, 3, 2, 96), (96,))
    ]
    trials.append(trials[0]._replace(layout="transposed", habit="any-layout"))
    trials.append(trials[0]._replace(layout="transposed dy", habit="any-dy"))
    try_all(learner, _module_call(learner), trials, RMS_NORM_GRADIENT)


def _module_call(learner: Learner, again: bool = False):  # type: ignore[no-untyped-def]
    def call(case: Case, t: Tensors) -> list[Any]:
        y, needs, found = learner.train(
            FILE, "RMSNorm", case.cols, case.eps, t.x, t.weight, t.dy, again
        )
        if found and found[0] is not None:
            found[0] = found[0].reshape(case.rows, case.cols)
        return [y, needs, found]

    return call


def blocks(learner: Learner) -> None:
    """The same result with every block size."""
    function = learner.function(FILE, "rms_norm")
    # Rows wider than the block, each: a row that is not may have a block of its own width. A narrow row is more than
    # one narrow block, and the last of its blocks may be whole.
    for block, cols in ((one, cols) for one in BLOCKS for cols in (1100, 2 * one, one + 1)):
        trial = TriedCase(norm_case(2, cols), orders=0)
        seen = try_one(
            learner,
            lambda case, t, block=block: function(t.x, t.weight, case.eps, block=block),  # type: ignore[misc]
            trial,
            RMS_NORM,
        )
        used = [value for one in seen.launches for value in one.arguments.values()]
        if not any(isinstance(value, int) and value == block for value in used):
            raise Failure(
                f"{trial}: rms_norm(..., block={block}) launches no kernel with {block}",
                "block-ignored",
            )
        # Only the interpreter sees loads; with a GPU, the same step runs there as well.
        if seen.recorded and not any(block in shape for shape in seen.blocks):
            raise Failure(
                f"{trial}: rms_norm(..., block={block}) gives its kernel {block}, which loads blocks of "
                f"{', '.join('x'.join(map(str, shape)) for shape in seen.blocks if shape)}",
                "block-ignored",
            )
        if wider := [shape for shape in seen.blocks if max(shape, default=1) > block]:
            raise Failure(
                f"{trial}: rms_norm(..., block={block}) loads blocks of {wider[0]} too",
                "block-ignored",
            )


def figures(learner: Learner) -> None:
    """bytes_moved, bandwidth and speedup on figures that the learner does not know."""
    random.seed(learner.seed)
    rows, cols = random.randint(100, 5000), random.randint(100, 5000)
    seconds = random.uniform(1e-6, 1e-3)
    for itemsize in (4, 2):
        got = learner.function(BENCHMARK, "bytes_moved")(rows, cols, itemsize)
        without = 2 * rows * cols * itemsize
        if got not in (without + cols * itemsize, without):
            raise Failure(
                f"bytes_moved({rows}, {cols}, {itemsize}) is {got}, {got / without:.3g} times what must move: x in, y "
                "out; the weight may be counted or not",
                "intensity",
            )
    expected = got / seconds / 1e9
    got = learner.function(BENCHMARK, "gb_per_s")(rows, cols, 2, seconds)
    if not math.isclose(got, expected, rel_tol=1e-3):
        raise Failure(
            f"gb_per_s({rows}, {cols}, 2, {seconds:.3g}) is {got:.4g}. It is your bytes_moved over the seconds, in "
            "units of 10^9 bytes",
            "wrong-figure",
        )
    for count in (9, 10):
        _speedup(learner, count)


def _speedup(learner: Learner, count: int) -> None:
    """speedup of so many times of each side."""
    mine = [random.uniform(1e-5, 2e-5) for _ in range(count)]
    other = [random.uniform(3e-5, 6e-5) for _ in range(count)]
    other[0] *= 40  # an interruption: the mean would follow it, the median does not
    mine[0] /= 40  # a clock that was read too early: the minimum would follow it
    expected = median(other) / median(mine)
    got = learner.function(BENCHMARK, "speedup")(mine, other)
    if not math.isclose(got, expected, rel_tol=1e-3):
        raise Failure(
            f"speedup of {count} times each, whose medians are {median(mine):.3g} (mine) and {median(other):.3g} "
            f"(torch), is {got:.4g}. It is torch's median over yours; one of torch's times has an interruption",
            "wrong-figure",
        )


def same_operation(learner: Learner) -> None:
    """RMSNorm is compared with RMSNorm."""
    cases = learner.function(BENCHMARK, "cases")()
    if not cases:
        raise Failure("cases() is empty")
    for case in cases:
        if case.operation != "rms_norm":
            raise Failure(
                f"cases() has {case.title}: torch would compute {case.operation} there, another operation than yours",
                "other-operation",
            )
        if case.dtype != "fp16":
            raise Failure(f"cases() has {case.title}, expected fp16", "few-cases")
    if not {case.cols for case in cases if case.rows == ROWS} >= {256, 1024, 4096}:
        raise Failure(
            f"cases() must have the widths 256, 1024 and 4096, with {ROWS} rows", "few-cases"
        )


TASKS = [
    Task(
        "kernel",
        "the formula",
        NORM.trying(
            TriedCase(norm_case(4, 1024)),
            TriedCase(norm_case(3, 1024, eps=0.05), data="near_eps"),
        ),
    ),
    Task(
        "kernel",
        "widths that fill no block",
        NORM.trying(*(TriedCase(norm_case(3, cols)) for cols in (1000, 77, 1))),
    ),
    Task("kernel", "rows of several blocks", wide),
    Task("kernel", "many rows", many),
    Task(
        "kernel",
        "16-bit rows",
        NORM.trying(
            TriedCase(norm_case(3, 500, "fp16")),
            # Values whose squares do not fit in 16 bits.
            TriedCase(norm_case(3, 500, "fp16"), scale=300.0, habit="low-precision"),
            TriedCase(norm_case(3, 500, "bf16"), habit="low-precision"),
            TriedCase(norm_case(3, 500, "fp16"), weight_dtype="fp32", habit="weight-dtype"),
        ),
    ),
    Task(
        "kernel",
        "rows of a wider tensor",
        NORM.trying(*(TriedCase(norm_case(4, cols), layout="strided") for cols in (500, 1500))),
    ),
    Task("kernel", "two passes over the row", two_passes, ("interpret",)),
    NORM.far("kernel", norm_case(1, 4096, "fp16")),
    Task("module", "values and gradients", trains),
    Task("module", "x needs no gradient", frozen_x),
    Task("module", "two calls before backward", calls_in_a_row),
    Task("module", "any shape", shapes),
    Task("blocks", "every block size", blocks),
    Task("comparison", "RMSNorm against RMSNorm", same_operation),
    Task("comparison", "bytes, bandwidth, speed-up", figures),
    NORM.fast({norm_case(8192, 4096, "fp16"): ENOUGH}, "narrow"),
]
