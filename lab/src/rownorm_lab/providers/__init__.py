"""A provider runs a case: rownorm, eager PyTorch, Liger, ... Each is one decorated function in a file of this folder.

    @provider(
        "liger",
        about="Liger's RMSNorm",
        operations=("rms_norm",),
        package="liger-kernel",
        needs=("liger_kernel",),
        needs_gpu=True,
    )
    def liger(case, t):
        from liger_kernel.transformers.functional import liger_rms_norm

        return by_autograd(case, t, lambda: liger_rms_norm(t.x, t.weight, case.eps, in_place=False))

The function gets a case and one set of its tensors and returns a call without arguments. The call returns the tensors
that ``data.output_names`` lists. A case outside what the decorator declares is refused before the function is called;
for any other limit the function raises ``Refusal``. ``options`` lists what the provider offers beside the plain norm;
without it there are none, and a case with a pre_bias, say, is refused. Optional packages are imported inside the
function. The commands info, check, bench and report find a provider by itself; the bars name theirs in
``commands/bars/bars.py``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, TypedDict, Unpack, get_args

import torch
from torch import Tensor

from ..data.case import DIRECTIONS, OPERATIONS, Case
from ..data.user_files import Source
from .data import Tensors

Call = Callable[[], Tensor | Sequence[Tensor]]
Make = Callable[[Case, Tensors], Call]
Kind = Literal["ours", "own", "peer", "plain", "ceiling"]  # own: of a user's file


class Option(NamedTuple):
    """Something beside the plain norm. A provider that does not declare it refuses the cases that have it."""

    words: str
    is_in: Callable[[Case], bool]


OPTIONS = {
    "no_weight": Option("a norm without a weight", lambda case: not case.weight),
    "bias": Option("a bias in RMSNorm", lambda case: case.has_bias and not case.centers),
    "no_bias": Option(
        "LayerNorm without a bias",
        lambda case: case.centers and case.weight and not case.has_bias,
    ),
    "modulation": Option("scale and shift", lambda case: case.sample_rows > 0),
    "residual_gate": Option("a gate of the residual add", lambda case: case.residual_gate),
    "gate": Option(
        "a gate after the norm",
        lambda case: case.gate_activation is not None and not case.gate_first,
    ),
    "gate_first": Option(
        "a gate before the norm", lambda case: case.gate_activation is not None and case.gate_first
    ),
    "pre_bias": Option("a bias before the norm", lambda case: case.pre_bias),
    "activation": Option("an activation after the norm", lambda case: case.activation is not None),
    "mixed_residual": Option(
        "a residual stream in another dtype than x",
        lambda case: case.adds and case.torch_residual_dtype != case.torch_dtype,
    ),
    "no_h": Option(
        "a residual add without the new residual stream", lambda case: not case.returns_h
    ),
}
EVERY_OPTION = tuple(name for name in OPTIONS if name != "no_h")


class Refusal(Exception):
    """A provider cannot run a case; the message is the reason, for records and reports."""


class Provider(NamedTuple):
    """A provider: its name, its function, and what its decorator declares."""

    name: str
    make: Make
    about: str  # one line
    kind: Kind = "peer"
    operations: tuple[str, ...] = OPERATIONS
    directions: tuple[str, ...] = DIRECTIONS
    options: tuple[str, ...] = ()  # of OPTIONS
    dtypes: tuple[str, ...] = ("fp16", "bf16", "fp32")
    needs: tuple[str, ...] = ()  # modules that must be importable
    package: str = ""  # the package that installs them; its version is recorded
    install: str = ""  # the command that installs it; of a package, pip unless it is given
    needs_gpu: bool = False
    slow_on_cpu: bool = False  # on a CPU it runs only if it is named
    interpreted: bool = False  # without a GPU, its kernels run in Triton's interpreter
    on_request: bool = False  # it runs only if it is named
    source: Source | None = None  # of a user's own provider

    def prepare(self, case: Case, t: Tensors) -> Call:
        """The call for one set of tensors; raises Refusal."""
        reason = self.refusal(case)
        if reason is not None:
            raise Refusal(reason)
        return self.make(case, t)

    def refusal(self, case: Case) -> str | None:
        """The reason why the provider's declaration excludes this case, or None."""
        if case.operation not in self.operations:
            return f"{self.name} has no {case.operation}"
        if case.direction not in self.directions:
            return f"{self.name} has no {'backward' if case.direction == 'both' else case.direction} pass"
        if case.dtype not in self.dtypes:
            return f"{self.name} does not take {case.dtype}"
        for name, option in OPTIONS.items():
            if name not in self.options and option.is_in(case):
                return f"{self.name} does not offer {option.words}"
        return None

    @property
    def version(self) -> str:
        """The installed version of the package, or an empty string."""
        try:
            return importlib.metadata.version(self.package) if self.package else ""
        except importlib.metadata.PackageNotFoundError:
            return ""


