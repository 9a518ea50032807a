"""A provider from a user's file: ``FILE.py:function``.

The function is decorated with ``@provider``, or it is an ordinary function with a norm's arguments. An ordinary
function gets x as its first argument and the others by name, those of them that it has and the case has:

    residual, pre_bias, weight, bias    tensors
    gate                                a tensor of the shape of x
    scale, shift, residual_gate         tensors, (samples, 1, columns), where x is (samples, rows of each, columns)
    eps                                 a float
    activation, gate_activation         names
    gate_first                          True, or not passed
    normalized_shape                    (columns,), as torch.nn.functional has it

A tensor that the case lacks is not passed; a parameter without a default gets None. The function returns y, or (y, h)
if it has a residual. Which operations it offers follows from its parameters and from ``rms`` or ``layer`` in its name
or in the file's. Its backward pass is autograd's; a result without a gradient is refused. If the file has Triton
kernels, it needs a GPU, or Triton's interpreter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..data.case import Case
from ..data.no_gpu import answering_driver
from ..data.user_files import Source, load, source_of
from . import (
    EVERY_OPTION,
    Call,
    Make,
    Provider,
    Refusal,
    add,
    all_providers,
    as_tuple,
    by_autograd,
    interpreting,
    registered_apart,
)
from .data import Tensors

TENSORS = (
    *("residual", "pre_bias", "weight", "bias", "scale", "shift"),
    *("residual_gate", "gate"),
)
OPTIONS = ("activation", "gate_activation", "gate_first")
PASSED = (*TENSORS, "eps", *OPTIONS, "normalized_shape")


def add_provider(place: str) -> Provider:
    """Load ``FILE.py:function`` and register it; ValueError with the reason if it cannot be a provider."""
    source, known = source_of(place), all_providers()
    with registered_apart() as declared:
        module, function = load(source)
    found = next((one for one in declared.values() if one.make is function), None)
    found = found or _adapted(function, source, vars(module))
    name = found.name.lower()
    taken = known.get(name)
    if taken is not None and (taken.source is None or taken.source.place != source.place):
        raise ValueError(f"{place}: there is a provider {name} already; use another name")
    found = found._replace(name=name, kind="own", source=source)
    add(found)
    return found


def add_providers(sources: Iterable[Source]) -> None:
    """Load the providers of a request again; ValueError if a file has changed since."""
    for source in sources:
        now = add_provider(source.place).source
        if now != source:
            raise ValueError(f"{source.file} has changed since: it was {source}, it is {now}")


def _adapted(function: object, source: Source, namespace: Mapping[str, Any]) -> Provider:
    """The provider of an ordinary function."""
    if _is_kernel(function):
        raise ValueError(
            f"{source.name} is a kernel (@triton.jit): name the function that launches it and returns y. For the "
            f"kernel itself: rownorm analyze {source.place}, or source, or tune"
        )
    if not callable(function):
        raise ValueError(f"{source.place} is not a function, but a {type(function).__name__}")
    parameters = _parameters(function, source)
    everywhere = {**namespace, **getattr(function, "__globals__", {})}
    triton = any(map(_is_kernel, everywhere.values()))
    stem = Path(source.file).stem
    make = _make(function, parameters, source.name)
    return Provider(
        name=f"{stem}.{source.name}",
        make=_interpreted(make) if triton and interpreting() else make,
        about=f"{source.name} of {Path(source.file).name}",
        kind="own",
        operations=_operations(source.name, stem, parameters),
        options=EVERY_OPTION,
        needs_gpu=triton,
        interpreted=triton,
    )


def _parameters(function: Callable[..., Any], source: Source) -> dict[str, bool]:
    """The parameters after x, and whether each must be passed. ValueError if a norm has no such argument."""
    try:
        _, *others = inspect.signature(function).parameters.values()
    except ValueError:  # a built-in function, or one without parameters
        raise ValueError(
            f"{source.place}: the first parameter must be x; write a function around it"
        ) from None
    found: dict[str, bool] = {}
    for one in others:
        if one.kind is one.VAR_KEYWORD:
            found |= dict.fromkeys((*TENSORS, "eps", *OPTIONS), False)
            continue
        required = one.default is one.empty and one.kind is not one.VAR_POSITIONAL
        if one.name in PASSED and one.kind is not one.POSITIONAL_ONLY:
            found[one.name] = required
        elif required:
            raise ValueError(
                f"{source.place}: {one.name} is not an argument of a norm. After x, a function may have by name: "
                f"{', '.join(PASSED)}. Rename it, give it a default, or use @provider"
            )
    return found


def _operations(name: str, stem: str, parameters: Mapping[str, bool]) -> tuple[str, ...]:
    """The operations that a function offers, by its names and parameters."""
    norms: tuple[str, ...] = ("layer_norm", "rms_norm")
    for text in (name.lower(), stem.lower()):
        if named := tuple(norm for norm in norms if norm.removesuffix("_norm") in text):
            norms = named
            break
    adds = tuple(f"add_{norm}" for norm in norms)
    if "residual" not in parameters:
        return norms
    return adds if parameters["residual"] else norms + adds


def _make(function: Callable[..., Any], parameters: Mapping[str, bool], name: str) -> Make:
    def make(case: Case, t: Tensors) -> Call:
        options = {each: getattr(t, each) for each in TENSORS}
        options |= {each: getattr(case, each) or None for each in OPTIONS}
        for each, value in options.items():
            if value is not None and each not in parameters:
                raise Refusal(f"{name} has no parameter {each}")
        values = options | {"eps": case.eps, "normalized_shape": (case.cols,)}
        arguments = {
            each: values[each]
            for each, required in parameters.items()
            if required or values[each] is not None
        }

        def forward() -> Tensor | tuple[Tensor, ...]:
            results: Tensor | tuple[Tensor, ...] | None = function(t.x, **arguments)
            if results is None:
                raise ValueError(f"{name} returned None; it must return y{', h' * case.adds}")
            return results

        if case.direction != "forward" and not all(
            one.requires_grad for one in as_tuple(forward())
        ):
            raise Refusal(f"the results of {name} have no gradient: it is no autograd function")
        return by_autograd(case, t, forward)

    return make


def _interpreted(make: Make) -> Make:
    """The same in Triton's interpreter: what the code asks about the GPU has an answer."""

    @answering_driver()
    def made(case: Case, t: Tensors) -> Call:
        return answering_driver()(make(case, t))

    return made


def _is_kernel(value: object) -> bool:
    """Whether a value is a Triton kernel, decorated in whichever way. Imports no Triton by itself."""
    return any(
        one.__module__.startswith("triton.") and one.__name__ == "KernelInterface"
        for one in type(value).__mro__
    )
