"""Exercise 8: few wide rows and many rows, close to the limit of the device."""

from __future__ import annotations

import random

from rownorm_lab.data.case import Case, Dtype

from ..alternatives import RMS_NORM
from ..calls import Call, compile_call, compile_kernels, share_of_ceiling
from ..grade import Task
from ..grades import Failure
from ..judge import TriedCase, try_all
from ..learner import Learner
from .addresses import far_rows, no_spills

FILE = "wide.py"
WIDE = (4, 1 << 20)  # rows, columns
MANY = (8192, 4096)
SMS = 132  # of an H200
# The time of the compulsory bytes over the predicted time. A row that is divided among programs is read by two
# kernels: three passes where two are compulsory.
SHARES = {WIDE: 0.6, MANY: 0.95}
MEASURED = {WIDE: 0.4, MANY: 0.85}  # of the ceiling, on the GPU


def _case(rows: int, cols: int, dtype: Dtype = "bf16") -> Case:
    return Case(operation="rms_norm", rows=rows, cols=cols, dtype=dtype, eps=1e-6)


def _call(learner: Learner) -> Call:
    function = learner.function(FILE, "rms_norm")
    return lambda case, t: function(t.x, t.weight, case.eps)


def _try(learner: Learner, *trials: TriedCase) -> None:
    try_all(learner, _call(learner), trials, RMS_NORM)


def narrow_rows(learner: Learner) -> None:
    """Rows that one program can hold."""
    _try(learner, TriedCase(_case(40, 300, "fp32")), TriedCase(_case(3, 77, "fp16")))


def wide_rows(learner: Learner) -> None:
    """Rows that are divided, also unevenly, with values whose squares need fp32; widths differ in every check."""
    random.seed(learner.seed)
    _try(
        learner,
        TriedCase(_case(1, 1 << 15, "fp32")),
        TriedCase(_case(1, 50_001, "fp32")),
        TriedCase(_case(1, 20_000, "fp16"), scale=300.0, habit="low-precision"),
        TriedCase(_case(2, random.randint(9000, 24_000), "fp32")),
    )


def far(learner: Learner) -> None:
    """Rows more than 2^31 elements away, short and wide ones."""
    for cols in (4096, 1 << 20):
        far_rows(learner, _call(learner), _case(1, cols))


def enough_programs(learner: Learner) -> None:
    """Few rows still fill the device, without spills."""
    kernels = compile_kernels(learner, _call(learner), _case(*WIDE)).kernels
    no_spills(kernels)
    for one in kernels:
        if {"x", "y"} & set(one.tensors) and one.n_programs < SMS:
            raise Failure(
                f"{one.name} runs {one.n_programs} programs for {WIDE[0]} rows of {WIDE[1]} columns, expected at least "
                f"{SMS}: one for each multiprocessor of an H200",
                "few-programs",
            )


def wide_loads(learner: Learner) -> None:
    """16 bytes for each thread and access, in both shapes."""
    for shape in (WIDE, MANY):
        for one in compile_call(learner, _call(learner), _case(*shape)).analyses:
            for access in one.tensors:
                if access.tensor in ("x", "y") and access.bytes_per_thread < 16:
                    raise Failure(
                        f"{one.kernel} at {shape[0]}x{shape[1]}: a thread accesses {access.bytes_per_thread} bytes of "
                        f"{access.tensor} at once, expected 16",
                        "narrow",
                    )


def predicted(learner: Learner) -> None:
    """The predicted share of the limit, for both shapes."""
    from rownorm.inside import TARGETS
    from rownorm_lab.compiled.roofline import ceiling_of, limits_of

    for shape, least in SHARES.items():
        case = _case(*shape)
        found = compile_call(learner, _call(learner), case)
        ceiling = ceiling_of(limits_of(TARGETS["sm_90"]), case).bytes_per_second
        share = case.compulsory_bytes / ceiling / found.predicted_seconds
        if share < least:
            names = ", ".join(one.kernel for one in found.analyses)
            raise Failure(
                f"{case.title}: {names} would take {found.predicted_seconds * 1e6:.3g} µs, {share:.0%} of the limit, "
                f"expected {least:.0%}; they move {found.memory_bytes / case.compulsory_bytes:.2g} times the "
                "compulsory bytes",
                "passes-of-memory",
            )


def measured(learner: Learner) -> None:
    """The share of the measured ceiling, for both shapes."""
    for shape, least in MEASURED.items():
        share = share_of_ceiling(learner, _call(learner), _case(*shape))
        if share < least:
            raise Failure(
                f"{shape[0]}x{shape[1]} bf16 runs at {share:.0%} of the ceiling, expected {least:.0%}"
            )


TASKS = [
    Task("values", "rows of one program", narrow_rows),
    Task("values", "divided rows", wide_rows),
    Task("values", "row offsets beyond 2^31", far, ("interpret",)),
    Task("programs", "four rows fill the device", enough_programs, ("compile",)),
    Task("accesses", "16 bytes at once", wide_loads, ("compile",)),
    Task("limit", "predicted share of the limit", predicted, ("compile",)),
    Task("speed", "share of the ceiling", measured, ("gpu",)),
]
