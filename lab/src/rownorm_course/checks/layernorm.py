"""Exercise 3: LayerNorm in three passes, in two with shifted sums, in two by Welford's merging; a row that breaks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from rownorm.inside import TARGETS
from rownorm_lab.compiled.roofline import ceiling_of, limits_of
from rownorm_lab.data.case import Case, Dtype

from ..alternatives import LAYER_NORM, LAYER_NORM_SHIFTED, LAYER_NORM_WELFORD
from ..calls import TARGET, Call, compile_call
from ..grade import Task
from ..grades import Failure
from ..judge import TriedCase, tensors_of, try_all, try_one
from ..learner import Learner
from ..protocol import Watch
from .addresses import ROWS, far_rows, no_spills, passes_over_rows
from .shares import passes

FILE = "layernorm.py"
SIZES = ((32768, 128), (32768, 768), (16384, 4096), (8192, 8192))  # rows, columns of the part tuned
BETWEEN = ((129, 767), (1025, 2047), (4097, 8191))  # columns of rows that tuned reads once, too
ONE_PASS = 1.05
# In fp32, sums of its square are rounded in the same direction in nearly every step.
APART = 3865.0
# Of trials whose bits are compared: in one trial of twenty, the bits of all 8 rows are equal by chance.
OWN_ROWS = range(8, 14)
WIDEST = 66_000  # columns: more than a solution may have counted on
LEAST = 0.9  # of the predicted limit
FIRST = (
    ". Nothing is timed here, so the first configuration of @triton.autotune is graded: choose num_warps in the "
    "function, or by @triton.heuristics"
)
KNOWN = {
    "three_pass": LAYER_NORM,
    "two_pass": LAYER_NORM_SHIFTED,
    "welford": LAYER_NORM_WELFORD,
}
FUNCTIONS = {"three_pass": 3, "two_pass": 2, "welford": 2}  # passes over x


def _case(rows: int, cols: int, dtype: Dtype = "fp32", eps: float = 1e-5) -> Case:
    return Case(operation="layer_norm", rows=rows, cols=cols, dtype=dtype, eps=eps)


MANY_ROWS = TriedCase(_case(141, 8), orders=0, habit="many-rows")
IN_16_BITS = (
    TriedCase(_case(3, 500, "fp16"), scale=300.0, habit="low-precision"),
    TriedCase(_case(3, 500, "bf16"), layout="strided"),
    TriedCase(_case(3, 500, "fp16"), shift=100.0, habit="low-precision"),
    TriedCase(_case(3, 500, "bf16"), weight_dtype="fp32", habit="weight-dtype"),
)


def _call(learner: Learner, name: str) -> Call:
    function = learner.function(FILE, f"layer_norm_{name}")
    return lambda case, t: function(t.x, t.weight, t.bias, case.eps)


def _tasks(name: str) -> list[Task]:
    """The same steps for each of the three functions."""

    def trying(*trials: TriedCase) -> Callable[[Learner], None]:
        return lambda learner: try_all(learner, _call(learner, name), trials, KNOWN[name])

    near_eps = TriedCase(_case(3, 1024, eps=0.05), data="near_eps")
    merging = "welford-weights" if name == "welford" else ""
    own = [Task(name, "a kernel of its own", own_kernel, ("interpret",))] if merging else []
    return [
        *own,
        Task(name, "the formula", trying(TriedCase(_case(4, 1024), shift=1.0), near_eps)),
        Task(
            name,
            "widths that fill no block",
            trying(*(TriedCase(_case(3, cols), shift=3.0) for cols in (1000, 77, 1))),
        ),
        Task(
            name,
            "rows of several blocks",
            trying(
                TriedCase(_case(2, 2500), habit=merging),
                TriedCase(_case(1, WIDEST), habit="wide-rows"),
            ),
        ),
        Task(name, "many rows", trying(MANY_ROWS)),
        Task(
            name,
            "a mean far larger than the spread",
            trying(
                TriedCase(_case(3, 1024), data="offset", habit="cancellation"),
                TriedCase(_case(3, 2500), data="offset", habit="cancellation"),
                TriedCase(_case(3, 1024), steps=1e4, habit="own-shift"),
            ),
        ),
        Task(
            name,
            "16-bit rows of a wider tensor",
            trying(*IN_16_BITS),
        ),
        *(
            [
                Task(
                    name,
                    "outliers",
                    trying(TriedCase(_case(4, 8200), outliers=1e3, habit="shift-outlier")),
                ),
                Task(name, "blocks that lie far apart", far_apart),
            ]
            if merging
            else []
        ),
        Task(name, "row offsets beyond 2^31", lambda learner: _far(learner, name), ("interpret",)),
        Task(name, "passes over the row", lambda learner: _passes(learner, name), ("compile",)),
    ]


def _trying_tuned(learner: Learner, *trials: TriedCase) -> None:
    try_all(learner, _call(learner, "tuned"), trials, LAYER_NORM)


def tuned_values(learner: Learner) -> None:
    """Narrow and wide rows, large means."""
    _trying_tuned(
        learner,
        *(TriedCase(_case(2, cols), shift=3.0) for cols in (128, 77, 768)),
        TriedCase(_case(1, 8192), shift=3.0),
        TriedCase(_case(1, 12_000), shift=3.0, habit="wide-rows"),
        TriedCase(_case(1, 4096), data="offset", habit="cancellation"),
        TriedCase(_case(3, 1024, eps=0.05), data="near_eps"),
        MANY_ROWS,
    )


def tuned_in_16_bits(learner: Learner) -> None:
    """As those of the other functions."""
    _trying_tuned(learner, *IN_16_BITS)


def tuned_between(learner: Learner) -> None:
    """One pass over rows of other widths, as the interpreter has recorded it."""
    random.seed(learner.seed)
    for narrowest, widest in BETWEEN:
        trial = TriedCase(_case(2, random.randint(narrowest, widest)))
        t = tensors_of(trial, learner)
        with learner.observed(Watch(everything=True, orders=0)) as seen:
            _call(learner, "tuned")(trial.case, t)
        found = passes(seen, trial.case.rows, trial.case.cols)
        if found > ONE_PASS:
            raise Failure(
                f"{trial}: layer_norm_tuned loads each row {found:.2g} times, expected once",
                "passes",
            )


def tuned(learner: Learner) -> None:
    """One pass, no spills and 90% of the predicted limit, for each size."""
    for rows, cols in SIZES:
        case = _case(rows, cols, "fp16")
        found = compile_call(learner, _call(learner, "tuned"), case)
        first = FIRST if "autotune" in learner.text(FILE) else ""
        try:
            no_spills(found.kernels)
        except Failure as failure:
            raise Failure(f"with {cols} columns, {failure}{first}", failure.habit) from None
        passes_over_rows(found, 1, f"layer_norm_tuned with {cols} columns")
        ceiling = ceiling_of(limits_of(TARGETS[TARGET]), case).bytes_per_second
        share = case.compulsory_bytes / ceiling / found.predicted_seconds
        if share < LEAST:
            bytes_each = min(
                access.bytes_per_thread for one in found.analyses for access in one.tensors
            )
            raise Failure(
                f"{case.title} would run at {share:.0%} of the limit, expected {LEAST:.0%}. A thread accesses "
                f"{bytes_each} bytes at once with {found.analyses[0].warps} warps{first}",
                "more-threads-than-work" if cols < 32 * 8 * found.analyses[0].warps else "narrow",
            )


def own_kernel(learner: Learner) -> None:
    """layer_norm_welford computes another thing than the other functions.

    It starts another kernel, or one with another constant, and in some of several trials its results differ from theirs
    in some bits: merged statistics are rounded elsewhere than sums over the row, if not in every row.
    """

    @cache
    def ran(name: str, rows: int) -> tuple[Any, Any]:
        trial = TriedCase(_case(rows, 2500), shift=3.0 * rows)
        with learner.observed(Watch(orders=0)) as seen:
            y = _call(learner, name)(trial.case, tensors_of(trial, learner))
        numbers = [
            {key: value for key, value in one.arguments.items() if isinstance(value, int | str)}
            for one in seen.launches
        ]
        return ([one.kernel for one in seen.launches], numbers), y

    def same_bits(name: str, rows: int) -> bool:
        one, other = ran("welford", rows)[1], ran(name, rows)[1]
        both = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        return both and one.dtype == other.dtype and one.equal(other)

    for name in ("three_pass", "two_pass", "tuned"):
        started, _ = ran("welford", OWN_ROWS[0])
        try:
            other, _ = ran(name, OWN_ROWS[0])
        except Failure:  # that is its own part's
            continue
        if other == started:
            raise Failure(
                f"layer_norm_welford starts {', '.join(other[0])}, as layer_norm_{name} does",
                "same-kernel",
            )
        if all(same_bits(name, rows) for rows in OWN_ROWS):
            raise Failure(
                f"layer_norm_welford has the bits of layer_norm_{name} in all of {sum(OWN_ROWS)} rows of 2500 columns: "
                "it computes the statistics in the same way",
                "same-kernel",
            )


def far_apart(learner: Learner) -> None:
    """Blocks that have other means than the first one, in rows that are wider than a block may be."""
    trial = TriedCase(_case(1, WIDEST), apart=APART, habit="shift-block")
    seen = try_one(learner, _call(learner, "welford"), trial, LAYER_NORM_WELFORD)
    if any(max(shape, default=1) >= WIDEST for shape in seen.blocks):
        raise Failure(f"{trial}: a block holds the whole row, and is merged with none", "no-merge")


def _far(learner: Learner, name: str) -> None:
    """Rows more than 2^31 elements away, of x and y."""
    far_rows(learner, _call(learner, name), _case(1, 4096, "fp16"))


def _passes(learner: Learner, name: str) -> None:
    compiled = compile_call(learner, _call(learner, name), _case(ROWS, 4096, "fp16"))
    passes_over_rows(compiled, FUNCTIONS[name], f"layer_norm_{name}")


def breaking(learner: Learner) -> None:
    """A row whose naive variance is worthless in fp32, and that has a variance worth computing."""
    row = learner.function(FILE, "breaking_row")()
    if not isinstance(row, torch.Tensor) or row.dtype != torch.float32 or row.dim() != 1:
        raise Failure("breaking_row() must return a one-dimensional float32 tensor")
    if row.numel() < 2:
        raise Failure(f"breaking_row() has {row.numel()} elements, and so no spread", "no-spread")
    if not row.isfinite().all():
        raise Failure("breaking_row() has values that are not finite; those break every formula")
    exact = row.double().var(correction=0).item()
    naive = (row.square().mean() - row.mean().square()).item()
    if not math.isfinite(naive):
        raise Failure(
            f"mean(x^2) - mean(x)^2 of breaking_row() is {naive:g}: the squares overflow, which is another "
            "mistake than the loss of digits that this part is about",
            "overflows",
        )
    if exact < 1e-6:
        raise Failure(
            f"the exact variance of breaking_row() is {exact:.3g}, expected at least 1e-6",
            "no-spread",
        )
    error = abs(naive - exact) / exact
    if error < 0.5:
        raise Failure(
            f"the variance of breaking_row() is {exact:.6g}, and mean(x^2) - mean(x)^2 gives {naive:.6g} in fp32: an "
            f"error of {error:.2%}, expected more than 50%",
            "small-mean",
        )


TASKS = [
    *(task for name in FUNCTIONS for task in _tasks(name)),
    Task("tuned", "values", tuned_values),
    Task("tuned", "16-bit rows of a wider tensor", tuned_in_16_bits),
    Task("tuned", "one pass, whatever the width", tuned_between, ("interpret",)),
    Task(
        "tuned", "row offsets beyond 2^31", lambda learner: _far(learner, "tuned"), ("interpret",)
    ),
    Task("tuned", "four sizes, compiled", tuned, ("compile",)),
    Task("breaking", "a row that breaks the short formula", breaking, ("interpret",)),
]
