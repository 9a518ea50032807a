"""Time of whole training steps, forward and backward: two small models with torch's norms and with rownorm's, in turns,
and a DiT with PyTorch's operators and with rownorm's norms.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...data.case import Case
from ...data.records import OURS
from ...measure.timing import step_seconds
from ...models import DIT_SIZES, SMALL_MODELS, TINY, Size, SmallModel
from ...models.small import VOCABULARY, Model, Norms
from ...models.tiny_dit import DiTConfig, TinyDiT
from ...models.workload import repeated_blocks
from .workload import Call, Times, Workload

BF16 = torch.bfloat16
N_LETTERS = 16


def small_steps(case: Case, providers: Sequence[Norms | str], device: str) -> Mapping[str, Call]:
    """A training step of the model that the case names, with the norms of each provider."""
    return {norms: _small_step(case, norms, device) for norms in providers}  # type: ignore[arg-type]


def _small_step(case: Case, norms: Norms, device: str) -> Call:
    name: SmallModel = case.name  # type: ignore[assignment]
    size = TINY if case.cols == TINY.width else SMALL_MODELS[name]
    autocast = "autocast" in case.setting
    stream = BF16 if case.setting.endswith("bf16 stream") else None
    out_dtype = BF16 if case.setting.endswith("out bf16") and norms != "torch" else None
    torch.manual_seed(0)
    model = Model(name, size, norms, out_dtype).to(device, None if autocast else BF16)
    tokens = torch.randint(VOCABULARY, (size.batch, size.n_tokens), device=device)
    return _step(model, lambda: model(tokens, stream), device, autocast)


def dit_steps(case: Case, providers: Sequence[str], device: str) -> Mapping[str, Call]:
    """A training step of a stack of blocks as wide as the case: good PyTorch, or the same with rownorm's norms."""
    return {name: _dit_step(case, name == OURS, device) for name in providers}


def _dit_step(case: Case, is_ours: bool, device: str) -> Call:
    size = DIT_SIZES.get(case.cols, TINY)
    config, autocast = config_of(size), case.setting.endswith("autocast")
    torch.manual_seed(0)
    # A CPU draws the 680 million parameters of the wide stack in seconds.
    with torch.device(device):
        model = TinyDiT(config, "rownorm" if is_ours else "fused")
    model.to(device, None if autocast else BF16)
    for parameter in model.parameters():
        if not parameter.any():  # modulations, so that no gate is 0
            torch.nn.init.normal_(parameter, std=0.02)
    if case.setting.endswith("compiled"):
        torch.compiler.reset()  # code of another stage counts against the limit of recompilations
        for block in repeated_blocks(model):
            block.compile(dynamic=False)
    levels = torch.randint(config.n_levels, (size.batch, 1), device=device)
    letters = torch.randint(N_LETTERS, (size.batch, config.n_tokens), device=device)
    images = torch.cat((levels, letters), dim=1)
    return _step(model, lambda: model(images), device, autocast)


def config_of(size: Size) -> DiTConfig:
    """The config of a model of this size."""
    return DiTConfig(
        width=size.width,
        n_layers=size.n_layers,
        n_heads=size.n_heads,
        hidden=4 * size.width,
        n_letters=N_LETTERS,
        side=math.isqrt(size.n_tokens),
    )


def _step(model: nn.Module, forward: Callable[[], Tensor], device: str, autocast: bool) -> Call:
    gradient: Tensor | None = None

    def step() -> None:
        nonlocal gradient
        with torch.autocast(device, BF16, enabled=autocast):
            y = forward()
        if gradient is None:
            gradient = torch.randn_like(y)
        model.zero_grad(set_to_none=True)
        y.backward(gradient)

    return step


def _context(case: Case, device: str) -> Any:
    has_default = case.setting.endswith("default device")
    return torch.device(device) if has_default else contextlib.nullcontext()


def _round(step: Call, repeats: int, device: str) -> Times:
    return step_seconds(step, device)


SMALL = Workload(small_steps, _round, _context)
DIT = Workload(dit_steps, _round)
