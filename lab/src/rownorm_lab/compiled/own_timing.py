"""Times of a user's kernel on this machine's GPU: its launch is recorded from a real call, then repeated with others.

As in ``rownorm bench``: device time by CUDA graphs, many copies of the tensors so that caches are cold, and all
variants take turns. Each variant runs on copies first, and its results are compared with those of the recorded launch.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from ..data.user_files import Source, blame, load
from ..measure.machine import Machine, machine_of
from ..measure.timing import Rounds, RoundSize, round_size, rounds_of
from .launched import tensor_bytes
from .measured import medians_in_turns
from .recorded import Launched, bound, compiler_message, distinct, evaluated, jit_of, nth

# Largest relative difference of a result from that of the recorded launch: other block sizes sum in another order.
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-12}


class Timed(NamedTuple):
    """A variant's time. why: the reason if it has none."""

    seconds: float | None
    why: str = ""


def launched_here(source: Source, call: str | None, number: int) -> Launched:
    """The Nth different launch of a kernel while a call really runs on this GPU; ValueError if there is none."""
    module, found = load(source)
    kernel = jit_of(found, source.place)
    launches: list[Launched] = []
    run, tune = JITFunction.run, Autotuner.run

    def recording(self: Any, *arguments: Any, grid: Any, warmup: bool = False, **named: Any) -> Any:
        if self is kernel and not warmup:
            launches.append(bound(kernel, arguments, named, grid))
        return run(self, *arguments, grid=grid, warmup=warmup, **named)

    def last_of_tuning(self: Any, *arguments: Any, **named: Any) -> Any:
        before = len(launches)
        result = tune(self, *arguments, **named)
        launches[before:] = launches[-1:] if len(launches) > before else []
        return result

    words = call or "main()"
    with (
        mock.patch.object(JITFunction, "run", recording),
        mock.patch.object(Autotuner, "run", last_of_tuning),
        contextlib.redirect_stdout(sys.stderr),
    ):
        try:
            evaluated(words, module)
        except (Exception, SystemExit) as error:
            if not launches:
                why = blame(error, Path(source.file))
                raise ValueError(f"{words} launches no {source.name}: {why}") from None
    return nth(distinct(launches), number)


def time_variants(launched: Launched, variants: Sequence[Launched]) -> list[Timed]:
    """Time variants of a launch whose tensors are on this GPU, in turns. A wrong or failing one has no time."""
    machine = machine_of(None, [])
    found = [Timed(None)] * len(variants)
    with machine.stream():
        expected = _results(launched)
        size, sets = _copies(launched, machine)
        rounds: dict[int, Rounds] = {}
        for i, variant in enumerate(variants):
            try:
                if why := _difference(_results(variant), expected):
                    found[i] = Timed(None, why)
                else:
                    calls = [_call(variant._replace(values=variant.values | one)) for one in sets]
                    rounds[i] = rounds_of(calls, size, machine.flush)
            except Exception as error:  # of the compiler or the driver, whatever its type
                found[i] = Timed(None, compiler_message(error))
        medians = medians_in_turns([*rounds.values()])
    machine.free()
    for i, seconds in zip(rounds, medians, strict=True):
        found[i] = Timed(seconds)
    return found


def _copies(
    launched: Launched, machine: Machine
) -> tuple[RoundSize, list[dict[str, torch.Tensor]]]:
    """(how many calls a round has, the sets of tensors that all variants share)."""
    moved = sum(tensor_bytes(one) for one in launched.tensors.values())
    size = round_size(
        moved,
        moved,
        cache=machine.cache,
        peak=machine.environment.peak_bytes_per_second,
        memory=machine.memory,
        on_gpu=True,
    )
    return size, [_copied(launched).tensors for _ in range(size.sets)]


def _results(variant: Launched) -> dict[str, torch.Tensor]:
    """The tensors after one launch on copies of them."""
    copy = _copied(variant)
    _call(copy)()
    torch.cuda.synchronize()
    return copy.tensors


def _difference(results: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> str:
    """Which tensor differs from that of the recorded launch; empty if none does."""
    for name, exact in expected.items():
        if not _is_close(results[name], exact):
            return f"{name} differs from the recorded launch's"
    return ""


def _is_close(got: torch.Tensor, exact: torch.Tensor) -> bool:
    tolerance = TOLERANCE.get(exact.dtype)
    if tolerance is None:
        return torch.equal(got, exact)
    scale = exact.double().abs().amax().clamp(min=1e-30) if exact.numel() else 1.0
    both = got.double() / scale, exact.double() / scale
    return torch.allclose(*both, rtol=tolerance, atol=tolerance, equal_nan=True)


def _copied(variant: Launched) -> Launched:
    """The launch on copies of its tensors with the same strides. A tensor that is passed twice stays one."""
    copies: dict[int, torch.Tensor] = {}
    for one in variant.tensors.values():
        if id(one) not in copies:
            copy = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)
            copies[id(one)] = copy.copy_(one.detach())
    values = {name: copies.get(id(value), value) for name, value in variant.values.items()}
    return variant._replace(values=values)


def _call(variant: Launched) -> Callable[[], Any]:
    launch = variant.kernel[variant.size()]
    arguments = {**variant.values, **variant.options}
    return lambda: launch(**arguments)
