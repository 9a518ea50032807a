"""Checks and times the candidates of one study on a GPU.

Timing is that of ``rownorm bench``: device time from a CUDA graph over inputs larger than L2. The check, too: outputs
against fp64, within rownorm's error budget.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ...data.records import CEILING
from ...measure.accuracy import judge_all
from ...measure.bench import in_one_line
from ...measure.machine import Machine
from ...measure.timing import Calls, GraphRounds, in_turns
from ...providers import all_providers, data
from .candidates import Settings, forced
from .journal import Status
from .study import TuningCase, calls_of

CHECKED_ELEMENTS = 1 << 24  # of x in a check: several rows for every program
MOST_CHECKED_ROWS = 16384
FEW_ROWS = 8  # settings that are equally fast with many rows are compared with this many
FEW_COPIES = 64
TURNS = 5
# Rounds before the first that counts. On an H200, with tensors of a gigabyte, the median of the first 3 rounds of a
# captured graph was 10 to 18% above that of 5 or 15 rounds.
WARM_UP = 3


class DeviceLost(RuntimeError):
    """A launch with these settings ended the GPU's context: this process can use the GPU no more."""

    def __init__(self, settings: Settings, why: str) -> None:
        super().__init__(why)
        self.settings = settings


class Timer:
    """Checks and times settings for one study on this machine's GPU. Both raise DeviceLost if nothing can follow."""

    def __init__(self, study: TuningCase, machine: Machine) -> None:
        assert machine.flush is not None  # there is a GPU
        machine.free()
        self.study, self.machine, self.flush = study, machine, machine.flush
        self.case = study.case(study.n_rows)
        # Rounds as in ``rownorm bench``: settings that are fast once may be slow in back-to-back calls.
        self.size = machine.round_size(self.case)
        self.sets = data.rotation(self.case, self.size.sets, machine.device)
        self.calls = calls_of(self.case, self.sets)
        torch.cuda.synchronize()

    def check(self, several: Sequence[Settings]) -> list[tuple[Status, str]]:
        """For each of the settings: ok, wrong or failed, and why."""
        return checked(self.study, several, self.machine.device)

    def seconds(self, settings: Settings, rounds: int) -> float:
        """Device time of one call."""
        try:
            with forced(settings):
                return self._seconds(self.calls, self.size.repeats, rounds)
        except Exception as error:
            _raise_if_lost(settings, error)
            raise

    def seconds_of_few(self, settings: Settings, rounds: int) -> float:
        """The same with FEW_ROWS rows."""
        case = self.study.case(FEW_ROWS)
        calls = calls_of(case, data.rotation(case, FEW_COPIES, self.machine.device))
        with forced(settings):
            return self._seconds(calls, 1, rounds)

    def ceiling_seconds(self, rounds: int) -> float:
        """Device time of an elementwise kernel over the same bytes."""
        prepare = all_providers()[CEILING].prepare
        calls = [prepare(self.case, tensors) for tensors in self.sets]
        return self._seconds(calls, self.size.repeats, rounds)

    def seconds_in_turns(self, several: Sequence[Settings], rounds: int) -> list[float]:
        """Device time with each of the settings, which take turns."""
        # A graph must not outlive ``forced``: leaving it frees buffers of prepared calls. So every turn captures anew.
        seconds: list[list[float]] = [[] for _ in several]
        for _, index in in_turns(range(len(several)), TURNS):
            seconds[index].append(self.seconds(several[index], max(1, rounds // TURNS)))
        return list(map(statistics.median, seconds))

    def _seconds(self, calls: Calls, repeats: int, rounds: int) -> float:
        """The median of the rounds. A round uses all inputs ``repeats`` times."""
        with torch.cuda.stream(torch.cuda.Stream()):
            graph = GraphRounds(calls, repeats, self.flush)
            return steady(lambda: _round(graph), rounds)


def _round(graph: GraphRounds) -> float:
    finished = graph.run()
    torch.cuda.synchronize()
    return finished()


def steady(one_round: Callable[[], float], rounds: int) -> float:
    """The median of so many rounds, after WARM_UP others."""
    for _ in range(WARM_UP):
        one_round()
    return statistics.median(one_round() for _ in range(rounds))


def checked(
    study: TuningCase,
    several: Sequence[Settings],
    device: torch.device | str,
    n_rows: int | None = None,
) -> list[tuple[Status, str]]:
    """Whether the results with these settings are within rownorm's error budget: ok, wrong or failed, and why."""
    rows = n_rows or min(MOST_CHECKED_ROWS, max(FEW_ROWS, CHECKED_ELEMENTS // study.n_cols))
    case = study.case(rows)
    sets = data.rotation(case, 1, device)
    [call] = calls_of(case, sets)
    found: dict[int, tuple[Status, str]] = {}
    outputs: dict[str, Sequence[Tensor]] = {}
    for number, settings in enumerate(several):
        try:
            with forced(settings), _filled_with_nan():
                outputs[str(number)] = call()
            if torch.device(device).type == "cuda":
                torch.cuda.synchronize()
        except Exception as error:  # of the compiler, the driver or the launch
            _raise_if_lost(settings, error)
            found[number] = ("failed", in_one_line(error))
    judged = judge_all(case, sets[0], outputs, strict=list(outputs))
    for name, judgement in judged.items():
        found.setdefault(int(name), ("ok" if judgement.ok else "wrong", judgement.why))
    return [found[number] for number in range(len(several))]


def _raise_if_lost(settings: Settings, error: Exception) -> None:
    """DeviceLost if the GPU's context did not survive the error."""
    if not torch.cuda.is_available():
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        raise DeviceLost(settings, in_one_line(error)) from error


@contextlib.contextmanager
def _filled_with_nan() -> Iterator[None]:
    """New memory is filled with NaN: it may hold the right results of earlier settings."""
    before = torch.are_deterministic_algorithms_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(before)
