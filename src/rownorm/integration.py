"""How parts of torch that inspect modules and functions take those of rownorm: TorchScript, torch.fx, torch.ao."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch


def refuse_torchscript(name: str, instead: str = "script torch's own norm") -> NoReturn:
    """For ``__prepare_scriptable__``, which ``torch.jit.script`` calls before it compiles anything."""
    raise NotImplementedError(
        f"{name} does not support TorchScript (torch.jit.script). Use torch.export.export or torch.jit.trace, "
        f"or {instead}."
    )


def refused_by_torchscript(package: str, *functions: Callable[..., Any]) -> None:
    """``torch.jit.script`` of these functions, or of a function that calls one, says what to use instead."""
    for function in functions:
        refuse: Any = functools.partial(refuse_torchscript, f"{package}.{function.__name__}")
        function.__dict__["__prepare_scriptable__"] = refuse


def leaf_of_trace(module: torch.nn.Module, x: Any, *more: Any, **keywords: Any) -> Any:
    """The call of this module as one node, where ``torch.fx.symbolic_trace`` records the model around it; else None.

    A tracer takes modules as leaves by the name of their package, which has to be torch.nn.
    """
    if not isinstance(x, torch.fx.Proxy) or getattr(x.tracer, "root", module) is module:
        return None
    tracer: Any = x.tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(module), (x, *more), keywords)


def quantize_like(ours: type[torch.nn.Module], torchs: type[torch.nn.Module]) -> None:
    """Eager quantization (``torch.ao``) converts modules of class ``ours`` as it converts those of class ``torchs``."""
    try:
        from torch.ao.quantization import quantization_mappings
    except ImportError:  # deprecated: a later version of torch may lack it
        return
    mapping = quantization_mappings.DEFAULT_STATIC_QUANT_MODULE_MAPPINGS
    if torchs in mapping:
        mapping.setdefault(ours, mapping[torchs])
