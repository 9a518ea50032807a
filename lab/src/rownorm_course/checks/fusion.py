"""Exercise 4: RMSNorm + ReLU and bias + LayerNorm in one kernel each; the bytes that this saves."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from rownorm_lab.data.case import Case

from ..alternatives import BIAS_LAYER_NORM, RMS_NORM_RELU
from ..calls import measured_call
from ..grade import Task
from ..grades import Failure
from ..judge import TriedCase
from ..learner import Learner
from .norms import Norm, norm_case

FILE, BYTES = "fusion.py", "traffic.py"
FASTER = 1.2  # than torch's separate operators, at 8192 x 4096


_relu_case = partial(norm_case, activation="relu")
_bias_case = partial(norm_case, operation="layer_norm", pre_bias=True, eps=1e-5)
RELU = Norm(FILE, "rms_norm_relu", known=RMS_NORM_RELU, most_launches=1)
BIAS = Norm(
    FILE,
    "bias_layer_norm",
    lambda case, t: (t.x, t.pre_bias, t.weight, t.bias, case.eps),
    BIAS_LAYER_NORM,
    most_launches=1,
)


def _tasks(part: str, norm: Norm, case: Callable[..., Case]) -> list[Task]:
    steps = {
        "the formula, in one kernel": norm.trying(
            TriedCase(case(4, 1024)),
            TriedCase(case(3, 1024), weight_scale=-1.0),
            TriedCase(case(3, 1024, eps=0.05), data="near_eps"),
        ),
        "widths that fill no block": norm.trying(
            *(TriedCase(case(3, cols), shift=3.0) for cols in (1000, 77, 1, 5000))
        ),
    }
    if norm is BIAS:
        steps["a mean far larger than the spread"] = norm.trying(
            TriedCase(case(3, 1024), data="offset", habit="cancellation")
        )
    steps["16-bit rows of a wider tensor"] = norm.trying(
        TriedCase(case(3, 500, "fp16"), scale=300.0, habit="low-precision"),
        TriedCase(case(3, 500, "bf16"), layout="strided"),
    )
    return [
        *(Task(part, name, step) for name, step in steps.items()),
        norm.far(part, case(1, 4096, "fp16")),
        Task(
            part,
            "bytes that the compiled kernel moves",
            lambda learner: _moves(learner, norm, case(8192, 4096, "fp16")),
            ("compile",),
        ),
    ]


def predicted(learner: Learner) -> None:
    """The bytes with and without fusion, for sizes that the learner does not know."""
    random.seed(learner.seed)
    rows, cols, item = random.randint(1000, 9000), random.randint(1000, 9000), random.choice([2, 4])
    whole = rows * cols * item
    # Parameters, and statistics of a row that a norm may keep: counted or not.
    vectors = 4 * cols * item + 2 * 4 * rows
    for name, passes in (
        ("relu_bytes_separate", 4),
        ("relu_bytes_fused", 2),
        ("bias_bytes_separate", 4),
        ("bias_bytes_fused", 2),
    ):
        got = learner.function(BYTES, name)(rows, cols, item)
        if not passes * whole <= got <= passes * whole + vectors:
            raise Failure(
                f"{name}({rows}, {cols}, {item}) is {got:,}: {got / whole:.3g} times the bytes of x. Each kernel reads "
                "its input from memory once and writes its output once; add up the kernels",
                "wrong-figure",
            )


def _moves(learner: Learner, norm: Norm, case: Case) -> None:
    """What the compiled kernel moves to and from memory: the row once, in and out."""
    moved = norm.compiled(learner, case).memory_bytes
    if moved > 1.02 * case.compulsory_bytes:
        raise Failure(
            f"{case.title}: the compiled kernel moves {moved:,.0f} bytes to and from memory, expected "
            f"{case.compulsory_bytes:,}",
            "not-fused",
        )


def faster(learner: Learner) -> None:
    """One kernel against torch's separate operators, on the GPU."""
    from rownorm_lab.data.records import EAGER

    from ..measured import MINE

    for norm, case_of in ((RELU, _relu_case), (BIAS, _bias_case)):
        case = case_of(8192, 4096, "fp16")
        seconds = measured_call(learner, norm.call(learner), case, (EAGER,))
        ratio = seconds[EAGER] / seconds[MINE]
        if ratio < FASTER:
            raise Failure(
                f"{case.title}: {ratio:.2f} times as fast as torch's separate operators, expected {FASTER}"
            )


TASKS = [
    *_tasks("relu", RELU, _relu_case),
    *_tasks("bias", BIAS, _bias_case),
    Task("bytes", "predicted", predicted, ("interpret",)),
    Task("speed", "against separate operators", faster, ("gpu",)),
]
