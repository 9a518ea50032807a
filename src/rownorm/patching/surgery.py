"""``patch`` and ``unpatch``. All modules are examined before the first one is changed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .. import nn as rownorm_nn
from ..program import DTYPES
from .candidates import LeftAlone, candidate_of, check_instance, torch_forward
from .forms import SHORT_NAMES
from .fusion import Blocks
from .probe import Prober
from .report import Fused, Left, Report, Swapped
from .swap import (
    TORCH_NORMS,
    Patched,
    PatchedBlock,
    PatchedForm,
    Swap,
    check_class,
    has_other_forward,
    is_swapped,
    restore,
    swap,
)

OWN = (rownorm_nn.LayerNorm, rownorm_nn.RMSNorm, rownorm_nn.RMSNormGated)
OUT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def patch(
    model: nn.Module, *, out_dtype: torch.dtype | None = None, fuse_residuals: bool = False
) -> Report:
    """Let rownorm compute the norms of a model, in place; returns a report, which can be printed.

    ``nn.LayerNorm`` and ``nn.RMSNorm`` are swapped by type. Any other module is probed: it is swapped if exactly one
    form of the row program gives its results and gradients. Everything else is left alone, and norms among it are in
    the report with the reason. Parameters, hooks, ``state_dict`` keys and training state stay as they are.
    ``rownorm.unpatch`` undoes it.

    out_dtype: the dtype of the results of all swapped norms. ``torch.bfloat16`` is for models with fp32 parameters that
    run under ``torch.autocast``: the linear layers that follow need no cast. By default each norm returns the dtype
    that it returned before.

    fuse_residuals: also compute ``h = residual + x`` and the norm of h in one call, in blocks where both are found in
    the source of ``forward``, right after each other, and a probe of the block proves that nothing else changes. In
    fp32 the results are those of another order of summation. In 16 bits h keeps its bits, and the norm reads the sum
    before it is rounded to 16 bits, so results differ by that rounding; proved means that they and the gradients are
    as near to fp32 as those of the block. A norm with hooks is called by itself.
    """
    _check_model("patch", model)
    if out_dtype is not None and out_dtype not in OUT_DTYPES:
        names = ", ".join(str(dtype) for dtype in OUT_DTYPES)
        raise TypeError(
            f"rownorm.patch: out_dtype must be one of {names}, or None; got {out_dtype!r}"
        )
    dtype = _dtype_of(model)
    prober = Prober(dtype)
    swaps: list[Swap] = []
    swapped: list[Swapped] = []
    left: list[Left] = []
    for name, module in model.named_modules():
        class_name = type(module).__name__
        try:
            decided = _decide(module, prober, out_dtype)
        except LeftAlone as reason:
            left.append(Left(name, class_name, str(reason)))
            continue
        if decided is not None:
            swaps.append(decided)
            swapped.append(Swapped(name, class_name, decided.words))
    fused: list[Fused] = []
    unfused: list[Left] = []
    if fuse_residuals:
        blocks = Blocks(model, swaps, dtype)
        swaps += blocks.swaps
        fused, unfused = blocks.fused, blocks.unfused
    _apply(swaps)
    return Report(type(model).__name__, tuple(swapped), tuple(left), tuple(fused), tuple(unfused))


def _apply(swaps: list[Swap]) -> None:
    """Make all swaps, or none if one is interrupted."""
    done: list[nn.Module] = []
    try:
        for one in swaps:
            done.append(one.module)
            swap(one.module, one.base, one.state, one.norms)
    except BaseException:
        for module in done:
            if isinstance(module, Patched):
                restore(module)
        raise


def unpatch(model: nn.Module) -> int:
    """Give every norm that ``rownorm.patch`` swapped its own forward back; returns how many there were."""
    _check_model("unpatch", model)
    patched = [
        (name, module) for name, module in model.named_modules() if isinstance(module, Patched)
    ]
    for name, module in patched:
        if not is_swapped(module) or has_other_forward(module):
            raise RuntimeError(
                f"rownorm.unpatch: {name} got another class or another forward after it was patched, by fully_shard "
                "or accelerate's hooks for example. Undo that first; nothing was changed."
            )
    n_norms = sum(not isinstance(module, PatchedBlock) for _, module in patched)
    for _, module in patched:
        restore(module)
    return n_norms


def _check_model(function: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"rownorm.{function}: model must be a torch.nn.Module; got {type(model).__name__}. "
            "For a pipeline or a trainer, pass its .model."
        )


def _dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype of the model's first parameter of a dtype that rownorm has; fp32 without one."""
    dtypes = (parameter.dtype for parameter in model.parameters())
    return next((dtype for dtype in dtypes if dtype in DTYPES), torch.float32)


def _decide(module: nn.Module, prober: Prober, out_dtype: torch.dtype | None) -> Swap | None:
    """The swap of a module, or None for a module that is no norm. Raises LeftAlone with a reason."""
    if isinstance(module, Patched):
        raise LeftAlone("it is patched already; rownorm.unpatch restores it")
    if isinstance(module, OWN):
        raise LeftAlone("it is rownorm's already")
    if norm := torch_forward(module):
        check_instance(module)
        state: dict[str, Any] = {"out_dtype": out_dtype}
        words = _words(module, out_dtype)
        decided = Swap(module, TORCH_NORMS[norm], state, words, {"out_dtype": None})
    else:
        candidate = candidate_of(module)
        if candidate is None:
            return None
        form = prober.form_of(candidate)
        if form is None:
            return None
        asked = form.with_out_dtype(out_dtype)
        state = {"rownorm_form": asked}
        decided = Swap(module, PatchedForm, state, asked.words(), {"rownorm_form": form})
    check_class("its class", type(module), decided.base)
    return decided


def _words(module: nn.Module, out_dtype: torch.dtype | None) -> str:
    """The form of torch's norms."""
    center, eps = isinstance(module, nn.LayerNorm), getattr(module, "eps", None)
    result = "" if out_dtype is None else SHORT_NAMES[out_dtype]
    parts = {
        "layer_norm" if center else "rms_norm": True,
        "eps=None" if eps is None else f"eps={eps:g}": True,
        "no weight": module.weight is None,
        "no bias": center and module.weight is not None and module.bias is None,
        f"out_dtype={result}": result,
    }
    return ", ".join(part for part, is_said in parts.items() if is_said)
