"""A learner's function on the tensors of a case that have no contents: compiled, measured, or tried on far rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from rownorm_lab.data.case import Case
from rownorm_lab.data.records import CEILING
from rownorm_lab.providers.data import Tensors

from .grades import Failure
from .learner import Learner
from .measured import MINE
from .protocol import CompiledCall, Seen, Watch

Call = Callable[[Case, Tensors], Any]


def compile_call(
    learner: Learner, call: Call, case: Case, purpose: Literal["analysis", "kernels"] = "analysis"
) -> CompiledCall:
    """Record and compile what ``call`` launches for a case, and analyze it unless only its kernels are asked for."""
    seen = _seen(learner, call, Watch(purpose=purpose, case=case))
    if not seen.launches or seen.compiled is None:
        raise Failure(f"{case.title}: the function returned without a kernel", "no-kernel")
    return seen.compiled


def measured_call(
    learner: Learner, call: Call, case: Case, others: Sequence[str]
) -> dict[str, float]:
    """Seconds by provider, the learner's function among them; timed in its process, on the GPU."""
    return _seen(learner, call, Watch(purpose="measure", case=case, others=list(others))).measured


def _seen(learner: Learner, call: Call, watch: Watch) -> Seen:
    """What a call does with the tensors of the watch's case, which have roles and no contents."""
    assert watch.case is not None
    tensors = untouched(watch.case)
    roles = {id(one): name for name, one in tensors._asdict().items() if one is not None}
    with learner.observed(watch, roles) as seen:
        call(watch.case, tensors)
    return seen


def share_of_ceiling(learner: Learner, call: Call, case: Case) -> float:
    """The time of the ceiling over that of the function."""
    seconds = measured_call(learner, call, case, (CEILING,))
    return seconds[CEILING] / seconds[MINE]


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
