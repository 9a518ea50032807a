"""Cases and providers in, records out: check, then time, all providers of a case taking turns. See docs/method.md."""

from __future__ import annotations

import datetime
import functools
import gc
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from . import data, texts, timing
from .accuracy import judge_all
from .cases import Case
from .machine import Machine, machine_of
from .providers import (
    Call,
    Provider,
    Refusal,
    all_providers,
    as_tuple,
    broken,
    interpreting,
    missing,
)
from .records import Accuracy, Clocks, Method, Record, Status
from .suspicions import summary, suspicions

HOST_ROUNDS = 5
BRIEF_HOST_ROUNDS = 25  # where host time is what counts: a busy host moves the median of five
FEWEST_ROUNDS = 3  # whatever the budget


class Progress(NamedTuple):
    """Where a run is. ``done`` of ``total`` counts pairs of a case and a provider."""

    done: int
    total: int
    case: Case
    provider: str  # empty while they take turns
    doing: str  # "checking", "preparing", "timing"


Say = Callable[[str, str], None]  # provider, doing


class Contestant:
    """One provider on one case, on its way to a record."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.status: Status = "ok"
        self.why = ""
        self.calls: list[Call] = []  # one for each set of inputs
        self.outputs: tuple[Tensor, ...] = ()
        self.rounds: timing.Rounds | None = None
        self.accuracy: Accuracy | None = None
        self.peak_bytes: int | None = None
        self.seconds: list[float] = []
        self.host_seconds: list[float] = []

    @property
    def name(self) -> str:
        return self.provider.name

    def out(self, status: Status, why: str) -> None:
        """It takes no further part, and what it holds is freed."""
        self.status, self.why = status, why
        self.calls, self.outputs, self.rounds, self.peak_bytes = [], (), None, None
        self.seconds, self.host_seconds = [], []

    def attempt(self, action: Callable[..., Any], *arguments: Any) -> None:
        """Do something. If it goes wrong, this contestant is out, and nobody else."""
        if self.status != "ok":
            return
        try:
            action(self, *arguments)
        except Refusal as refusal:
            self.out("refused", str(refusal))
        except ImportError as error:
            self.out("missing", broken(error))
        except Exception as error:
            self.out("failed", in_one_line(error))


def bench(
    cases: Sequence[Case],
    providers: Sequence[str],
    *,
    run: str,
    device: str | None = None,
    rounds: int = 15,
    budget_s: float | None = None,
    seed: int = 0,
    done: Collection[tuple[str, str]] = (),
    told: Callable[[Progress], None] | None = None,
) -> Iterator[Record]:
    """Measure every provider on every case, and yield the records of a case as soon as it is finished.

    device: "cuda", "cuda:1" or "cpu"; None is a GPU where there is one. budget_s: seconds after which a case takes no
    further rounds. done: (case key, provider) pairs to leave out. A provider that is missing, refuses, fails or is
    wrong gets a record that says so. An unknown provider or a device that is not there is a ValueError.
    """
    known = all_providers()
    unknown = [name for name in providers if name not in known]
    if unknown:
        raise ValueError(f"unknown provider {unknown[0]!r}; known: {', '.join(known)}")
    machine = machine_of(device, [known[name] for name in providers])
    todo = [(case, [name for name in providers if (case.key, name) not in done]) for case in cases]
    total, finished = sum(len(names) for _, names in todo), 0
    try:
        for case, names in todo:
            if not names:
                continue
            say = functools.partial(_say, told, finished, total, case)
            contestants = [Contestant(known[name]) for name in names]
            clocks: list[Clocks] = []
            try:
                with machine.stage():
                    _compete(case, contestants, machine, rounds, budget_s, seed, clocks, say)
            except (
                Exception
            ) as error:  # not of one provider: inputs too large, a device that went away
                for one in contestants:
                    if one.status == "ok":
                        one.out("failed", in_one_line(error))
            made = [_record(one, case, machine, clocks, run) for one in contestants]
            contestants.clear()
            machine.free()
            yield from made
            finished += len(names)
    finally:
        gc.unfreeze()  # what ``machine.free`` put aside


def in_one_line(error: BaseException) -> str:
    """An exception for a table."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "out of memory on the device"
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first[:200]}" if first else type(error).__name__


def _compete(
    case: Case,
    contestants: list[Contestant],
    machine: Machine,
    rounds: int,
    budget_s: float | None,
    seed: int,
    clocks: list[Clocks],
    say: Say,
) -> None:
    """Check everyone, then time those who are left, in turns."""
    began = time.monotonic()
    for one in contestants:
        lacking = missing(one.provider, machine.device.type)
        if lacking is not None:
            one.out("missing", lacking)
        elif (reason := one.provider.refusal(case)) is not None:
            one.out("refused", reason)
    if all(one.status != "ok" for one in contestants):
        return
    plan = machine.plan(case)
    needed = plan.sets * case.compulsory_bytes
    if needed > machine.memory:  # a CPU would grant it, and be killed when it is used
        have = texts.binary_size(machine.memory)
        raise MemoryError(f"needs {texts.binary_size(needed)}; {have} are there")
    sets = data.rotation(case, plan.sets, machine.device, seed=seed)
    _gate(case, contestants, sets[0], say)
    for one in contestants:
        say(one.name, "preparing")
        one.attempt(_prepare, case, sets, plan, machine)
    say("", "timing")
    draw = random.Random(f"{seed} {case.key}")
    for number in range(rounds):
        late = budget_s is not None and time.monotonic() - began > budget_s
        if late and number >= FEWEST_ROUNDS:
            break
        _round(draw.sample(contestants, len(contestants)), machine, clocks)
    if machine.on_gpu:
        _host_rounds(contestants, draw)


