"""Exercise 5: the backward pass of RMSNorm: dx, dweight, partial sums, determinism."""

from __future__ import annotations

import re
from functools import partial

import torch
from torch import Tensor

from rownorm_lab.data.case import Case
from rownorm_lab.providers.data import Tensors

from ..alternatives import RMS_NORM_GRADIENT, Rows
from ..calls import Call, compile_call
from ..grade import Task
from ..grades import Failure
from ..judge import Counts, TriedCase, refuse_findings, tensors_of, try_all
from ..learner import Learner
from ..protocol import Watch
from .norms import far_rows, norm_case
from .shares import elements_of, loads

FILE = "backward.py"
DX = "result 0"  # its role: see Launched
COLS = 1024  # the widest row
ONCE = 1.05  # times that an element of a row is loaded
MANY = 20_000  # rows for which partial sums must be few
_case = partial(norm_case, direction="backward")


def _rstd(case: Case, t: Tensors) -> Tensor:
    return Rows(case, t).rstd[:, 0].float()


def _call(learner: Learner, only: str = "") -> Call:
    """The learner's function. only: judge this gradient; the other is the exact one."""
    function = learner.function(FILE, "rms_norm_backward")

    def call(case: Case, t: Tensors) -> tuple[Tensor, Tensor]:
        found = function(t.dy, t.x.detach(), t.weight.detach(), _rstd(case, t))
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise Failure("rms_norm_backward must return (dx, dweight)")
        dx, dweight = found
        exact = Rows(case, t)
        if only == "dweight":
            dx = (exact.rstd * (exact.g - exact.projected)).to(t.x.dtype)
        if only == "dx":
            dweight = (exact.dy * exact.x_hat).sum(0).to(t.weight.dtype)
        if dx is None or dweight is None:
            name = "dx" if dx is None else "dweight"
            raise Failure(f"{case.title}: rms_norm_backward returned None for {name}")
        return dx, dweight

    return call


# Races in the sums are the part dweight's, and the order of sums the part determinism's. Tensors are known by what
# they are: the names of a kernel's parameters are the learner's choice.
_COUNTS: dict[str, Counts] = {
    "dx": lambda one, role: one.kind in ("bounds", "int32", "lanes") or role == DX,
    "dweight": lambda one, role: one.kind != "order" and role != DX,
}


def _try(learner: Learner, only: str, *trials: TriedCase) -> None:
    try_all(learner, _call(learner, only), trials, RMS_NORM_GRADIENT, counts=_COUNTS[only])


def dx_formula(learner: Learner) -> None:
    """dx of rows that fill a block, and with the rstd of another eps."""
    _try(
        learner,
        "dx",
        TriedCase(_case(5, 1024)),
        TriedCase(_case(3, 1024, eps=0.05), data="near_eps", habit="rstd-ignored"),
    )


def dx_widths(learner: Learner) -> None:
    """dx of other widths and dtypes."""
    _try(
        learner,
        "dx",
        *(TriedCase(_case(3, cols)) for cols in (1000, 77, 1)),
        TriedCase(_case(4, 300, "fp16"), habit="low-precision", dy_like_x=True),
        TriedCase(_case(4, 300, "bf16"), habit="low-precision"),
        TriedCase(_case(4, 300, "bf16"), weight_dtype="fp32", habit="weight-dtype"),
    )


def dx_once(learner: Learner) -> None:
    """How many times a kernel loads the elements of x and dy, as the interpreter has recorded it."""
    trial = TriedCase(_case(5, 300))
    t = tensors_of(trial, learner)
    with learner.observed(Watch(everything=True, orders=0)) as seen:
        _call(learner, "dx")(trial.case, t)
    for place, name in enumerate(("dy", "x")):
        shares = loads(seen, place)
        for launch, one in enumerate(seen.launches):
            accesses = [
                each for share in shares if share.launch == launch for each in share.accesses
            ]
            found = sum(len(elements_of(each)) for each in accesses) / t.x.numel()
            if found > ONCE:
                raise Failure(
                    f"{trial}: {one.kernel} loads each element of {name} {found:.2g} times, expected once",
                    "loads-again",
                )


def dx_rows(learner: Learner) -> None:
    """dx of more rows than a solution may have counted on."""
    _try(learner, "dx", _many_rows(140 + learner.seed % 50))


