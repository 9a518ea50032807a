"""A learner's function on the tensors of a case that have no contents: compiled, measured, or tried on far rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rownorm_lab.data.case import Case
from rownorm_lab.data.records import CEILING
from rownorm_lab.providers.data import Tensors

from .grades import Failure
from .learner import Learner, watching
from .measured import MINE
from .protocol import CompiledCall

TARGET = "sm_90"
Call = Callable[[Case, Tensors], Any]


def compile_call(learner: Learner, call: Call, case: Case) -> CompiledCall:
    """Record, compile and analyze what ``call`` launches for a case."""
    return _compiled(learner, call, case, "analysis")


def compile_kernels(learner: Learner, call: Call, case: Case) -> CompiledCall:
    """The same without the analysis."""
    return _compiled(learner, call, case, "kernels")


def _compiled(learner: Learner, call: Call, case: Case, purpose: str) -> CompiledCall:
    tensors = untouched(case)
    with learner.observed(watching(case, purpose, TARGET), _roles(tensors)) as seen:
        call(case, tensors)
    if not seen.launches or seen.compiled is None:
        raise Failure(f"{case.title}: the function returned without a kernel", "no-kernel")
    return seen.compiled


def measured_call(
    learner: Learner, call: Call, case: Case, others: Sequence[str]
) -> dict[str, float]:
    """Seconds by provider, the learner's function among them; timed in its process, on the GPU."""
    tensors = untouched(case)
    with learner.observed(watching(case, "measure", others=others), _roles(tensors)) as seen:
        call(case, tensors)
    return seen.measured


def share_of_ceiling(learner: Learner, call: Call, case: Case) -> float:
    """The time of the ceiling over that of the function."""
    seconds = measured_call(learner, call, case, (CEILING,))
    return seconds[CEILING] / seconds[MINE]


def _roles(tensors: Tensors) -> dict[int, str]:
    return {id(one): name for name, one in tensors._asdict().items() if one is not None}


def untouched(case: Case) -> Tensors:
    """The tensors of a case, without contents."""

    def empty(*shape: int) -> torch.Tensor:  # empty_like of the meta device imports SymPy
        return torch.empty(shape, dtype=case.torch_dtype, device="meta")

    rows = case.rows, case.cols
    backward = case.direction != "forward"
    return Tensors(
        x=empty(*rows),
        residual=empty(*rows) if case.adds else None,
        pre_bias=empty(case.cols) if case.pre_bias else None,
        weight=empty(case.cols),
        bias=empty(case.cols) if case.has_bias else None,
        dy=empty(*rows) if backward else None,
        dh=None,
    )
