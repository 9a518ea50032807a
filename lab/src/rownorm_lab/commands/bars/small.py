"""Time of whole training steps, forward and backward, with torch's norms and with rownorm's, in turns."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...data.case import Case
from ...measure.timing import step_seconds
from ...models import SMALL_MODELS, TINY, SmallModel
from ...models.small import VOCABULARY, Model, Norms
from .workload import Call, Workload

BF16 = torch.bfloat16


def calls_of(case: Case, providers: Sequence[Norms | str], device: str) -> Mapping[str, Call]:
    """A training step with the norms of each provider."""
    return {norms: step_of(case, norms, device) for norms in providers}  # type: ignore[arg-type]


def step_of(case: Case, norms: Norms, device: str) -> Call:
    """A training step of the model that the case names."""
    name: SmallModel = case.name  # type: ignore[assignment]
    size = TINY if case.cols == TINY.width else SMALL_MODELS[name]
    autocast = "autocast" in case.setting
    stream = BF16 if case.setting.endswith("bf16 stream") else None
    out_dtype = BF16 if case.setting.endswith("out bf16") and norms != "torch" else None
    torch.manual_seed(0)
    model = Model(name, size, norms, out_dtype).to(device, None if autocast else BF16)
    tokens = torch.randint(VOCABULARY, (size.batch, size.n_tokens), device=device)
    gradient: Tensor | None = None

    def step() -> None:
        nonlocal gradient
        with torch.autocast(device, BF16, enabled=autocast):
            y = model(tokens, stream)
        if gradient is None:
            gradient = torch.randn(y.shape, device=device, dtype=y.dtype)
        model.zero_grad(set_to_none=True)
        y.backward(gradient)

    return step


def _context(case: Case, device: str) -> Any:
    has_default = case.setting.endswith("default device")
    return torch.device(device) if has_default else contextlib.nullcontext()


WORKLOAD = Workload(calls_of, lambda step, _, device: step_seconds(step, device), _context)
