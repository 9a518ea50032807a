"""Options of ``analyze``, ``source`` and ``tune`` for a kernel of a user's file, and what their values mean."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from .options import Decorator

MOST_VALUES = 4096  # launches of a sweep


class OwnOptions(NamedTuple):
    """How a user's kernel is launched."""

    call: str | None
    signature: str | None
    constants: str | None
    grid: str | None
    launch: int | None

    def launch_arguments(self) -> dict[str, Any]:
        """The options as arguments of ``compiled.recorded.chosen_launch``; a usage error if one is malformed."""
        if self.signature is not None and self.call is not None:
            raise click.UsageError("--call and --signature exclude each other")
        if (self.signature is None) != (self.grid is None):
            raise click.UsageError(
                "--signature needs --grid, how many programs there are; a call has its own grid"
            )
        return {
            "call": self.call,
            "signature": self.signature,
            "constants": values_of(self.constants or ""),
            "grid": _grid(self.grid) if self.grid is not None else (),
            "number": self.launch or 1,
        }

    def given(self) -> list[str]:
        """The options that were used."""
        return [f"--{name}" for name, value in self._asdict().items() if value is not None]


def own_kernel_options(command: Decorator) -> Decorator:
    """The options that say how a kernel of FILE.py:kernel is launched."""
    rows: tuple[tuple[str, str, Any, str], ...] = (
        ("--launch", "N", click.IntRange(min=1), "FILE.py:kernel: the Nth of its different launches. Default: 1."),
        ("--grid", "X[xYxZ]", None, "With --signature: programs."),
        ("--constants", "NAME=VALUE,...", None, "Constants and num_warps, num_stages; other ones than those recorded."),
        ("--signature", "NAME=VALUE,...", None, "Instead of a call: x_ptr=bf16[8192x4096],n_cols=4096,eps=1e-5"),
        ("--call", "EXPRESSION", None, "FILE.py:kernel: what launches it, evaluated in the file. Default: main()."),
    )  # fmt: skip
    for flag, metavar, kind, text in rows:
        command = click.option(flag, metavar=metavar, type=kind, help=text)(command)
    return command


def values_of(text: str) -> dict[str, Any]:
    """``BLOCK=1024,num_warps=4`` as a dict."""
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise click.UsageError(f"--constants: {part!r} is not NAME=VALUE")
        found[name.strip()] = _value(value.strip())
    return found


def sweep_of(text: str, option: str) -> tuple[str, list[Any]]:
    """``BLOCK=64,128,256`` or ``BLOCK=64..1024``, which doubles, as a name and its values."""
    name, equals, values = text.partition("=")
    found: list[Any] = []
    for part in filter(None, (part.strip() for part in values.split(","))):
        first, dots, last = part.partition("..")
        if not dots:
            found.append(_value(part))
            continue
        if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last)):
            raise click.UsageError(f"{option}: {part!r} is not a range as 64..1024")
        size = int(first)
        while size <= int(last):
            found.append(size)
            size *= 2
    if not equals or not found:
        raise click.UsageError(f"{option}: {text!r} is not NAME=VALUE,VALUE or NAME=64..1024")
    return name.strip(), list(dict.fromkeys(found))


def combinations(sweeps: Sequence[tuple[str, list[Any]]], option: str) -> list[dict[str, Any]]:
    """Every combination of the values of several names. They are counted before they are made."""
    total = math.prod(len(values) for _, values in sweeps)
    if total > MOST_VALUES:
        raise click.UsageError(f"{option}: {total:,} combinations; {MOST_VALUES:,} are the most")
    names = [name for name, _ in sweeps]
    return [
        dict(zip(names, each, strict=True))
        for each in itertools.product(*(values for _, values in sweeps))
    ]


def label_of(values: dict[str, Any]) -> str:
    """``BLOCK 64 / num_warps 4``."""
    return " / ".join(f"{name} {value}" for name, value in values.items())


def _grid(text: str) -> tuple[int, ...]:
    parts = text.lower().split("x")
    if not all(part.isdecimal() and int(part) for part in parts) or len(parts) > 3:
        raise click.UsageError(f"--grid {text}: one to three numbers of programs, as 8192 or 64x16")
    return tuple(map(int, parts))


def _value(text: str) -> Any:
    """A constant: a number, True, False, None, or a word."""
    words = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
