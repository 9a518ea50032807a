"""The class of a swapped module.

A swap changes the class of a module in place, to a subclass with another forward. So the module keeps its identity,
parameters, hooks, buffers, training state, ``state_dict`` keys and ``isinstance`` relations, and ``torch.compile`` sees
another type and compiles again.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from .. import nn as rownorm_nn
from ..functional import default_rms_eps
from ..integration import leaf_of_trace, quantize_like, refuse_torchscript
from ..ops import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from .candidates import LeftAlone
from .forms import Form
from .rewrite import rewritten


class Patched(nn.Module):
    """The first base class of every swapped module."""

    rownorm_base: type[Patched]  # one of the classes below
    rownorm_original: type[nn.Module]  # the class that the module had
    rownorm_norms: tuple[str, ...]  # of a block: the attributes that are called with an add

    def rownorm_add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor] | None:
        """(the norm of h, h) of ``h = x + residual`` in one call, or None if that was not proved for these dtypes.

        h has the dtype of residual.
        """
        return None

    def __prepare_scriptable__(self) -> NoReturn:
        name = f"{type(self).__name__} after rownorm.patch"
        refuse_torchscript(name, "call rownorm.unpatch(model) first")

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle and copy through ``_new``, because a class made at run time cannot be found by its name."""
        reduced: Any = super().__reduce_ex__(protocol)
        function, arguments, *rest = reduced
        if arguments != (type(self),) or not is_swapped(self):
            return (function, arguments, *rest)
        return (_new, (self.rownorm_base, self.rownorm_original, self.rownorm_norms), *rest)


