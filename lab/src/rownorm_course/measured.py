"""Time a learner's function with the lab's clock, beside PyTorch's norm and the ceiling.

``benchmark.py`` of an exercise calls ``compare``; the grader calls ``records_of``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rownorm_lab.data.case import Case
from rownorm_lab.data.records import CEILING, EAGER, Record
from rownorm_lab.data.runs import run_id
from rownorm_lab.data.statistics import summarize
from rownorm_lab.data.texts import duration, gigabytes_per_second
from rownorm_lab.measure.bench import bench
from rownorm_lab.providers import EVERY_OPTION, Provider
from rownorm_lab.providers.data import Tensors

from .grades import Failure, Pending

MINE = "mine"


def records_of(
    call: Callable[[Case, Tensors], Any],
    cases: Sequence[Case],
    others: Sequence[str] = (EAGER, CEILING),
) -> list[Record]:
    """The lab's records of a function and of other providers. Needs a GPU."""
    if not torch.cuda.is_available():
        raise Pending("torch sees no GPU; times of the interpreter would say nothing")
    mine = Provider(
        name=MINE,
        make=lambda case, t: lambda: call(case, t),
        about="a learner's function",
        kind="plain",
        operations=("rms_norm", "layer_norm"),
        options=EVERY_OPTION,
        needs_gpu=True,
    )
    return list(bench(cases, [mine, *others], run=run_id(), rounds=10))


def medians(records: Sequence[Record], case: Case) -> dict[str, float]:
    """Seconds by provider, for one case; Failure if the learner's function was wrong or failed."""
    found = {}
    for one in records:
        if one.case.key != case.key:
            continue
        if one.provider == MINE and one.status != "ok":
            raise Failure(f"{case.title}: {one.status}: {one.why}")
        if one.seconds:
            found[one.provider] = summarize(one.seconds).median
    return found


def compare(call: Callable[[Case, Tensors], Any], cases: Sequence[Case]) -> None:
    """Print times and bandwidths; without a GPU, end the program."""
    try:
        records = records_of(call, cases)
    except Pending as reason:
        sys.exit(f"Nothing was measured: {reason}.")
    for case in cases:
        times = medians(records, case)
        shown = ", ".join(
            f"{name} {duration(value)} ({gigabytes_per_second(case.compulsory_bytes / value)})"
            for name, value in times.items()
        )
        print(f"{case.title}: {shown}")
