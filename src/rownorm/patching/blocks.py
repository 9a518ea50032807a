"""Whether the rewritten forward of a block computes what its own forward computes: a probe of a copy of the block.

In fp32, results and gradients must agree as two orders of summation do. In 16 bits they cannot: the block rounds the
sum before its norm reads it, and the fused call does not, so it has one rounding error less. There the results and
gradients must be as near to those in fp32 as the block's own are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..program import DTYPES
from .candidates import LeftAlone, check_instance, failed, shallow_copy, undisturbed
from .forms import HALVES, SHORT_NAMES

TOLERANCE = 1e-4  # of two orders of summation in fp32, relative to the largest element
# The error in 16 bits relative to the block's own: of all tensors together, and of each.
LARGER_TOGETHER, LARGER_EACH = 1.25, 2.0
# A tensor below this share of the largest one is compared with that: its sums may cancel.
SMALL = 0.01
MODES = (True, False)  # training and evaluation
# Wide rows are few, because a probe of a large block on a CPU takes long.
BATCH, N_ELEMENTS = (2, 320)
N_SAMPLED = 1 << 16
SEED = 20

# What a forward gave: its results and the gradients of its input and parameters.
Results = dict[str, Tensor]


def check_block(
    block: nn.Module, rewrite: Callable[[nn.Module], None], width: int, dtype: torch.dtype
) -> None:
    """Raise LeftAlone if ``rewrite``, applied to a copy of the block, changes what it computes.

    width: of the rows; dtype: of the model. Neither the block nor the state of random numbers changes.
    """
    with undisturbed(next(block.parameters()).device):
        try:
            _check_block(block, rewrite, width, dtype)
        except LeftAlone:
            raise
        except Exception as error:
            raise failed("a probe of its block", error) from None


def _check_block(
    block: nn.Module, rewrite: Callable[[nn.Module], None], width: int, dtype: torch.dtype
) -> None:
    copy = _copy(block, torch.float32)
    exact = {training: _results(copy, training, width, torch.float32, dtype) for training in MODES}
    rewrite(copy)
    for training in MODES:
        largest = max(_max(one) for one in exact[training].values())
        for name, mine in _results(copy, training, width, torch.float32, dtype).items():
            expected = exact[training][name]
            scale = max(_max(expected), SMALL * largest)
            if not _max(mine - expected) <= TOLERANCE * scale:
                raise LeftAlone(f"fused, its block computes something else: {name} in fp32")
    if dtype not in HALVES:
        return
    copy = _copy(block, None)
    before = _errors(_results(copy, False, width, dtype, dtype), exact[False])
    rewrite(copy)
    after = _errors(_results(copy, False, width, dtype, dtype), exact[False])
    rounding = torch.finfo(dtype).eps
    for name, error in after.items():
        if not error <= LARGER_EACH * before[name] + rounding:
            raise LeftAlone(f"fused, its block is less accurate: {name} in {SHORT_NAMES[dtype]}")
    together = [sum(error**2 for error in errors.values()) ** 0.5 for errors in (before, after)]
    if not together[1] <= LARGER_TOGETHER * together[0] + rounding:
        raise LeftAlone(f"fused, its block is less accurate in {SHORT_NAMES[dtype]}")


def _copy(module: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """A copy of a block with its own tensors, in ``dtype`` if it is given, and without hooks."""
    known: dict[int, Tensor] = {}

    def tensor(value: Tensor | None) -> Any:
        if value is None:
            return None
        if type(value) not in (Tensor, nn.Parameter) or nn.parameter.is_lazy(value):
            raise LeftAlone("a tensor of its block is sharded, quantized or without a shape")
        if id(value) not in known:
            is_parameter, data = isinstance(value, nn.Parameter), value.detach()
            if is_parameter and data.dtype not in DTYPES:
                raise LeftAlone("a parameter of its block is quantized")
            if data.is_meta:
                data = torch.randn(data.shape, device="cpu").mul_(0.1).to(data.dtype)
            casts = data.is_floating_point() and dtype is not None
            data = data.to(dtype if casts else data.dtype, copy=True)
            known[id(value)] = nn.Parameter(data, value.requires_grad) if is_parameter else data
        return known[id(value)]

    def copied(one: nn.Module) -> nn.Module:
        check_instance(one)
        made = shallow_copy(one)
        for name, value in made.__dict__.items():
            if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")):
                made.__dict__[name] = type(value)()
        made.__dict__.pop("_compiled_call_impl", None)  # of module.compile(): it calls the original
        made.__dict__["_parameters"] = {n: tensor(value) for n, value in one._parameters.items()}
        made.__dict__["_buffers"] = {n: tensor(value) for n, value in one._buffers.items()}
        made.__dict__["_modules"] = {
            name: None if child is None else copied(child) for name, child in one._modules.items()
        }
        return made

    return copied(module)


def _results(
    block: nn.Module, training: bool, width: int, dtype: torch.dtype, drawn: torch.dtype
) -> Results:
    """Results and gradients for rows of ``dtype``, always of the same values: those that ``drawn`` can have."""
    block.train(training)
    generator = torch.Generator().manual_seed(SEED)
    device = next(block.parameters()).device

    def draw(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator, device="cpu")
        return values.to(drawn).to(device, dtype)

    n_tokens = 2 + N_ELEMENTS // width
    rows = draw(BATCH, n_tokens, width).requires_grad_()
    arguments = _arguments(block, n_tokens, dtype, device)
    torch.manual_seed(SEED)  # dropout
    with torch.enable_grad():
        returned = tree_leaves(type(block).forward(block, rows, **arguments))
        results = [one for one in returned if isinstance(one, Tensor) and one.requires_grad]
        if not results:
            raise LeftAlone("the result of its block has no gradient")
        parameters = {n: p for n, p in block.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(
            results,
            [rows, *parameters.values()],
            [draw(*one.shape).to(one.dtype) for one in results],
            allow_unused=True,
        )
    named = zip(["its input", *parameters], gradients, strict=True)
    found = {f"result {i}": _sample(one) for i, one in enumerate(results)}
    return found | {f"gradient of {name}": _sample(g) for name, g in named if g is not None}


def _sample(one: Tensor) -> Tensor:
    """The elements of a tensor, or some of them all over a large one, so that the results of a block need no memory."""
    step = one.numel() // N_SAMPLED | 1  # odd: not always the same columns
    return one.detach().flatten()[::step].float()


def _arguments(
    block: nn.Module, n_tokens: int, dtype: torch.dtype, device: torch.device
) -> dict[str, Any]:
    """The arguments of a block's forward after the first one: rotary tables, and defaults. Raises LeftAlone."""
    arguments: dict[str, Any] = {}
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for parameter in list(inspect.signature(type(block).forward).parameters.values())[2:]:
        if parameter.name == "position_embeddings":
            arguments[parameter.name] = _rotary_tables(block, n_tokens, dtype, device)
        elif parameter.default is inspect.Parameter.empty and parameter.kind not in variable:
            raise LeftAlone(f"a probe of its block cannot make the argument {parameter.name}")
    return arguments


def _rotary_tables(
    block: nn.Module, n_tokens: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """cos and sin of some angles, (batch, n_tokens, head_dim), as the models of transformers pass them to blocks."""
    sizes = (getattr(module, "head_dim", None) for module in block.modules())
    head_dim = next((size for size in sizes if type(size) is int), None)
    if head_dim is None:
        raise LeftAlone("a probe of its block cannot make the argument position_embeddings")
    angles = torch.arange(n_tokens, device=device)[:, None] * torch.linspace(
        1, 0.1, head_dim // 2, device=device
    )
    both = torch.cat((angles, angles), -1).expand(BATCH, -1, -1)
    return both.cos().to(dtype), both.sin().to(dtype)


def _errors(results: Results, exact: Results) -> dict[str, float]:
    """The relative error of each tensor, in the root mean square."""
    floor = SMALL * max(_rms(one) for one in exact.values())
    return {name: _rms(results[name] - one) / max(_rms(one), floor) for name, one in exact.items()}


def _max(one: Tensor) -> float:
    return one.abs().max().item()


def _rms(one: Tensor) -> float:
    return one.square().mean().sqrt().item()