class PatchedForm(Patched):
    """A swapped module whose form was found by a probe."""

    rownorm_form: Form

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The form for these dtypes, or the original forward for calls that were not proved."""
        form = self.rownorm_form
        structure = form.structure
        if structure.is_gated:
            return self._gated(*args, **kwargs)
        x = args[0] if args else kwargs.get(form.argument)
        if len(args) + len(kwargs) == 1 and isinstance(x, Tensor) and x.dim() > 0:
            weight = None if structure.weight is None else getattr(self, structure.weight)
            bias = None if structure.bias is None else getattr(self, structure.bias)
            vector = bias if weight is None else weight
            options = form.keywords.get((x.dtype, None if vector is None else vector.dtype))
            if options is not None and (form.width is None or x.shape[-1] == form.width):
                norm = layer_norm if structure.center else rms_norm
                return norm(x, weight, bias, **options)
        elif len(args) + len(kwargs) == 1 and (leaf := leaf_of_trace(self, x)) is not None:
            return leaf
        return self._by_original(*args, **kwargs)

    def _gated(self, *args: Any, **kwargs: Any) -> Any:
        """The same of a form with a gate, which has the shape and dtype of the rows."""
        form = self.rownorm_form
        structure = form.structure
        given = dict(zip((form.argument, form.gate_argument), args, strict=False)) | kwargs
        x: Any = given.get(form.argument)
        gate = given.get(form.gate_argument)
        is_usual = len(given) == len(args) + len(kwargs) == 2 and isinstance(x, Tensor)
        if is_usual and isinstance(gate, Tensor) and x.dim() > 0 and x.dtype == gate.dtype:
            weight = None if structure.weight is None else getattr(self, structure.weight)
            bias = None if structure.bias is None else getattr(self, structure.bias)
            vector = bias if weight is None else weight
            options = form.keywords.get((x.dtype, None if vector is None else vector.dtype))
            fits = x.shape == gate.shape and (form.width is None or x.shape[-1] == form.width)
            if options is not None and fits:
                norm = layer_norm if structure.center else rms_norm
                return norm(x, weight, bias, gate=gate, group_cols=structure.group_cols, **options)
        elif len(given) == len(args) + len(kwargs) == 2:
            leaf = leaf_of_trace(self, x, **{str(form.gate_argument): gate})
            if leaf is not None:
                return leaf
        return self._by_original(*args, **kwargs)

    def _by_original(self, *args: Any, **kwargs: Any) -> Any:
        form = self.rownorm_form
        y = super().forward(*args, **kwargs)
        return y if form.out_dtype is None or y.dtype == torch.float64 else y.to(form.out_dtype)

    def rownorm_add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor] | None:
        form = self.rownorm_form
        structure = form.structure
        if structure.is_gated:
            return None
        weight = None if structure.weight is None else getattr(self, structure.weight)
        bias = None if structure.bias is None else getattr(self, structure.bias)
        vector = bias if weight is None else weight
        options = form.keywords.get((residual.dtype, None if vector is None else vector.dtype))
        if options is None or (form.width is not None and x.shape[-1] != form.width):
            return None
        if x.dtype != residual.dtype and options["rounding"] != "once":
            return None  # it would round to the dtype of x
        add_norm = add_layer_norm if structure.center else add_rms_norm
        return add_norm(x, residual, weight, bias, **options)


class PatchedLayerNorm(Patched, rownorm_nn.LayerNorm):
    """A swapped ``nn.LayerNorm``, or a subclass with the same forward."""

    def rownorm_add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor] | None:
        if self.normalized_shape != x.shape[-1:]:
            return None
        return add_layer_norm(
            x,
            residual,
            self.weight,
            self.bias,
            eps=self.eps,
            out_dtype=_out_dtype(self, x, residual),
        )


class PatchedRMSNorm(Patched, rownorm_nn.RMSNorm):
    """A swapped ``nn.RMSNorm``, or a subclass with the same forward."""

    def rownorm_add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor] | None:
        if self.normalized_shape != x.shape[-1:]:
            return None
        eps = default_rms_eps(residual.dtype) if self.eps is None else self.eps
        out_dtype = _out_dtype(self, x, residual)
        return add_rms_norm(x, residual, self.weight, eps=eps, out_dtype=out_dtype)


class PatchedBlock(Patched):
    """A block whose forward computes norms together with the residual adds before them."""

    @staticmethod
    def rownorm_add_norm(norm: nn.Module, left: Any, right: Any) -> tuple[Any, Any]:
        """(norm(h), h) of ``h = left + right``, in one call where that is proved and nothing watches the norm."""
        if isinstance(norm, Patched) and _may_fuse(norm, left, right):
            dtype = torch.promote_types(left.dtype, right.dtype)  # of h
            if dtype == left.dtype:
                fused = norm.rownorm_add(right, left)
            else:
                fused = norm.rownorm_add(left, right) if dtype == right.dtype else None
            if fused is not None:
                return fused
        h = left + right
        return norm(h), h


TORCH_NORMS: dict[type[nn.Module], type[Patched]] = {
    nn.LayerNorm: PatchedLayerNorm,
    nn.RMSNorm: PatchedRMSNorm,
}


_classes: dict[tuple[type[Patched], type[nn.Module], tuple[str, ...]], type[Patched]] = {}


def patched_class(
    base: type[Patched], original: type[nn.Module], norms: tuple[str, ...] = ()
) -> type[Patched]:
    """The class of swapped modules whose class was ``original``. It has the name of ``original``.

    norms: of a ``PatchedBlock``, whose forward is rewritten to call these attributes with the add before them.
    """
    if found := _classes.get((base, original, norms)):
        return found
    attributes: dict[str, Any] = {
        "__module__": original.__module__,  # torch.fx keeps modules of torch.nn whole
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "__init__": original.__init__,  # rownorm.nn's norms have other arguments than a subclass of torch's may have
        "rownorm_base": base,
        "rownorm_original": original,
        "rownorm_norms": norms,
    }
    if norms:
        attributes["forward"] = rewritten(original, frozenset(norms)).forward
    metaclass: Any = type(original)
    made: type[Patched] = metaclass(original.__name__, (base, original), attributes)
    quantize_like(made, original)
    return _classes.setdefault((base, original, norms), made)


def check_class(
    what: str, original: type[nn.Module], base: type[Patched], norms: tuple[str, ...] = ()
) -> None:
    """Raise LeftAlone if a class does not let its modules get another: it has __slots__, or refuses subclasses."""
    try:
        trial = object.__new__(original)
        trial.__class__ = patched_class(base, original, norms)
    except TypeError as error:
        raise LeftAlone(f"{what} cannot be changed: {error}") from None


class Swap(NamedTuple):
    """A swap that was decided on."""

    module: nn.Module
    base: type[Patched]
    state: dict[str, Any]  # attributes of the swapped module
    words: str
    # The same without the ``out_dtype`` that the caller of patch asked for.
    probe_state: dict[str, Any]
    norms: tuple[str, ...] = ()  # of a block


def swap(
    module: nn.Module, base: type[Patched], state: dict[str, Any], norms: tuple[str, ...] = ()
) -> None:
    """Change the class of a module; ``state`` becomes attributes of it."""
    module.__class__ = patched_class(base, type(module), norms)
    module.__dict__.update(state)


def restore(module: Patched) -> None:
    """Undo ``swap``. A forward on the instance must be its own (``has_other_forward``) and goes with the class."""
    for name in ("rownorm_form", "out_dtype", "forward"):
        module.__dict__.pop(name, None)
    module.__class__ = module.rownorm_original  # type: ignore[assignment]


def is_swapped(module: nn.Module) -> bool:
    """Whether the class is exactly the one that ``swap`` assigns, not a subclass of it that was made later."""
    return isinstance(module, Patched) and type(module) is patched_class(
        module.rownorm_base, module.rownorm_original, module.rownorm_norms
    )


def has_other_forward(module: nn.Module) -> bool:
    """Whether a forward on the instance replaces that of its class. accelerate leaves the class's own there."""
    forward = module.__dict__.get("forward")
    is_own = (
        getattr(forward, "__self__", None) is module
        and getattr(forward, "__func__", None) is type(module).forward
    )
    return forward is not None and not is_own


def _new(base: type[Patched], original: type[nn.Module], norms: tuple[str, ...] = ()) -> nn.Module:
    """An empty swapped module, for unpickling."""
    module: nn.Module = object.__new__(patched_class(base, original, norms))
    return module


def _out_dtype(norm: Any, x: Tensor, residual: Tensor) -> torch.dtype | None:
    """The dtype of the result of torch's norm of ``x + residual``, if it is not that of x."""
    if norm.out_dtype is not None or x.dtype == residual.dtype:
        return norm.out_dtype
    return residual.dtype


def _may_fuse(norm: Patched, left: Any, right: Any) -> bool:
    """Whether an add and a norm may become one call: tensors of one shape, and a norm without hooks.

    A hook, and a wrapper that replaced the norm's forward, expect a call of the norm alone.
    """
    return (
        isinstance(left, Tensor)
        and isinstance(right, Tensor)
        and left.shape == right.shape
        and left.dim() > 0
        and type(norm).forward is norm.rownorm_base.forward
        and "forward" not in norm.__dict__
        and not (norm._forward_hooks or norm._forward_pre_hooks)
        and not (norm._backward_hooks or norm._backward_pre_hooks)
        and not (hooks._global_forward_hooks or hooks._global_forward_pre_hooks)
        and not (hooks._global_backward_hooks or hooks._global_backward_pre_hooks)
    )
