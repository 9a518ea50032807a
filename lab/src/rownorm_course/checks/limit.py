"""Exercise 8: few wide rows and many rows, close to the limit of the device."""

from __future__ import annotations

import random

from ..calls import compile_call
from ..grade import Task
from ..grades import Failure
from ..judge import TriedCase
from ..learner import Learner
from .norms import Norm, no_spills, norm_case, share_of_limit, wide_accesses

NORM = Norm("wide.py")
WIDE = norm_case(4, 1 << 20, "bf16")
MANY = norm_case(8192, 4096, "bf16")
SMS = 132  # of an H200
# The time of the compulsory bytes over the predicted time. A row that is divided among programs is read by two
# kernels: three passes where two are compulsory.
SHARES = {WIDE: 0.6, MANY: 0.95}
MEASURED = {WIDE: 0.4, MANY: 0.85}  # of the ceiling, on the GPU


def wide_rows(learner: Learner) -> None:
    """Rows that are divided, also unevenly, with values whose squares need fp32; widths differ in every check."""
    random.seed(learner.seed)
    NORM.try_all(
        learner,
        TriedCase(norm_case(1, 1 << 15)),
        TriedCase(norm_case(1, 50_001)),
        TriedCase(norm_case(1, 20_000, "fp16"), scale=300.0, habit="low-precision"),
        TriedCase(norm_case(2, random.randint(9000, 24_000))),
    )


def enough_programs(learner: Learner) -> None:
    """Few rows still fill the device, without spills."""
    kernels = compile_call(learner, NORM.call(learner), WIDE, "kernels").kernels
    no_spills(kernels)
    for one in kernels:
        if {"x", "y"} & set(one.tensors) and one.n_programs < SMS:
            raise Failure(
                f"{one.name} runs {one.n_programs} programs for {WIDE.rows} rows of {WIDE.cols} columns, expected at "
                f"least {SMS}: one for each multiprocessor of an H200",
                "few-programs",
            )


def wide_loads(learner: Learner) -> None:
    """16 bytes for each thread and access, in both shapes."""
    for case in (WIDE, MANY):
        wide_accesses(NORM.compiled(learner, case), f" at {case.rows}x{case.cols}")


def predicted(learner: Learner) -> None:
    """The predicted share of the limit, for both shapes."""
    for case, least in SHARES.items():
        found = NORM.compiled(learner, case)
        share = share_of_limit(found, case)
        if share < least:
            names = ", ".join(one.kernel for one in found.analyses)
            raise Failure(
                f"{case.title}: {names} would take {found.predicted_seconds * 1e6:.3g} µs, {share:.0%} of the limit, "
                f"expected {least:.0%}; they move {found.memory_bytes / case.compulsory_bytes:.2g} times the "
                "compulsory bytes",
                "passes-of-memory",
            )


TASKS = [
    Task(
        "values",
        "rows of one program",
        NORM.trying(TriedCase(norm_case(40, 300)), TriedCase(norm_case(3, 77, "fp16"))),
    ),
    Task("values", "divided rows", wide_rows),
    NORM.far("values", norm_case(1, 4096, "bf16"), norm_case(1, 1 << 20, "bf16")),
    Task("programs", "four rows fill the device", enough_programs, ("compile",)),
    Task("accesses", "16 bytes at once", wide_loads, ("compile",)),
    Task("limit", "predicted share of the limit", predicted, ("compile",)),
    NORM.fast(MEASURED),
]
