"""Time of whole training steps of a DiT, forward and backward, with PyTorch's operators and with rownorm's norms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...data.case import Case
from ...data.records import OURS
from ...measure.timing import step_seconds
from ...models import DIT_SIZES, TINY, Size, Stage
from ...models.tiny_dit import DiTConfig, TinyDiT
from ...models.workload import repeated_blocks
from .workload import Call, Workload

BF16 = torch.bfloat16
N_LETTERS = 16


def calls_of(case: Case, providers: Sequence[str], device: str) -> Mapping[str, Call]:
    """A training step of each provider: good PyTorch, or the same with rownorm's norms."""
    return {
        name: step_of(case, "rownorm" if name == OURS else "fused", device) for name in providers
    }


def step_of(case: Case, stage: Stage, device: str) -> Call:
    """A training step of a stack of blocks as wide as the case."""
    size = DIT_SIZES.get(case.cols, TINY)
    config, autocast = config_of(size), case.setting.endswith("autocast")
    torch.manual_seed(0)
    with torch.device(
        device
    ):  # a CPU draws the 680 million parameters of the wide stack in seconds
        model = TinyDiT(config, stage).to(device, None if autocast else BF16)
    for parameter in model.parameters():
        if not parameter.any():  # modulations, so that no gate is 0
            torch.nn.init.normal_(parameter, std=0.02)
    if case.setting.endswith("compiled"):
        torch.compiler.reset()  # code of another stage counts against the limit of recompilations
        for block in repeated_blocks(model):
            block.compile(dynamic=False)
    levels = torch.randint(config.n_levels, (size.batch, 1), device=device)
    letters = torch.randint(N_LETTERS, (size.batch, config.n_tokens), device=device)
    images, gradient = torch.cat((levels, letters), dim=1), None

    def step() -> None:
        nonlocal gradient
        with torch.autocast(device, BF16, enabled=autocast):
            logits: Tensor = model(images)
        if gradient is None:
            gradient = torch.randn_like(logits)
        model.zero_grad(set_to_none=True)
        logits.backward(gradient)

    return step


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


WORKLOAD = Workload(calls_of, lambda step, _, device: step_seconds(step, device))
