"""Time of whole training steps, forward and backward, with torch's norms and with rownorm's, in turns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...data.judged import StepRecord
from ...data.texts import count
from ...measure.timing import in_turns, step_seconds
from ...models.small import SIZES, TINY, VOCABULARY, Kind, Model, Norms, Size

NORMS: tuple[Norms, ...] = ("torch", "rownorm", "rownorm add")
WARM_UP = 5  # steps before the first that counts


class Setting(NamedTuple):
    """How a step is run, and at least how fast it must be beside torch's norms: norms swapped, residual add."""

    name: str
    autocast: bool
    stream: torch.dtype | None  # of the residual stream; None: that of the parameters
    out_dtype: torch.dtype | None
    default_device: bool
    bars: tuple[float, float]


BF16 = torch.bfloat16
SETTINGS = (
    Setting("bf16", False, None, None, False, (1.03, 1.05)),
    Setting("autocast, fp32 stream", True, None, None, False, (1.0, 1.03)),
    Setting("autocast, fp32 stream, out_dtype=bfloat16", True, None, BF16, False, (1.05, 1.08)),
    Setting("autocast, bf16 stream", True, BF16, None, False, (1.0, 1.03)),
    Setting("default device set", False, None, None, True, (1.0, 1.0)),
)


def all_steps() -> list[tuple[Kind, Setting]]:
    """(model, setting) of every record of a run."""
    return [(kind, setting) for kind in SIZES for setting in SETTINGS]


def conditions(steps: int, tiny: bool) -> str:
    """The sizes of the models, and how many steps were timed."""
    sizes = {kind: TINY if tiny else size for kind, size in SIZES.items()}
    written = [
        f"{kind}: {size.n_layers} layers of width {size.width}, {size.batch} x {size.n_tokens} tokens"
        for kind, size in sizes.items()
    ]
    return "; ".join([*written, f"{count(steps, 'step')} of each kind of norms"])


def measure(kind: Kind, setting: Setting, steps: int, device: str, tiny: bool) -> StepRecord:
    """Time ``steps`` steps of each kind of norms, in turns."""
    size = TINY if tiny else SIZES[kind]
    step = {norms: _step(kind, size, norms, setting, device) for norms in NORMS}
    seconds: dict[str, list[float]] = {norms: [] for norms in NORMS}
    host: dict[str, list[float]] = {norms: [] for norms in NORMS}
    device_mode = torch.device(device) if setting.default_device else contextlib.nullcontext()
    with device_mode:
        for turn, norms in in_turns(NORMS, WARM_UP + steps):
            whole, on_host = step_seconds(step[norms], device)
            if turn >= WARM_UP:
                seconds[norms].append(whole)
                host[norms].append(on_host)
    bars: dict[str, float] = dict(zip(NORMS[1:], setting.bars, strict=True))
    return StepRecord(
        model=kind, setting=setting.name, seconds=seconds, host_seconds=host, bars=bars
    )


def _step(kind: Kind, size: Size, norms: Norms, setting: Setting, device: str) -> Callable[[], Any]:
    torch.manual_seed(0)
    out_dtype = None if norms == "torch" else setting.out_dtype
    model = Model(kind, size, norms, out_dtype).to(device, None if setting.autocast else BF16)
    tokens = torch.randint(VOCABULARY, (size.batch, size.n_tokens), device=device)
    gradient: Tensor | None = None

    def step() -> None:
        nonlocal gradient
        with torch.autocast(device, BF16, enabled=setting.autocast):
            y = model(tokens, setting.stream)
        if gradient is None:
            gradient = torch.randn(y.shape, device=device, dtype=y.dtype)
        model.zero_grad(set_to_none=True)
        y.backward(gradient)

    return step
