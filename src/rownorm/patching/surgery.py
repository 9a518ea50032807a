"""``patch`` and ``unpatch``. All modules are examined before the first one is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from .. import nn as rownorm_nn
from ..ops.checks import DTYPES
from .blocks import check_block
from .candidates import LeftAlone, candidate_of, check_instance, torch_forward
from .forms import HALVES, SHORT_NAMES
from .probe import Prober
from .report import Fused, Left, Report, Swapped
from .rewrite import rewritten
from .swap import (
    TORCH_NORMS,
    Patched,
    PatchedBlock,
    PatchedForm,
    has_other_forward,
    is_swapped,
    patched_class,
    restore,
    swap,
)

OUT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class _Swap(NamedTuple):
    """A swap that was decided on."""

    module: nn.Module
    base: type[Patched]
    state: dict[str, Any]
    words: str
    norms: tuple[str, ...] = ()  # of a block


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
    prober = Prober(_dtype_of(model))
    swaps: list[_Swap] = []
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
        blocks = _Blocks(model, swaps)
        swaps += blocks.swaps
        fused, unfused = blocks.fused, blocks.unfused
    _apply(swaps)
    return Report(type(model).__name__, tuple(swapped), tuple(left), tuple(fused), tuple(unfused))


def _apply(swaps: list[_Swap]) -> None:
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


def _decide(module: nn.Module, prober: Prober, out_dtype: torch.dtype | None) -> _Swap | None:
    """The swap of a module, or None for a module that is no norm. Raises LeftAlone with a reason."""
    if isinstance(module, Patched):
        raise LeftAlone("it is patched already; rownorm.unpatch restores it")
    if isinstance(module, rownorm_nn.LayerNorm | rownorm_nn.RMSNorm):
        raise LeftAlone("it is rownorm's already")
    if norm := torch_forward(module):
        check_instance(module)
        decided = _Swap(
            module, TORCH_NORMS[norm], {"out_dtype": out_dtype}, _words(module, out_dtype)
        )
    else:
        candidate = candidate_of(module)
        if candidate is None:
            return None
        form = prober.form_of(candidate)
        if form is None:
            return None
        form = form.with_out_dtype(out_dtype)
        decided = _Swap(module, PatchedForm, {"rownorm_form": form}, form.words())
    try:  # a class with __slots__, or one that refuses subclasses
        trial = object.__new__(type(module))
        trial.__class__ = patched_class(decided.base, type(module))
    except TypeError as error:
        raise LeftAlone(f"its class cannot be changed: {error}") from None
    return decided


def _words(module: nn.Module, out_dtype: torch.dtype | None) -> str:
    """The form of torch's norms."""
    norm = "layer_norm" if isinstance(module, nn.LayerNorm) else "rms_norm"
    eps = getattr(module, "eps", None)
    parts = [norm, "eps=None" if eps is None else f"eps={eps:g}"]
    if module.weight is None:
        parts.append("no weight")
    elif isinstance(module, nn.LayerNorm) and module.bias is None:
        parts.append("no bias")
    if out_dtype is not None:
        parts.append(f"out_dtype={SHORT_NAMES[out_dtype]}")
    return ", ".join(parts)


