"""Exercise 3: LayerNorm in three passes, in two with shifted sums, in two by Welford's merging; a row that breaks."""

from __future__ import annotations

import math
import random
from functools import cache, partial
from typing import Any

import torch

from ..alternatives import LAYER_NORM, LAYER_NORM_SHIFTED, LAYER_NORM_WELFORD, Alternatives
from ..grade import Task
from ..grades import Failure
from ..judge import TriedCase, tensors_of, try_one
from ..learner import Learner
from ..protocol import Watch
from .norms import Norm, no_spills, norm_case, passes_over_rows, share_of_limit

FILE = "layernorm.py"
SIZES = ((32768, 128), (32768, 768), (16384, 4096), (8192, 8192))  # rows, columns of the part tuned
BETWEEN = ((129, 767), (1025, 2047), (4097, 8191))  # columns of rows that tuned reads once, too
ONE_PASS = 1.05
# In fp32, sums of its square are rounded in the same direction in nearly every step.
APART = 3865.0
# Of trials whose bits are compared: in one trial of twenty, the bits of all 8 rows are equal by chance.
OWN_ROWS = range(8, 14)
ROWS = 96  # of the case that is compiled
WIDEST = 66_000  # columns: more than a solution may have counted on
LEAST = 0.9  # of the predicted limit
FIRST = (
    ". Nothing is timed here, so the first configuration of @triton.autotune is graded: choose num_warps in the "
    "function, or by @triton.heuristics"
)
_case = partial(norm_case, operation="layer_norm", eps=1e-5)


def _norm(name: str, known: Alternatives) -> Norm:
    return Norm(
        FILE, f"layer_norm_{name}", lambda case, t: (t.x, t.weight, t.bias, case.eps), known
    )


NORMS = {
    "three_pass": _norm("three_pass", LAYER_NORM),
    "two_pass": _norm("two_pass", LAYER_NORM_SHIFTED),
    "welford": _norm("welford", LAYER_NORM_WELFORD),
    "tuned": _norm("tuned", LAYER_NORM),
}
PASSES = {"three_pass": 3, "two_pass": 2, "welford": 2}  # over x
FAR = _case(1, 4096, "fp16")
NEAR_EPS = TriedCase(_case(3, 1024, eps=0.05), data="near_eps")
MANY_ROWS = TriedCase(_case(141, 8), orders=0, habit="many-rows")
IN_16_BITS = (
    TriedCase(_case(3, 500, "fp16"), scale=300.0, habit="low-precision"),
    TriedCase(_case(3, 500, "bf16"), layout="strided"),
    TriedCase(_case(3, 500, "fp16"), shift=100.0, habit="low-precision"),
    TriedCase(_case(3, 500, "bf16"), weight_dtype="fp32", habit="weight-dtype"),
)


def _tasks(name: str) -> list[Task]:
    """The same steps for each of the three functions."""
    norm = NORMS[name]
    merging = "welford-weights" if name == "welford" else ""
    steps = {
        "the formula": norm.trying(TriedCase(_case(4, 1024), shift=1.0), NEAR_EPS),
        "widths that fill no block": norm.trying(
            *(TriedCase(_case(3, cols), shift=3.0) for cols in (1000, 77, 1))
        ),
        "rows of several blocks": norm.trying(
            TriedCase(_case(2, 2500), habit=merging),
            TriedCase(_case(1, WIDEST), habit="wide-rows"),
        ),
        "many rows": norm.trying(MANY_ROWS),
        "a mean far larger than the spread": norm.trying(
            TriedCase(_case(3, 1024), data="offset", habit="cancellation"),
            TriedCase(_case(3, 2500), data="offset", habit="cancellation"),
            TriedCase(_case(3, 1024), steps=1e4, habit="own-shift"),
        ),
        "16-bit rows of a wider tensor": norm.trying(*IN_16_BITS),
    }
    first = []
    if merging:
        first = [Task(name, "a kernel of its own", own_kernel, ("interpret",))]
        outliers = TriedCase(_case(4, 8200), outliers=1e3, habit="shift-outlier")
        steps |= {"outliers": norm.trying(outliers), "blocks that lie far apart": far_apart}
    return [
        *first,
        *(Task(name, title, step) for title, step in steps.items()),
        norm.far(name, FAR),
        Task(name, "passes over the row", lambda learner: _passes(learner, name), ("compile",)),
    ]


def tuned_between(learner: Learner) -> None:
    """One pass over rows of other widths, as the interpreter has recorded it."""
    random.seed(learner.seed)
    for narrowest, widest in BETWEEN:
        trial = TriedCase(_case(2, random.randint(narrowest, widest)))
        found = NORMS["tuned"].passes(learner, trial)
        if found > ONE_PASS:
            raise Failure(
                f"{trial}: layer_norm_tuned loads each row {found:.2g} times, expected once",
                "passes",
            )


def tuned(learner: Learner) -> None:
    """One pass, no spills and 90% of the predicted limit, for each size."""
    for rows, cols in SIZES:
        case = _case(rows, cols, "fp16")
        found = NORMS["tuned"].compiled(learner, case)
        first = FIRST if "autotune" in learner.text(FILE) else ""
        try:
            no_spills(found.kernels)
        except Failure as failure:
            raise Failure(f"with {cols} columns, {failure}{first}", failure.habit) from None
        passes_over_rows(found, 1, f"layer_norm_tuned with {cols} columns")
        share = share_of_limit(found, case)
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
            y = NORMS[name].call(learner)(trial.case, tensors_of(trial, learner))
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
    seen = try_one(learner, NORMS["welford"].call(learner), trial, LAYER_NORM_WELFORD)
    if any(max(shape, default=1) >= WIDEST for shape in seen.blocks):
        raise Failure(f"{trial}: a block holds the whole row, and is merged with none", "no-merge")


def _passes(learner: Learner, name: str) -> None:
    compiled = NORMS[name].compiled(learner, _case(ROWS, 4096, "fp16"))
    passes_over_rows(compiled, PASSES[name], f"layer_norm_{name}")


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
    *(task for name in PASSES for task in _tasks(name)),
    Task(
        "tuned",
        "values",
        NORMS["tuned"].trying(
            *(TriedCase(_case(2, cols), shift=3.0) for cols in (128, 77, 768)),
            TriedCase(_case(1, 8192), shift=3.0),
            TriedCase(_case(1, 12_000), shift=3.0, habit="wide-rows"),
            TriedCase(_case(1, 4096), data="offset", habit="cancellation"),
            NEAR_EPS,
            MANY_ROWS,
        ),
    ),
    Task("tuned", "16-bit rows of a wider tensor", NORMS["tuned"].trying(*IN_16_BITS)),
    Task("tuned", "one pass, whatever the width", tuned_between, ("interpret",)),
    NORMS["tuned"].far("tuned", FAR),
    Task("tuned", "four sizes, compiled", tuned, ("compile",)),
    Task("breaking", "a row that breaks the short formula", breaking, ("interpret",)),
]
