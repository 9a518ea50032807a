"""Providers: who can run a case. Each is one decorated function in a small file of this folder.

    @provider("liger", operations=("rms_norm",), package="liger-kernel", needs=("liger_kernel",), needs_gpu=True)
    def liger(case, t):
        from liger_kernel.transformers.functional import liger_rms_norm

        return by_autograd(case, t, lambda: liger_rms_norm(t.x, t.weight, case.eps, in_place=False))

The function gets a case and one set of its tensors and returns a call without arguments; the call returns the tensors
that ``data.output_names`` lists. What the decorator does not declare is refused before the function is asked; what only
the function can know it refuses itself, with ``Refusal``. Packages are imported inside, when they are needed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import os
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..cases import DIRECTIONS, OPERATIONS, Case
from ..data import Tensors

Call = Callable[[], Tensor | Sequence[Tensor]]
Make = Callable[[Case, Tensors], Call]
Kind = Literal["ours", "peer", "plain", "ceiling"]
Option = Literal["bias", "no_bias", "pre_bias", "activation", "mixed_residual"]

EVERY_OPTION: tuple[Option, ...] = ("bias", "no_bias", "pre_bias", "activation", "mixed_residual")
_OPTION_WORDS: dict[Option, str] = {
    "bias": "a bias in RMSNorm",
    "no_bias": "LayerNorm without a bias",
    "pre_bias": "a bias before the norm",
    "activation": "an activation after the norm",
    "mixed_residual": "a residual stream in a dtype of its own",
}


class Refusal(Exception):
    """A provider cannot run a case, for a reason that a reader of the report should be told."""


class Provider(NamedTuple):
    """Someone who can run cases."""

    name: str
    make: Make
    about: str  # one line
    kind: Kind
    operations: tuple[str, ...]
    directions: tuple[str, ...]
    options: tuple[Option, ...]
    dtypes: tuple[str, ...]
    needs: tuple[str, ...]  # modules that must be importable
    package: str  # what brings them; its version is recorded
    install: str  # the exact command
    needs_gpu: bool
    slow_on_cpu: bool  # takes part there only when it is named
    interpreted: bool  # without a GPU, its kernels run in Triton's interpreter

    def prepare(self, case: Case, t: Tensors) -> Call:
        """The call for one set of tensors; raises Refusal."""
        reason = self.refusal(case)
        if reason is not None:
            raise Refusal(reason)
        return self.make(case, t)

    def refusal(self, case: Case) -> str | None:
        """Why this case is outside what the provider declares, or None."""
        if case.operation not in self.operations:
            return f"{self.name} has no {case.operation}"
        if case.direction not in self.directions:
            return f"{self.name} has no {'backward' if case.direction == 'both' else case.direction} pass"
        if case.dtype not in self.dtypes:
            return f"{self.name} does not take {case.dtype}"
        for option in _options_of(case):
            if option not in self.options:
                return f"{self.name} does not offer {_OPTION_WORDS[option]}"
        return None

    @property
    def version(self) -> str:
        """The installed version of the package, or nothing."""
        try:
            return importlib.metadata.version(self.package) if self.package else ""
        except importlib.metadata.PackageNotFoundError:
            return ""


_registry: dict[str, Provider] = {}


def provider(
    name: str,
    *,
    about: str,
    kind: Kind = "peer",
    operations: tuple[str, ...] = OPERATIONS,
    directions: tuple[str, ...] = DIRECTIONS,
    options: tuple[Option, ...] = (),
    dtypes: tuple[str, ...] = ("fp16", "bf16", "fp32"),
    needs: tuple[str, ...] = (),
    package: str = "",
    install: str = "",
    needs_gpu: bool = False,
    slow_on_cpu: bool = False,
    interpreted: bool = False,
) -> Callable[[Make], Make]:
    """Make a function a provider."""
    install = install or (f"pip install {package}" if package else "")

    def register(make: Make) -> Make:
        _registry[name] = Provider(
            name=name,
            make=make,
            about=about,
            kind=kind,
            operations=operations,
            directions=directions,
            options=options,
            dtypes=dtypes,
            needs=needs,
            package=package,
            install=install,
            needs_gpu=needs_gpu,
            slow_on_cpu=slow_on_cpu,
            interpreted=interpreted,
        )
        return make

    return register


def all_providers() -> dict[str, Provider]:
    """Every provider by name: rownorm, PyTorch, the others, the ceiling. None of the packages is imported."""
    _import_files()
    kinds = ("ours", "peer", "plain", "ceiling")

    def place(one: Provider) -> tuple[int, bool, str]:
        return kinds.index(one.kind), one.package != "torch", one.name

    return {one.name: one for one in sorted(_registry.values(), key=place)}


def usual() -> list[str]:
    """Who takes part where nobody is named: everyone; without a GPU not who compiles for minutes there."""
    gpu = torch.cuda.is_available()
    return [one.name for one in all_providers().values() if gpu or not one.slow_on_cpu]


def missing(provider: Provider, device: str | None = None) -> str | None:
    """Why a provider cannot be used on a device (by default the one that is here), and what to do; None if it can."""
    absent = [name for name in provider.needs if importlib.util.find_spec(name) is None]
    if absent:
        are = "is" if len(absent) == 1 else "are"
        return f"{' and '.join(absent)} {are} not installed; {provider.install}"
    on_gpu = torch.cuda.is_available() if device is None else device.startswith("cuda")
    if on_gpu or not provider.needs_gpu:
        return None
    if provider.interpreted:
        return None if interpreting() else "needs a GPU, or TRITON_INTERPRET=1 to check it"
    return "needs a GPU"


def broken(error: ImportError) -> str:
    """Why a provider cannot be used whose package is installed, but not whole."""
    return f"cannot be imported: {error}"


def interpreting() -> bool:
    """Whether kernels on CPU tensors run in Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on")


def by_autograd(case: Case, t: Tensors, forward: Call) -> Call:
    """The call that a case's direction asks for, of a forward that autograd can go through.

    For backward the forward runs here, once, so that a call is nothing but the gradients of all inputs and parameters.
    """
    if case.direction == "forward":
        return forward
    leaves, cotangents = t.leaves, t.cotangents
    if case.direction == "backward":
        outputs = as_tuple(forward())
        return lambda: torch.autograd.grad(outputs, leaves, cotangents, retain_graph=True)

    def step() -> tuple[Tensor, ...]:
        outputs = as_tuple(forward())
        return (*outputs, *torch.autograd.grad(outputs, leaves, cotangents))

    return step


def as_tuple(outputs: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    """One tensor or several, as several."""
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def _options_of(case: Case) -> Iterator[Option]:
    """The options of a case beyond the plain operation."""
    if case.has_bias and not case.centers:
        yield "bias"
    if case.centers and not case.has_bias:
        yield "no_bias"
    if case.pre_bias:
        yield "pre_bias"
    if case.activation is not None:
        yield "activation"
    if case.adds and case.torch_residual_dtype != case.torch_dtype:
        yield "mixed_residual"


@functools.cache
def _import_files() -> None:
    for module in pkgutil.iter_modules(__path__):
        if not module.ispkg:
            importlib.import_module(f"{__name__}.{module.name}")
