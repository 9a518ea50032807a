"""Exercise 4: RMSNorm + ReLU and bias + LayerNorm in one kernel each; the bytes that this saves."""

from __future__ import annotations

import random
from collections.abc import Callable

from rownorm_lab.data.case import Case, Dtype

from ..alternatives import BIAS_LAYER_NORM, RMS_NORM_RELU, Alternatives
from ..calls import Call, compile_call, measured_call
from ..grade import Task
from ..grades import Failure
from ..judge import TriedCase, try_all
from ..learner import Learner
from .addresses import far_rows

FILE, BYTES = "fusion.py", "traffic.py"
FASTER = 1.2  # than torch's separate operators, at 8192 x 4096


def _relu_case(rows: int, cols: int, dtype: Dtype = "fp32", eps: float = 1e-6) -> Case:
    return Case(operation="rms_norm", activation="relu", rows=rows, cols=cols, dtype=dtype, eps=eps)


def _bias_case(rows: int, cols: int, dtype: Dtype = "fp32", eps: float = 1e-5) -> Case:
    return Case(operation="layer_norm", pre_bias=True, rows=rows, cols=cols, dtype=dtype, eps=eps)


def relu_call(learner: Learner) -> Call:
    """The learner's rms_norm_relu."""
    function = learner.function(FILE, "rms_norm_relu")
    return lambda case, t: function(t.x, t.weight, case.eps)


def bias_call(learner: Learner) -> Call:
    """The learner's bias_layer_norm."""
    function = learner.function(FILE, "bias_layer_norm")
    return lambda case, t: function(t.x, t.pre_bias, t.weight, t.bias, case.eps)


def _tasks(
    part: str,
    call: Callable[[Learner], Call],
    case: Callable[..., Case],
    known: Alternatives,
) -> list[Task]:
    def trying(*trials: TriedCase) -> Callable[[Learner], None]:
        return lambda learner: try_all(learner, call(learner), trials, known, most_launches=1)

    return [
        Task(
            part,
            "the formula, in one kernel",
            trying(
                TriedCase(case(4, 1024)),
                TriedCase(case(3, 1024), weight_scale=-1.0),
                TriedCase(case(3, 1024, eps=0.05), data="near_eps"),
            ),
        ),
        Task(
            part,
            "widths that fill no block",
            trying(*(TriedCase(case(3, cols), shift=3.0) for cols in (1000, 77, 1, 5000))),
        ),
        *(
            [
                Task(
                    part,
                    "a mean far larger than the spread",
                    trying(TriedCase(case(3, 1024), data="offset", habit="cancellation")),
                )
            ]
            if part == "bias"
            else []
        ),
        Task(
            part,
            "16-bit rows of a wider tensor",
            trying(
                TriedCase(case(3, 500, "fp16"), scale=300.0, habit="low-precision"),
                TriedCase(case(3, 500, "bf16"), layout="strided"),
            ),
        ),
        Task(
            part,
            "row offsets beyond 2^31",
            lambda learner: far_rows(learner, call(learner), case(1, 4096, "fp16")),
            ("interpret",),
        ),
        Task(
            part,
            "bytes that the compiled kernel moves",
            lambda learner: _moves(learner, call(learner), case(8192, 4096, "fp16")),
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


def _moves(learner: Learner, call: Call, case: Case) -> None:
    """What the compiled kernel moves to and from memory: the row once, in and out."""
    moved = compile_call(learner, call, case).memory_bytes
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

    for call, case in (
        (relu_call(learner), _relu_case(8192, 4096, "fp16")),
        (bias_call(learner), _bias_case(8192, 4096, "fp16")),
    ):
        seconds = measured_call(learner, call, case, (EAGER,))
        ratio = seconds[EAGER] / seconds[MINE]
        if ratio < FASTER:
            raise Failure(
                f"{case.title}: {ratio:.2f} times as fast as torch's separate operators, expected {FASTER}"
            )


TASKS = [
    *_tasks("relu", relu_call, _relu_case, RMS_NORM_RELU),
    *_tasks("bias", bias_call, _bias_case, BIAS_LAYER_NORM),
    Task("bytes", "predicted", predicted, ("interpret",)),
    Task("speed", "against separate operators", faster, ("gpu",)),
]