_registry: dict[str, Provider] = {}


class Declared(TypedDict, total=False):
    """What ``provider`` may declare: fields of ``Provider``, which says what they mean and has their defaults."""

    kind: Kind
    operations: tuple[str, ...]
    directions: tuple[str, ...]
    options: tuple[str, ...]
    dtypes: tuple[str, ...]
    needs: tuple[str, ...]
    package: str
    install: str
    needs_gpu: bool
    slow_on_cpu: bool
    interpreted: bool
    on_request: bool


def provider(name: str, *, about: str, **declared: Unpack[Declared]) -> Callable[[Make], Make]:
    """Register a function as a provider. The keywords are fields of ``Provider``."""
    if "package" in declared:
        declared.setdefault("install", f"pip install {declared['package']}")

    def register(make: Make) -> Make:
        add(Provider(name, make, about, **declared))
        return make

    return register


def add(provider: Provider) -> None:
    """Make a provider known by its name."""
    _registry[provider.name] = provider


@contextlib.contextmanager
def registered_apart() -> Iterator[dict[str, Provider]]:
    """What is decorated inside is registered in the dict that this yields; the known providers stay as they are."""
    global _registry
    before, _registry = _registry, {}
    try:
        yield _registry
    finally:
        _registry = before


def all_providers() -> dict[str, Provider]:
    """Every provider by name: rownorm, the user's, PyTorch, peers, plain kernels, the ceiling.

    Imports none of their packages.
    """
    _import_files()
    kinds = get_args(Kind)

    def place(one: Provider) -> tuple[int, bool, str]:
        return kinds.index(one.kind), one.package != "torch", one.name

    return {one.name: one for one in sorted(_registry.values(), key=place)}


def usual() -> list[str]:
    """The default providers: all but those on request; without a GPU, without those that are slow on a CPU."""
    gpu = torch.cuda.is_available()
    known = all_providers().values()
    return [one.name for one in known if not one.on_request and (gpu or not one.slow_on_cpu)]


def missing(provider: Provider, device: str | None = None) -> str | None:
    """Why a provider cannot be used on a device (default: the present one), and what to do; None if it can."""
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


def import_failure(error: ImportError) -> str:
    """The reason why a provider cannot be used whose package is installed but fails to import."""
    return f"cannot be imported: {error}"


def interpreting() -> bool:
    """Whether kernels on CPU tensors run in Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on")


def is_interpreted(provider: Provider, device: str | None = None) -> bool:
    """Whether a provider's kernels run in Triton's interpreter on a device (default: the present one)."""
    on_gpu = torch.cuda.is_available() if device is None else device.startswith("cuda")
    return not on_gpu and interpreting() and (provider.kind == "ours" or provider.interpreted)


def by_autograd(case: Case, t: Tensors, forward: Call) -> Call:
    """The call for the case's direction, given a differentiable forward.

    For backward, the forward runs once here, so that a call computes only the gradients of all inputs and parameters.
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
    """One tensor or several, as a tuple."""
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


@functools.cache
def _import_files() -> None:
    """Import every file of this folder, which registers its provider."""
    for module in pkgutil.iter_modules(__path__):
        if not module.ispkg:
            importlib.import_module(f"{__name__}.{module.name}")
