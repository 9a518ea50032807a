"""The launches of a user's Triton kernel, without launching it: recorded from a call, or described in words."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from rownorm.inside import Target

from ..data.user_files import Source, blame, load, source_of
from .pretend import pretended_gpu

MOST_LAUNCHES = 1000  # of the kernel in one call; a loop of training steps needs no more
# Names of --signature, as Triton has them.
DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Launched(NamedTuple):
    """One launch of a kernel."""

    kernel: Any  # JITFunction
    values: dict[str, Any]  # all arguments by name: tensors, numbers, constants
    options: dict[str, Any]  # of the compiler: num_warps, num_stages, ...
    grid: Any  # a tuple, or a function of the arguments
    note: str = ""  # what is special about it

    @property
    def num_warps(self) -> int:
        return int(self.options.get("num_warps", 4))

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The arguments that are tensors."""
        return {name: one for name, one in self.values.items() if isinstance(one, torch.Tensor)}

    @property
    def constants(self) -> dict[str, Any]:
        """The compile-time arguments."""
        return {one.name: self.values[one.name] for one in self.kernel.params if one.is_constexpr}

    def size(self) -> tuple[int, int, int]:
        """The grid: programs in x, y and z."""
        grid = self.grid(self.values) if callable(self.grid) else self.grid
        x, y, z, *_ = (*(int(one) for one in grid), 1, 1)
        return x, y, z

    def with_values(self, others: Mapping[str, Any]) -> Launched:
        """The launch with other constants and options."""
        own = {name: each for name, each in others.items() if name in self.values}
        rest = {name: each for name, each in others.items() if name not in self.values}
        return self._replace(values=self.values | own, options=self.options | rest)

    def describe(self) -> str:
        """The arguments in one line: ``x_ptr bf16[8192x4096], n_cols 4096, BLOCK 1024, num_warps 4``."""
        parts = [f"{name} {_in_words(value)}" for name, value in self.values.items()]
        options = {"num_warps": self.num_warps} | self.options
        return ", ".join([*parts, *(f"{name} {value}" for name, value in options.items())])


def jit_of(kernel: object, place: str) -> Any:
    """The JITFunction of a kernel with any number of decorators; ValueError if it is none."""
    inner = kernel
    while not isinstance(inner, JITFunction) and hasattr(inner, "fn"):
        inner = inner.fn
    if not isinstance(inner, JITFunction):
        raise ValueError(f"{place} is no kernel: decorate it with @triton.jit")
    return inner


# Of the compiler, beside a kernel's constants.
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


class Chosen(NamedTuple):
    """A launch of a kernel, and how many different ones there are."""

    source: Source
    launched: Launched
    n_launches: int


def chosen_launch(
    place: str,
    target: Target,
    *,
    call: str | None = None,
    signature: str | None = None,
    constants: Mapping[str, Any],
    grid: Sequence[int] = (),
    number: int = 1,
) -> Chosen:
    """A launch of ``FILE.py:kernel``, recorded or described, with other constants; ValueError if there is none."""
    source = source_of(place)
    if signature is not None:
        launches = described(source, signature, constants, grid, target)
    else:
        launches = recorded(source, call, target)
    launched = nth(launches, number)
    require_constants(launched, constants)
    return Chosen(source, launched.with_values(constants), len(launches))


def distinct(launches: Sequence[Launched]) -> list[Launched]:
    """The first of those that are described alike, in order."""
    found: dict[str, Launched] = {}
    for one in launches:
        found.setdefault(one.describe(), one)
    return list(found.values())


def nth(different: Sequence[Launched], number: int) -> Launched:
    """One of them, counted from 1; ValueError if there are fewer."""
    if number > len(different):
        raise ValueError(f"--launch {number}: there are {len(different)} different launches")
    return different[number - 1]


def require_constants(launched: Launched, names: Iterable[str]) -> None:
    """ValueError if a name is neither a constant of the kernel nor an option of the compiler."""
    known = [*launched.constants, *OPTIONS]
    for name in names:
        if name not in known:
            raise ValueError(
                f"{launched.kernel.__name__} has no constant {name!r}; it has {', '.join(known)}"
            )


def recorded(source: Source, call: str | None, target: Target) -> list[Launched]:
    """The different launches of a kernel while ``call`` is evaluated in its file, in order.

    call: an expression, ``main(n_cols=1024)``; None: ``main()``. Nothing is launched, and tensors have no values.
    ValueError if there is no launch.
    """
    with pretended_gpu(target), contextlib.redirect_stdout(sys.stderr):
        module, found = load(source)
        kernel = jit_of(found, source.place)
        if call is None and not callable(getattr(module, "main", None)):
            raise ValueError(
                f"{Path(source.file).name} has no main(): give a call that launches {source.name}, as --call "
                "'f(torch.empty(8, 4096))', or --signature, --constants and --grid"
            )
        launches, failure = _launches(lambda: evaluated(call or "main()", module), kernel)
    words = call or "main()"
    if not launches:
        why = f": {blame(failure, Path(source.file))}" if failure else ""
        raise ValueError(
            f"{words} launches no {source.name}{why}. Give another --call, or --signature, --constants and --grid"
        )
    different = distinct(launches)
    if failure:
        note = f"{words} ended early, after {source.name}: {blame(failure, Path(source.file))}"
        different[0] = different[0]._replace(
            note="; ".join(filter(None, [different[0].note, note]))
        )
    return different


