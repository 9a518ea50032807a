"""What can be trained: a model, its sizes, its data, and the settings of the optimizer for each size."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import Stage, tiny_dit, tiny_llama, tiny_openfold
from .data import alignments, images, language
from .tiny_dit import TinyDiT
from .tiny_llama import TinyLlama
from .tiny_openfold import TinyOpenFold


class Budget(NamedTuple):
    """The usual number of samples in a step, over all processes, and the learning rate."""

    n_samples: int
    learning_rate: float


class Task(NamedTuple):
    """One of the models with everything that is needed to train it.

    draw: (config, n, generator) to inputs and targets of n samples; the targets are classes.
    units_of: what one sample counts as in a rate, and unit: its name.
    """

    name: str
    model: Callable[[Any, Stage], nn.Module]
    configs: dict[str, Any]
    budgets: dict[str, Budget]
    draw: Callable[[Any, int, torch.Generator], tuple[Tensor, Tensor]]
    unit: str
    units_of: Callable[[Any], int]

    def batch(self, size: str, n_samples: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a step. They depend on the arguments alone, so a run can continue anywhere."""
        # A hash, because the generator of a CPU uses 32 bits of its seed.
        digest = hashlib.sha256(f"{seed} {step}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))
        return self.draw(self.configs[size], n_samples, generator)


TASKS = {
    "llama": Task(
        "llama",
        TinyLlama,
        tiny_llama.SIZES,
        {"tiny": Budget(16, 3e-3), "small": Budget(16, 1e-3), "medium": Budget(8, 3e-4)},
        language,
        "tokens",
        lambda config: config.n_tokens,
    ),
    "openfold": Task(
        "openfold",
        TinyOpenFold,
        tiny_openfold.SIZES,
        {"tiny": Budget(4, 3e-3), "small": Budget(4, 1e-3), "medium": Budget(2, 5e-4)},
        alignments,
        "samples",
        lambda config: 1,
    ),
    "dit": Task(
        "dit",
        TinyDiT,
        tiny_dit.SIZES,
        {"tiny": Budget(16, 3e-3), "small": Budget(16, 1e-3), "medium": Budget(16, 3e-4)},
        images,
        "samples",
        lambda config: 1,
    ),
}
