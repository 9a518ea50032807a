"""What the cases of a part run, and how they are timed: a ``Workload`` for each file of calls or steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from ...data.case import Case

Call = Callable[[], Any]
Times = tuple[float | None, float | None]  # seconds of a call, and of the host; None: not measured


def nothing_around(case: Case, device: str) -> AbstractContextManager[object]:
    """The calls need no context."""
    return contextlib.nullcontext()


class Workload(NamedTuple):
    """How the cases of a part are run and timed. The defaults are those of whole training steps."""

    calls: Callable[[Case, Sequence[str], str], Mapping[str, Call]]  # (case, providers, device)
    round: Callable[[Call, int, str], Times]  # (call, how many times, device)
    # Around all calls.
    context: Callable[[Case, str], AbstractContextManager[object]] = nothing_around
    rounds: int = 30
    warm_up: int = 5  # rounds that do not count
    repeats: Callable[[Sequence[Call]], int] = lambda _: 1  # calls of a round
    on_cpu: bool = False  # wherever there is a GPU
