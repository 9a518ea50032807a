"""All models in one list, in dimensions that a test can afford, and what a step of them gives."""

from typing import NamedTuple

import torch

from rownorm_lab.models.tiny_dit import DiTConfig, TinyDiT
from rownorm_lab.models.tiny_llama import LlamaConfig, TinyLlama
from rownorm_lab.models.tiny_openfold import N_LETTERS, OpenFoldConfig, TinyOpenFold

LLAMA = LlamaConfig(
    width=32, n_layers=2, n_heads=4, n_kv_heads=2, hidden=48, vocabulary=19, n_tokens=7
)
OPENFOLD = OpenFoldConfig(
    msa_width=16,
    pair_width=8,
    n_blocks=2,
    n_msa_heads=2,
    n_pair_heads=2,
    outer_width=4,
    n_sequences=3,
    n_residues=5,
    n_bins=6,
    max_offset=3,
)
DIT = DiTConfig(width=16, n_layers=2, n_heads=2, hidden=32, n_letters=5, side=3, n_levels=4)
MODELS = {
    "llama": (TinyLlama, LLAMA),
    "openfold": (TinyOpenFold, OPENFOLD),
    "dit": (TinyDiT, DIT),
}


class Step(NamedTuple):
    """The logits, and the gradients by the names of their parameters, in fp64."""

    logits: torch.Tensor
    gradients: dict[str, torch.Tensor]

    def relative_error(self, exact: "Step") -> float:
        """The largest relative error, in the norm of whole tensors, of logits and gradients."""
        pairs = [
            (self.logits, exact.logits),
            *((self.gradients[name], exact.gradients[name]) for name in exact.gradients),
        ]
        return max(float((mine - other).norm() / other.norm()) for mine, other in pairs)


def make(name, stage, dtype=torch.float32, device="cpu", seed=0):
    """A model whose norms have weights other than 1 and biases other than 0, and whose modulations are not 0."""
    kind, config = MODELS[name]
    torch.manual_seed(seed)
    model = kind(config, stage)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1 or not parameter.any():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model.to(device, dtype)


def inputs(name, device="cpu", seed=1):
    """A batch of two: tokens, or letters of an alignment."""
    generator = torch.Generator().manual_seed(seed)
    if name == "llama":
        shape, n = (2, LLAMA.n_tokens), LLAMA.vocabulary
    elif name == "dit":
        shape, n = (2, 1 + DIT.n_tokens), DIT.n_levels  # letters, too: there are more of them
    else:
        shape, n = (2, OPENFOLD.n_sequences, OPENFOLD.n_residues), N_LETTERS
    return torch.randint(n, shape, generator=generator).to(device)


def step(model, batch, amp=False):
    """Forward and backward of a fixed function of the logits."""
    model.zero_grad()
    with torch.autocast(batch.device.type, torch.bfloat16, enabled=amp):
        logits = model(batch)
    generator = torch.Generator().manual_seed(2)
    gradient = torch.randn(logits.shape, generator=generator, dtype=torch.float64)
    logits.backward(gradient.to(logits))
    gradients = {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}
    return Step(logits.detach().double(), gradients)
