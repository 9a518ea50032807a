"""The class of a swapped module.

A swap changes the class of a module in place, to a subclass with another forward. So the module keeps its identity,
parameters, hooks, buffers, training state, ``state_dict`` keys and ``isinstance`` relations, and ``torch.compile`` sees
another type and compiles again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import nn as rownorm_nn
from ..ops import layer_norm, rms_norm
from .forms import Form


class Patched(nn.Module):
    """The first base class of every swapped module."""

    rownorm_base: type[Patched]  # one of the classes below
    rownorm_original: type[nn.Module]  # the class that the module had

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle and copy through ``_new``, because a class made at run time cannot be found by its name."""
        reduced: Any = super().__reduce_ex__(protocol)
        function, arguments, *rest = reduced
        if arguments != (type(self),) or not is_swapped(self):
            return (function, arguments, *rest)
        return (_new, (self.rownorm_base, self.rownorm_original), *rest)


class PatchedForm(Patched):
    """A swapped module whose form was found by a probe."""

    rownorm_form: Form

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The form for these dtypes, or the original forward for calls that were not proved."""
        form = self.rownorm_form
        x = args[0] if args else kwargs.get(form.argument)
        if len(args) + len(kwargs) == 1 and isinstance(x, Tensor) and x.dim() > 0:
            structure = form.structure
            weight = None if structure.weight is None else getattr(self, structure.weight)
            bias = None if structure.bias is None else getattr(self, structure.bias)
            vector = bias if weight is None else weight
            options = form.keywords.get((x.dtype, None if vector is None else vector.dtype))
            if options is not None and (form.width is None or x.shape[-1] == form.width):
                norm = layer_norm if structure.center else rms_norm
                return norm(x, weight, bias, **options)
        y = super().forward(*args, **kwargs)
        return y if form.out_dtype is None or y.dtype == torch.float64 else y.to(form.out_dtype)


class PatchedLayerNorm(Patched, rownorm_nn.LayerNorm):
    """A swapped ``nn.LayerNorm``, or a subclass with the same forward."""


class PatchedRMSNorm(Patched, rownorm_nn.RMSNorm):
    """A swapped ``nn.RMSNorm``, or a subclass with the same forward."""


TORCH_NORMS: dict[type[nn.Module], type[Patched]] = {
    nn.LayerNorm: PatchedLayerNorm,
    nn.RMSNorm: PatchedRMSNorm,
}


_classes: dict[tuple[type[Patched], type[nn.Module]], type[Patched]] = {}


def patched_class(base: type[Patched], original: type[nn.Module]) -> type[Patched]:
    """The class of swapped modules whose class was ``original``. It has the name of ``original``."""
    if found := _classes.get((base, original)):
        return found
    attributes = {
        "__module__": original.__module__,  # torch.fx keeps modules of torch.nn whole
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "rownorm_base": base,
        "rownorm_original": original,
    }
    metaclass: Any = type(original)
    made: type[Patched] = metaclass(original.__name__, (base, original), attributes)
    return _classes.setdefault((base, original), made)


def swap(module: nn.Module, base: type[Patched], state: dict[str, Any]) -> None:
    """Change the class of a module; ``state`` becomes attributes of it."""
    module.__class__ = patched_class(base, type(module))
    module.__dict__.update(state)


def restore(module: Patched) -> None:
    """Undo ``swap``."""
    for name in ("rownorm_form", "out_dtype"):
        module.__dict__.pop(name, None)
    module.__class__ = module.rownorm_original  # type: ignore[assignment]


def is_swapped(module: nn.Module) -> bool:
    """Whether the class is exactly the one that ``swap`` assigns, not a subclass of it that was made later."""
    return isinstance(module, Patched) and type(module) is patched_class(
        module.rownorm_base, module.rownorm_original
    )


def _new(base: type[Patched], original: type[nn.Module]) -> nn.Module:
    """An empty swapped module, for unpickling."""
    module: nn.Module = object.__new__(patched_class(base, original))
    return module