def evaluated(call: str, module: Any) -> Any:
    """The value of an expression in a file, which may also name torch."""
    return eval(compile(call, "--call", "eval"), {"torch": torch, **vars(module)})


class _Enough(Exception):
    """More launches are not needed."""


def _launches(call: Callable[[], Any], kernel: Any) -> tuple[list[Launched], BaseException | None]:
    """(the launches of the kernel, why the call ended early)."""
    launches: list[Launched] = []

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool = False, **named: Any) -> None:
        if self is kernel:
            note = named.pop(_NOTE, "")
            launches.append(bound(kernel, arguments, named, grid)._replace(note=note))
        if len(launches) >= MOST_LAUNCHES:
            raise _Enough

    def first_config(self: Any, *arguments: Any, **named: Any) -> Any:
        config = self.configs[0]
        if len(self.configs) > 1:
            named[_NOTE] = f"autotuned: this is the first of {len(self.configs)} configurations"
        return self.fn.run(*arguments, **(named | config.all_kwargs()))

    with (
        mock.patch.object(JITFunction, "run", run),
        mock.patch.object(Autotuner, "run", first_config),
    ):
        try:
            call()
        except _Enough:
            return launches, None
        except (Exception, SystemExit) as error:
            return launches, error
    return launches, None


_NOTE = "_rownorm_note"


def bound(kernel: Any, arguments: Sequence[Any], named: Mapping[str, Any], grid: Any) -> Launched:
    """A launch from the arguments of its call; ValueError if one is missing."""
    values = dict(zip(kernel.arg_names, arguments, strict=False))
    values |= {name: value for name, value in named.items() if name in kernel.arg_names}
    for parameter in kernel.params:
        if parameter.name not in values and parameter.has_default:
            values[parameter.name] = parameter.default
    missing = [name for name in kernel.arg_names if name not in values]
    if missing:
        raise ValueError(f"{kernel.__name__} has no value for {', '.join(missing)}")
    ordered = {name: values[name] for name in kernel.arg_names}
    options = {name: value for name, value in named.items() if name not in kernel.arg_names}
    return Launched(kernel, ordered, options, grid)


def described(
    source: Source,
    signature: str,
    constants: Mapping[str, Any],
    grid: Sequence[int],
    target: Target,
) -> list[Launched]:
    """The launch that ``--signature``, ``--constants`` and ``--grid`` describe.

    signature: ``x_ptr=bf16[8192x4096], n_cols=4096, eps=1e-5, bias_ptr=None``.
    """
    with pretended_gpu(target), contextlib.redirect_stdout(sys.stderr):
        _, found = load(source)
    kernel = jit_of(found, source.place)
    values = {name: _argument(name, text) for name, text in _pairs(signature)}
    unknown = [name for name in values if name not in kernel.arg_names]
    if unknown:
        raise ValueError(
            f"--signature: {source.name} has no {unknown[0]}; it has {', '.join(kernel.arg_names)}"
        )
    return [bound(kernel, (), values | dict(constants), tuple(grid))]


def _pairs(signature: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, (part.strip() for part in signature.split(","))):
        name, equals, text = part.partition("=")
        if not equals:
            raise ValueError(
                f"--signature: {part!r} is not NAME=VALUE, as x_ptr=bf16[8192x4096] or n_cols=4096"
            )
        yield name.strip(), text.strip()


def _argument(name: str, text: str) -> Any:
    """A tensor without memory, a number, or None."""
    if tensor := re.fullmatch(r"\*?(\w+)\[([\dx]+)\]", text):
        if tensor[1] not in DTYPES:
            raise ValueError(
                f"--signature: {name} has no dtype {tensor[1]!r}; known: {', '.join(DTYPES)}"
            )
        shape = [int(size) for size in tensor[2].split("x")]
        return torch.empty(shape, dtype=DTYPES[tensor[1]], device="meta")
    if text in ("None", "True", "False"):
        return {"None": None, "True": True, "False": False}[text]
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    raise ValueError(
        f"--signature: {name}={text} is no tensor, as bf16[8192x4096], and no number. Sizes are joined by x"
    )


def compiler_message(error: BaseException) -> str:
    """Why a kernel could not be compiled, in one line: the reason, and Triton's place with the line of the kernel.

    Triton's first line is a place in the kernel. The reason is the last line, or that of the error that caused it.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    place = ""
    if len(lines) > 1 and lines[0].startswith("at "):
        code = lines[lines.index("^") - 1] if "^" in lines else ""
        place = f" ({': '.join(filter(None, (lines[0].rstrip(':'), code)))})"
        while error.__cause__ is not None:
            error = error.__cause__
        lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")][::-1]
    name = type(error).__name__
    return f"{name}: {lines[0]}{place}" if lines else name + place


def _in_words(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{NAMES.get(value.dtype, str(value.dtype))}[{'x'.join(map(str, value.shape))}]"
    return str(getattr(value, "value", value))