class _Blocks:
    """The blocks of a model in which residual adds can be fused with norms that are swapped, or will be."""

    def __init__(self, model: nn.Module, swaps: list[_Swap]) -> None:
        self.swaps: list[_Swap] = []
        self.fused: list[Fused] = []
        self.unfused: list[Left] = []
        self._norms = {id(one.module): one for one in swaps}
        self._dtype = _dtype_of(model)
        self._rewritten: dict[Any, tuple[str, ...] | str] = {}  # the norms, or an objection
        self._known: dict[Any, str] = {}  # the objection to a rewritten block, or no words
        for name, block in model.named_modules():
            norms = {n: child for n, child in block.named_children() if self._is_ours(child)}
            if norms:
                self._decide(name, block, norms)

    def _is_ours(self, module: nn.Module) -> bool:
        """Whether rownorm computes a norm, after this patch or since an earlier one."""
        is_norm = isinstance(module, Patched) and not isinstance(module, PatchedBlock)
        return id(module) in self._norms or is_norm

    def _decide(self, name: str, block: nn.Module, norms: dict[str, nn.Module]) -> None:
        found: tuple[str, ...] = ()
        reason = f"no residual add right before it in {type(block).__name__}.forward"
        try:
            if isinstance(block, PatchedBlock):
                raise LeftAlone("its block is patched already; rownorm.unpatch restores it")
            found = self._rewritable(type(block), frozenset(norms))
            if found:
                self._check(block, norms, found)
                self.swaps.append(_Swap(block, PatchedBlock, {}, "", found))
        except LeftAlone as objection:
            found, reason = (), str(objection)
        prefix = f"{name}." if name else ""
        for child, module in norms.items():
            where, class_name = f"{prefix}{child}", type(module).__name__
            if child in found:
                self.fused.append(Fused(where, class_name, self._words(block, module)))
            else:
                self.unfused.append(Left(where, class_name, reason))

    def _rewritable(self, block_class: type[nn.Module], norms: frozenset[str]) -> tuple[str, ...]:
        """The norms with an add right before them. Raises LeftAlone."""
        key = (block_class, norms)
        if key not in self._rewritten:
            try:
                self._rewritten[key] = rewritten(block_class, norms).norms
            except LeftAlone as objection:
                self._rewritten[key] = str(objection)
        found = self._rewritten[key]
        if isinstance(found, str):
            raise LeftAlone(found)
        return found

    def _check(self, block: nn.Module, norms: dict[str, nn.Module], found: tuple[str, ...]) -> None:
        """Raise LeftAlone if the block must not be rewritten. Blocks with the same code and norms share a probe."""
        check_instance(block)
        try:
            trial = object.__new__(type(block))
            trial.__class__ = patched_class(PatchedBlock, type(block), found)
        except TypeError as error:
            raise LeftAlone(f"the class of its block cannot be changed: {error}") from None
        width = next((len(vector) for vector in norms[found[0]].parameters()), None)
        if width is None:
            raise LeftAlone("the width of the rows of its block cannot be determined")
        shapes = tuple((n, p.shape, p.dtype, p.device) for n, p in block.named_parameters())
        forms = tuple(str(self._state(norms[name])) for name in found)
        key = (type(block), found, shapes, forms)
        if key not in self._known:
            self._known[key] = ""
            try:
                check_block(block, self._rewriter(block, norms, found), width, self._dtype)
            except LeftAlone as objection:
                self._known[key] = str(objection)
        if self._known[key]:
            raise LeftAlone(self._known[key])

    def _rewriter(
        self, block: nn.Module, norms: dict[str, nn.Module], found: tuple[str, ...]
    ) -> Callable[[nn.Module], None]:
        """Does to a copy of the block what patch will do to the block."""

        def rewrite(copy: nn.Module) -> None:
            for name, module in norms.items():
                if one := self._norms.get(id(module)):
                    swap(getattr(copy, name), one.base, one.state)
            swap(copy, PatchedBlock, {}, found)

        return rewrite

    def _state(self, norm: nn.Module) -> dict[str, Any]:
        """The attributes of a norm that is swapped, or will be."""
        if one := self._norms.get(id(norm)):
            return one.state
        return {n: norm.__dict__.get(n) for n in ("rownorm_form", "out_dtype")}

    def _words(self, block: nn.Module, norm: nn.Module) -> str:
        one = self._norms.get(id(norm))
        base = one.base if one is not None else type(norm)
        form = self._state(norm).get("rownorm_form")
        center = form.structure.center if form else issubclass(base, rownorm_nn.LayerNorm)
        words = (
            f"{'add_layer_norm' if center else 'add_rms_norm'} in {type(block).__name__}.forward"
        )
        if self._dtype in HALVES:
            words += f", of the sum before it is rounded to {SHORT_NAMES[self._dtype]}"
        return words
