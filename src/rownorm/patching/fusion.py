"""Which residual adds of a model are fused with the norm after them, and why the others are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .. import nn as rownorm_nn
from .blocks import check_block
from .candidates import Known, LeftAlone, check_instance
from .forms import HALVES, SHORT_NAMES
from .report import Fused, Left
from .rewrite import rewritten
from .swap import Patched, PatchedBlock, Swap, check_class, swap


class Blocks:
    """The blocks of a model in which residual adds can be fused with norms that are swapped, or will be."""

    def __init__(self, model: nn.Module, swaps: list[Swap], dtype: torch.dtype) -> None:
        """swaps: of norms, not made yet; dtype: of the model."""
        self.swaps: list[Swap] = []
        self.fused: list[Fused] = []
        self.unfused: list[Left] = []
        self._norms = {id(one.module): one for one in swaps}
        self._dtype = dtype
        self._known = Known()
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
            names = frozenset(norms)
            found = self._known.once(
                (type(block), names),
                lambda: tuple(dict.fromkeys(rewritten(type(block), names).norms)),
            )
            if found:
                self._check(block, norms, found)
                self.swaps.append(Swap(block, PatchedBlock, {}, "", {}, found))
        except LeftAlone as objection:
            found, reason = (), str(objection)
        prefix = f"{name}." if name else ""
        for child, module in norms.items():
            where, class_name = f"{prefix}{child}", type(module).__name__
            if child in found:
                self.fused.append(Fused(where, class_name, self._words(block, module)))
            else:
                self.unfused.append(Left(where, class_name, reason))

    def _check(self, block: nn.Module, norms: dict[str, nn.Module], found: tuple[str, ...]) -> None:
        """Raise LeftAlone if the block must not be rewritten. Blocks with the same code and norms share a probe."""
        check_instance(block)
        check_class("the class of its block", type(block), PatchedBlock, found)
        width = next((len(vector) for vector in norms[found[0]].parameters()), None)
        if width is None:
            raise LeftAlone("the width of the rows of its block cannot be determined")
        shapes = tuple((n, p.shape, p.dtype, p.device) for n, p in block.named_parameters())
        forms = tuple(str(self._state(norms[name])) for name in found)
        key = (type(block), found, shapes, forms)
        rewrite = self._rewriter(norms, found)
        self._known.once(key, lambda: check_block(block, rewrite, width, self._dtype))

    def _rewriter(
        self, norms: dict[str, nn.Module], found: tuple[str, ...]
    ) -> Callable[[nn.Module], None]:
        """Does to a copy of the block what patch will do to the block."""

        def rewrite(copy: nn.Module) -> None:
            for name, module in norms.items():
                if one := self._norms.get(id(module)):
                    swap(getattr(copy, name), one.base, one.probe_state)
            swap(copy, PatchedBlock, {}, found)

        return rewrite

    def _state(self, norm: nn.Module) -> dict[str, Any]:
        """The attributes of a norm that is swapped, or will be."""
        if one := self._norms.get(id(norm)):
            return one.probe_state
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
