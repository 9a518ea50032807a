"""Cases and providers to records: check every provider, then time them in turns. See docs/method.md."""

from __future__ import annotations

import functools
import gc
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from ..data import texts
from ..data.case import Case
from ..data.records import Accuracy, Clocks, Method, Record, Status
from ..data.runs import timestamp
from ..providers import (
    Call,
    Provider,
    Refusal,
    all_providers,
    as_tuple,
    data,
    import_failure,
    is_interpreted,
    missing,
)
from . import timing
from .accuracy import judge_all
from .machine import Machine, machine_of
from .suspect import suspect_reasons, typical_clocks

HOST_ROUNDS = 5
SMALL_CASE_HOST_ROUNDS = 25  # where host time matters: on a busy host a median of five is unstable
FEWEST_ROUNDS = 3  # even if the time budget is spent


class Step(NamedTuple):
    """The progress of a run. ``done`` of ``total`` counts pairs of a case and a provider."""

    done: int
    total: int
    case: Case
    provider: str  # empty while all providers are timed in turns
    doing: str  # "checking", "preparing", "timing"


OnStep = Callable[[Step], None]
Say = Callable[[str, str], None]  # provider, doing


@dataclass
class Measurement:
    """One provider on one case, from its check to its record."""

    provider: Provider
    status: Status = "ok"
    why: str = ""
    calls: Sequence[Call] = ()  # one for each set of inputs
    outputs: tuple[Tensor, ...] = ()
    rounds: timing.Rounds | None = None
    accuracy: Accuracy | None = None
    peak_bytes: int | None = None
    seconds: list[float] = field(default_factory=list)
    host_seconds: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.provider.name

    def stop(self, status: Status, why: str) -> None:
        """End this measurement without a time, and free what it holds."""
        self.status, self.why = status, why
        self.calls, self.outputs, self.rounds, self.peak_bytes = [], (), None, None
        self.seconds, self.host_seconds = [], []

    def attempt(self, action: Callable[..., Any], *arguments: Any) -> None:
        """Call ``action(self, *arguments)``. An exception stops this measurement only."""
        if self.status != "ok":
            return
        try:
            action(self, *arguments)
        except Refusal as refusal:
            self.stop("refused", str(refusal))
        except ImportError as error:
            self.stop("missing", import_failure(error))
        except Exception as error:
            self.stop("failed", in_one_line(error))


def bench(
    cases: Sequence[Case],
    providers: Sequence[str | Provider],
    *,
    run: str,
    device: str | None = None,
    rounds: int = 15,
    budget_s: float | None = None,
    seed: int = 0,
    done: Collection[tuple[str, str]] = (),
    on_step: OnStep = lambda _: None,
) -> Iterator[Record]:
    """Measure every provider on every case, and yield the records of a case as soon as it is finished.

    providers: names, or providers that have no file in ``providers/``. run: the id that the records get. device:
    "cuda", "cuda:1" or "cpu"; None is a GPU if there is one. budget_s: seconds after which a case gets no further
    rounds. done: (case key, provider) pairs to leave out. A provider that is missing, refuses, fails or is wrong gets
    a record with the reason. An unknown provider or an absent device is a ValueError.
    """
    known = all_providers()
    unknown = [name for name in providers if isinstance(name, str) and name not in known]
    if unknown:
        raise ValueError(f"unknown provider {unknown[0]!r}; known: {', '.join(known)}")
    chosen = [known[one] if isinstance(one, str) else one for one in providers]
    machine = machine_of(device, chosen)
    todo = [(case, [one for one in chosen if (case.key, one.name) not in done]) for case in cases]
    total, finished = sum(len(some) for _, some in todo), 0
    try:
        for case, some in todo:
            if not some:
                continue
            say = functools.partial(_say, on_step, finished, total, case)
            measurements = [Measurement(one) for one in some]
            clocks: list[Clocks] = []
            try:
                with machine.stream():
                    _measure_case(case, measurements, machine, rounds, budget_s, seed, clocks, say)
            except (
                Exception
            ) as error:  # of the case, not of one provider: inputs too large, a lost device
                for one in measurements:
                    if one.status == "ok":
                        one.stop("failed", in_one_line(error))
            records = [_record(one, case, machine, clocks, run) for one in measurements]
            measurements.clear()
            machine.free()
            yield from records
            finished += len(some)
    finally:
        gc.unfreeze()  # undoes the gc.freeze of ``machine.free``