def _many_rows(rows: int) -> TriedCase:
    return TriedCase(_case(rows, 8), orders=0, habit="many-rows")


def dweight_rows(learner: Learner) -> None:
    """dweight over one row, some rows, many rows: more than a solution may have counted on, in every check others."""
    _try(
        learner,
        "dweight",
        TriedCase(_case(1, 300)),
        TriedCase(_case(7, 300)),
        TriedCase(_case(7, COLS - 1)),
        _many_rows(520 + learner.seed % 100),
        TriedCase(_case(50, 300, "fp16"), habit="weight-overflow", orders=0),
    )
    # By itself: sums in 16 bits are the mistake of the case before.
    mixed = TriedCase(_case(50, 300, "fp16"), weight_dtype="fp32", habit="weight-dtype", orders=0)
    _try(learner, "dweight", mixed)


def same_bits(learner: Learner) -> None:
    """Two calls with the same inputs; in the interpreter, programs in another order."""
    trial = TriedCase(_case(24, 200))
    t = tensors_of(trial, learner)
    call = _call(learner)
    with learner.observed(Watch(masked=0.0)) as seen:  # nan differs from itself
        first, second = call(trial.case, t), call(trial.case, t)
    refuse_findings(str(trial), seen)
    for name, one, other in zip(("dx", "dweight"), first, second, strict=True):
        if not torch.equal(one, other):
            raise Failure(f"{trial}: {name} differs between two calls", "not-deterministic")


def _recorded(learner: Learner) -> Call:
    function = learner.function(FILE, "rms_norm_backward")
    return lambda case, t: function(t.dy, t.x, t.weight, torch.empty(case.rows, device=t.x.device))


def far(learner: Learner) -> None:
    """Rows more than 2^31 elements away, of x, dy and dx."""
    # A table of partial sums that is as large as x is another mistake, the part partials'.
    far_rows(learner, _recorded(learner), _case(1, COLS, "fp16"), lambda _, role: role != "")


def no_atomics(learner: Learner) -> None:
    """The interpreter runs one program after the other; atomics are found in the compiled code."""
    case = _case(64, 1024, "fp16")
    for kernel in compile_call(learner, _recorded(learner), case, "kernels").kernels:
        if re.search(r"\b(atom|red)\.\S*global", kernel.ptx):
            raise Failure(f"{kernel.name} adds with atomics", "atomics")


def few_partials(learner: Learner) -> None:
    """Memory for partial sums does not grow with the rows."""
    case = _case(MANY, 64)
    elements = _beside_dx(learner, case)
    if elements > MANY * 64 // 4:
        raise Failure(
            f"{case.title}: {elements:,} elements were allocated beside dx, expected at most {MANY * 64 // 4:,}",
            "wasteful-partials",
        )
    few, many = (_beside_dx(learner, _case(rows, 8)) for rows in (MANY, 8 * MANY))
    if many > 2 * few:
        raise Failure(
            f"{8 * MANY:,} rows of 8 columns: {many:,} elements were allocated beside dx, {few:,} for {MANY:,} rows. "
            "They must not grow with the rows",
            "wasteful-partials",
        )


def _beside_dx(learner: Learner, case: Case) -> int:
    """Elements that a call allocates, without dx."""
    t = tensors_of(TriedCase(case), learner)
    function = learner.function(FILE, "rms_norm_backward")
    with learner.observed(Watch(launch=False)) as seen:
        function(t.dy, t.x.detach(), t.weight.detach(), _rstd(case, t))
    return sum(seen.created) - case.rows * case.cols


TASKS = [
    Task("dx", "the formula", dx_formula),
    Task("dx", "widths and dtypes", dx_widths),
    Task("dx", "many rows", dx_rows),
    Task("dx", "x and dy loaded once", dx_once, ("interpret",)),
    Task("dx", "row offsets beyond 2^31", far, ("interpret",)),
    Task("dweight", "sums over rows", dweight_rows),
    Task("partials", "memory for partial sums", few_partials, ("interpret",)),
    Task("determinism", "two calls, the same bits", same_bits),
    Task("determinism", "no atomics in the compiled code", no_atomics, ("compile",)),
]
