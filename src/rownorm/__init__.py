"""LayerNorm and RMSNorm for PyTorch, in Triton: every fused form a model needs, forward and backward."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import functional, nn
from .explain import explain
from .integration import refused_by_torchscript
from .ops import (
    add_layer_norm,
    add_rms_norm,
    batch_invariant,
    layer_norm,
    rms_norm,
    set_batch_invariant,
)
from .version import __version__ as __version__

if TYPE_CHECKING:
    from .integrations.aten import override_aten
    from .patching import patch, unpatch

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "batch_invariant",
    "explain",
    "functional",
    "layer_norm",
    "nn",
    "override_aten",
    "patch",
    "rms_norm",
    "set_batch_invariant",
    "unpatch",
]

refused_by_torchscript("rownorm", layer_norm, rms_norm, add_layer_norm, add_rms_norm)
refused_by_torchscript("rownorm.functional", functional.layer_norm, functional.rms_norm)


# Public names that are imported when they are used, and their modules.
_LATER = {
    "override_aten": "integrations.aten",
    "patch": "patching",
    "unpatch": "patching",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
