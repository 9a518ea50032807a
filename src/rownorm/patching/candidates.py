"""Modules that may be norms, and copies of them that a probe may call without changing the model."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..program import DTYPES

# Attributes of these types are copied for a stand-in, so that its forward cannot change those of the module.
_CONTAINERS = (dict, list, set)
_Found = TypeVar("_Found")
GATE = "gate"  # what an argument is called that may be a gate


class LeftAlone(Exception):
    """The reason why a module is not swapped."""


def failed(what: str, error: Exception) -> LeftAlone:
    """The reason where a probe raised an error."""
    words = str(error).strip().partition("\n")[0]
    return LeftAlone(f"{what} failed: {type(error).__name__}: {words[:80]}")


@contextlib.contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """A context for probes: random numbers are restored, and autocast and modes of autograd do not matter."""
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast("cpu" if device.type == "meta" else device.type, enabled=False),
    ):
        yield


class Known:
    """Results that were found before, by key; also that nothing was found, and the reason."""

    def __init__(self) -> None:
        self._found: dict[Any, Any] = {}

    def once(self, key: Any, find: Callable[[], _Found]) -> _Found:
        """``find()``, called once for each key. It may raise LeftAlone, and then every call with the key does."""
        if key not in self._found:
            try:
                self._found[key] = find()
            except LeftAlone as reason:
                self._found[key] = LeftAlone(*reason.args)  # without the traceback
        found = self._found[key]
        if isinstance(found, LeftAlone):
            raise LeftAlone(*found.args)
        return found


class Candidate(NamedTuple):
    """A module that can be probed: leaf, at most two vectors of one width, forward with rows and perhaps a gate."""

    module: nn.Module
    tensors: dict[str, Tensor]  # its vectors by attribute, parameters first
    argument: str
    gate_argument: str | None = None

    @property
    def width(self) -> int | None:
        """The number of columns; None without vectors."""
        return next((tensor.shape[0] for tensor in self.tensors.values()), None)

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of its vectors; None without vectors."""
        return next((tensor.dtype for tensor in self.tensors.values()), None)

    @property
    def device(self) -> torch.device:
        """Where a probe runs: where the vectors are, or a CPU if they have no data."""
        devices = [tensor.device for tensor in self.tensors.values()]
        return devices[0] if devices and devices[0].type != "meta" else torch.device("cpu")

    def stand_in(self, tensors: dict[str, Tensor], training: bool) -> nn.Module:
        """A shallow copy of the module with other vectors and without hooks: its class's forward is called."""
        module = shallow_copy(self.module)
        for group in (module._parameters, module._buffers):
            for name, value in group.items():
                group[name] = tensors.get(name, value)  # type: ignore[assignment]
        module.training = training
        return module


def shallow_copy(module: nn.Module) -> nn.Module:
    """A module of the same class with the same attributes, and containers of its own."""
    made: nn.Module = object.__new__(type(module))
    made.__dict__.update(
        (name, copy.copy(value) if isinstance(value, _CONTAINERS) else value)
        for name, value in module.__dict__.items()
    )
    return made


def is_norm_by_name(module: nn.Module) -> bool:
    """Whether the class is called a norm. Only decides whether a module that is left is worth a line of the report."""
    return "norm" in type(module).__name__.lower()


def torch_forward(module: nn.Module) -> type[nn.Module] | None:
    """``nn.LayerNorm`` or ``nn.RMSNorm`` if the module runs their forward, else None."""
    for norm in (nn.LayerNorm, nn.RMSNorm):
        if isinstance(module, norm) and type(module).forward is norm.forward:
            return norm
    return None


def candidate_of(module: nn.Module) -> Candidate | None:
    """The candidate of a module, or None for a module that is no norm. Raises LeftAlone with a reason for a norm."""
    try:
        return _candidate_of(module)
    except LeftAlone:
        if is_norm_by_name(module):
            raise
        return None


def _candidate_of(module: nn.Module) -> Candidate | None:
    if isinstance(module, torch.jit.ScriptModule):
        raise LeftAlone("it was compiled by TorchScript")
    check_instance(module)
    children = dict(module.named_children())
    if "parametrizations" in children:
        raise LeftAlone("its weight is parametrized; remove the parametrization first")
    if children:
        return None
    if type(module).__module__.startswith(("torch.nn.", "torch.ao.")):
        raise LeftAlone("it does not normalize rows")
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    vectors = list(tensors.values())
    arguments = _arguments(module)
    if arguments is None:
        raise LeftAlone("its forward takes more than one argument, and the second is no gate")
    if any(nn.parameter.is_lazy(tensor) for tensor in vectors):
        raise LeftAlone("its parameters have no shape yet; call the model once first")
    if any(tensor.dtype not in DTYPES for tensor in vectors):
        raise LeftAlone("its parameters are quantized, or not floating point")
    if len(vectors) > 2 or any(tensor.dim() != 1 for tensor in vectors):
        raise LeftAlone("its parameters are not one weight and one bias vector")
    if len({(tensor.shape, tensor.dtype, tensor.device) for tensor in vectors}) > 1:
        raise LeftAlone("its weight and bias differ in size, dtype or device")
    return Candidate(module, tensors, *arguments)


def check_instance(module: nn.Module) -> None:
    """Raise LeftAlone if forward is replaced on the instance, where changing the class has no effect."""
    if "forward" in module.__dict__:
        raise LeftAlone(
            "its forward was replaced on this module (accelerate's hooks, hub kernels); "
            "patch the model before that"
        )


def _arguments(module: nn.Module) -> tuple[str, str | None] | None:
    """The names of forward's arguments, rows and gate or None; None if forward takes others."""
    try:
        parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return None
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [parameter for parameter in parameters if parameter.kind not in open_ended]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not named or any(one.kind not in positional for one in named):
        return None
    if len(named) == 1:
        return named[0].name, None
    is_gated = len(named) == 2 and named[1].name == GATE
    return (named[0].name, GATE) if is_gated else None