def in_one_line(error: BaseException) -> str:
    """An exception as one line of text."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "out of memory on the device"
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first[:200]}" if first else type(error).__name__


def _measure_case(
    case: Case,
    measurements: list[Measurement],
    machine: Machine,
    rounds: int,
    budget_s: float | None,
    seed: int,
    clocks: list[Clocks],
    say: Say,
) -> None:
    """Check all providers, then time those that passed, in turns."""
    began = time.monotonic()
    for one in measurements:
        lacking = missing(one.provider, machine.device.type)
        if lacking is not None:
            one.stop("missing", lacking)
        elif (reason := one.provider.refusal(case)) is not None:
            one.stop("refused", reason)
    if all(one.status != "ok" for one in measurements):
        return
    size = machine.round_size(case)
    needed = size.sets * case.compulsory_bytes
    if needed > machine.memory:  # a CPU would grant the memory and kill the process when it is used
        have = texts.binary_size(machine.memory)
        raise MemoryError(f"needs {texts.binary_size(needed)}; the device has {have}")
    sets = data.rotation(case, size.sets, machine.device, seed=seed)
    _check_outputs(case, measurements, sets[0], say)
    for one in measurements:
        say(one.name, "preparing")
        one.attempt(_prepare, case, sets, size, machine)
    say("", "timing")
    order = random.Random(f"{seed} {case.key}")
    for number in range(rounds):
        late = budget_s is not None and time.monotonic() - began > budget_s
        if late and number >= FEWEST_ROUNDS:
            break
        _time_round(order.sample(measurements, len(measurements)), machine, clocks)
    if machine.on_gpu:
        _time_host(measurements, order)


def _check_outputs(case: Case, measurements: list[Measurement], t: data.Tensors, say: Say) -> None:
    """Stop every provider whose results are wrong, or that changes its inputs."""
    for one in measurements:
        say(one.name, "checking")
        one.attempt(_first_call, case, t)
    judged = judge_all(
        case,
        t,
        {
            one.name: one.outputs
            for one in measurements
            if one.outputs and one.provider.kind != "ceiling"
        },
        strict=[one.name for one in measurements if one.provider.kind == "ours"],
    )
    for one in measurements:
        one.outputs = ()
        if one.name in judged:
            one.accuracy = judged[one.name].accuracy
            if not judged[one.name].ok:
                one.stop("wrong", judged[one.name].why)


def _first_call(one: Measurement, case: Case, t: data.Tensors) -> None:
    inputs = t.copy()  # a provider that changes its inputs must not affect the others
    call = one.provider.prepare(case, inputs)
    if inputs.x.is_cuda:
        # The output is likely to reuse this memory: elements that are not written stay NaN.
        torch.full_like(inputs.x, torch.nan)
    one.outputs = as_tuple(call())
    for name, now, before in zip(t._fields, inputs, t, strict=True):
        if now is not None and before is not None and not _same_bits(now, before):
            one.stop("wrong", f"changed its input {name}")
            return


def _prepare(
    one: Measurement,
    case: Case,
    sets: list[data.Tensors],
    size: timing.RoundSize,
    machine: Machine,
) -> None:
    """Prepare the calls for all sets of inputs, warm up, and set up the rounds."""
    one.calls = [one.provider.prepare(case, t) for t in sets]
    one.calls[0]()
    one.peak_bytes = timing.peak_bytes(one.calls[0], machine.on_gpu)
    one.rounds = timing.rounds_of(one.calls, size, machine.flush)


def _time_round(measurements: list[Measurement], machine: Machine, clocks: list[Clocks]) -> None:
    """Time each provider once, in the given order."""
    pending: list[tuple[Measurement, Callable[[], float]]] = []

    def start(one: Measurement) -> None:
        assert one.rounds is not None
        pending.append((one, one.rounds.run()))

    for one in measurements:
        one.attempt(start)
    now = machine.clocks()  # while the device is busy
    if now is not None:
        clocks.append(now)
    if machine.on_gpu:
        torch.cuda.synchronize()
    for one, seconds in pending:
        one.attempt(lambda one, seconds: one.seconds.append(seconds()), seconds)


def _time_host(measurements: list[Measurement], order: random.Random) -> None:
    """Time the host cost of a call, again in turns, with the same number of calls for each provider."""
    timed = [statistics.median(one.seconds) for one in measurements if one.seconds]
    if not timed:
        return
    calls = timing.host_calls(max(timed))
    for _ in range(SMALL_CASE_HOST_ROUNDS if calls == timing.HOST_CALLS else HOST_ROUNDS):
        for one in order.sample(measurements, len(measurements)):
            one.attempt(
                lambda one: one.host_seconds.append(timing.host_seconds(one.calls[0], calls))
            )


def _record(
    one: Measurement, case: Case, machine: Machine, clocks: list[Clocks], run: str
) -> Record:
    record = Record(
        case=case,
        provider=one.name,
        status=one.status,
        why=one.why,
        accuracy=one.accuracy,
        environment=machine.environment,
        source=one.provider.source,
        run=run,
        time=timestamp(),
    )
    if one.rounds is None:
        return record
    size = machine.round_size(case)
    method = Method(
        timer=one.rounds.timer,
        rotation=min(size.sets, one.rounds.calls),
        calls=one.rounds.calls,
        rounds=len(one.seconds),
        cold=machine.cold(case, size),
    )
    reasons = suspect_reasons(
        case,
        method,
        one.seconds,
        clocks,
        peak=machine.environment.peak_bytes_per_second,
        interpreted=is_interpreted(one.provider, machine.device.type),
    )
    return msgspec.structs.replace(
        record,
        method=method,
        seconds=one.seconds,
        host_seconds=one.host_seconds,
        peak_bytes=one.peak_bytes,
        clocks=typical_clocks(clocks),
        suspect=reasons,
    )


def _same_bits(a: Tensor, b: Tensor) -> bool:
    bits = torch.int16 if a.element_size() == 2 else torch.int32
    return torch.equal(a.detach().view(bits), b.detach().view(bits))


def _say(on_step: OnStep, done: int, total: int, case: Case, provider: str, doing: str) -> None:
    on_step(Step(done, total, case, provider, doing))