def _gate(case: Case, contestants: list[Contestant], t: data.Tensors, say: Say) -> None:
    """Nobody is timed whose results are wrong, or who changes what it was given."""
    for one in contestants:
        say(one.name, "checking")
        one.attempt(_first_call, case, t)
    judged = judge_all(
        case,
        t,
        {
            one.name: one.outputs
            for one in contestants
            if one.outputs and one.provider.kind != "ceiling"
        },
        strict=[one.name for one in contestants if one.provider.kind == "ours"],
    )
    for one in contestants:
        one.outputs = ()
        if one.name in judged:
            one.accuracy = judged[one.name].accuracy
            if not judged[one.name].ok:
                one.out("wrong", judged[one.name].why)


def _first_call(one: Contestant, case: Case, t: data.Tensors) -> None:
    given = t.copy()  # whatever it does to them, the others have theirs
    call = one.provider.prepare(case, given)
    if given.x.is_cuda:
        # The output is likely to get this memory: what is not written to it shows.
        torch.full_like(given.x, torch.nan)
    one.outputs = as_tuple(call())
    for name, now, before in zip(t._fields, given, t, strict=True):
        if now is not None and before is not None and not _same_bits(now, before):
            one.out("wrong", f"changed its input {name}")
            return


def _prepare(
    one: Contestant, case: Case, sets: list[data.Tensors], plan: timing.Plan, machine: Machine
) -> None:
    """Calls for all sets of inputs, warmed up and ready for rounds."""
    one.calls = [one.provider.prepare(case, t) for t in sets]
    one.calls[0]()
    if machine.on_gpu:
        one.peak_bytes = timing.peak_bytes(one.calls[0])
    one.rounds = timing.rounds_of(one.calls, plan, machine.flush)


def _round(contestants: list[Contestant], machine: Machine, clocks: list[Clocks]) -> None:
    """Everyone once, in the order given."""
    pending: list[tuple[Contestant, Callable[[], float]]] = []

    def start(one: Contestant) -> None:
        assert one.rounds is not None
        pending.append((one, one.rounds.run()))

    for one in contestants:
        one.attempt(start)
    now = machine.clocks()  # while the device is at work
    if now is not None:
        clocks.append(now)
    if machine.on_gpu:
        torch.cuda.synchronize()
    for one, seconds in pending:
        one.attempt(lambda one, seconds: one.seconds.append(seconds()), seconds)


def _host_rounds(contestants: list[Contestant], draw: random.Random) -> None:
    """What a call costs the host, in turns again, and with as many calls for everyone."""
    timed = [statistics.median(one.seconds) for one in contestants if one.seconds]
    if not timed:
        return
    calls = timing.host_calls(max(timed))
    for _ in range(BRIEF_HOST_ROUNDS if calls == timing.HOST_CALLS else HOST_ROUNDS):
        for one in draw.sample(contestants, len(contestants)):
            one.attempt(_host_round, calls)


def _host_round(one: Contestant, calls: int) -> None:
    one.host_seconds.append(timing.host_seconds(one.calls[0], calls))


def _record(
    one: Contestant, case: Case, machine: Machine, clocks: list[Clocks], run: str
) -> Record:
    record = Record(
        case=case,
        provider=one.name,
        status=one.status,
        why=one.why,
        accuracy=one.accuracy,
        environment=machine.environment,
        run=run,
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    if one.rounds is None:
        return record
    plan = machine.plan(case)
    method = Method(
        timer=one.rounds.timer,
        rotation=min(plan.sets, one.rounds.calls),
        calls=one.rounds.calls,
        rounds=len(one.seconds),
        cold=machine.cold(case, plan),
    )
    in_interpreter = not machine.on_gpu and interpreting()
    odd = suspicions(
        case,
        method,
        one.seconds,
        clocks,
        peak=machine.environment.peak_bytes_per_second,
        interpreted=in_interpreter and one.provider.kind in ("ours", "plain"),
    )
    return msgspec.structs.replace(
        record,
        method=method,
        seconds=one.seconds,
        host_seconds=one.host_seconds,
        peak_bytes=one.peak_bytes,
        clocks=summary(clocks),
        suspicions=odd,
    )


def _same_bits(a: Tensor, b: Tensor) -> bool:
    bits = torch.int16 if a.element_size() == 2 else torch.int32
    return torch.equal(a.detach().view(bits), b.detach().view(bits))


def _say(
    told: Callable[[Progress], None] | None,
    done: int,
    total: int,
    case: Case,
    provider: str,
    doing: str,
) -> None:
    if told is not None:
        told(Progress(done, total, case, provider, doing))
