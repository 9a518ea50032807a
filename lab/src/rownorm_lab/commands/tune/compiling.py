"""Compiling candidates in several processes, ahead of their measurement."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Self

import click
import torch

from ...compiled.compile import target_of
from .candidates import Settings, forced
from .static import CompiledCandidate, compiled
from .study import TuningCase, calls_of

SHARE = 8  # candidates that a process compiles before it reports
ROWS = 64  # of the call that compiles; nothing compiled depends on their number


class Ahead:
    """A pool of processes. ``begin`` studies in the order in which they will be asked for.

    target: the name of the architecture whose limits are known, or None: then nothing is left out. The measurement
    finds what is compiled here in Triton's cache.
    """

    def __init__(self, workers: int, target: str | None) -> None:
        self.target = target
        self._pool = None
        if workers:
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_follow_parent)
        self._begun: dict[TuningCase, list[Future[list[CompiledCandidate | None]]]] = {}

    def begin(self, study: TuningCase, several: Sequence[Settings]) -> None:
        """Start to compile the candidates of a study."""
        if self._pool is not None:
            self._begun[study] = [
                self._pool.submit(
                    _compile_share, study, several[start : start + SHARE], self.target
                )
                for start in range(0, len(several), SHARE)
            ]

    def __call__(
        self, study: TuningCase, several: Sequence[Settings]
    ) -> Iterable[CompiledCandidate | None]:
        """What their compiled code says, in order; waits until they are compiled."""
        if study not in self._begun:
            return _compile_share(study, several, self.target)
        try:
            return [one for share in self._begun.pop(study) for one in share.result()]
        except (
            BrokenProcessPool
        ):  # the compiler ended a process; the check will find out with which settings
            click.echo(
                f"{study.key}: a compiling process crashed; nothing is left out unmeasured",
                err=True,
            )
            return [None] * len(several)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)


def _follow_parent() -> None:
    """Ctrl-C ends the process that measures, which ends the others. If it is killed, they end by themselves.

    The process that measures goes first: it would wait for a core while all of them compile.
    """
    os.nice(10)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_after_parent, daemon=True).start()


def _end_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _compile_share(
    study: TuningCase, several: Sequence[Settings], target: str | None
) -> list[CompiledCandidate | None]:
    if target is not None:
        return [compiled(study, settings, target_of(target)) for settings in several]
    if torch.cuda.is_available():
        for settings in several:
            _call_once(study, settings)
    return [None] * len(several)


def _call_once(study: TuningCase, settings: Settings) -> None:
    """Compile for an architecture that is no known target. A failure is left to the check, which reports it."""
    from ...providers import data

    case = study.case(ROWS)
    try:
        [call] = calls_of(case, data.rotation(case, 1, "cuda"))
        with forced(settings):
            call()
    except Exception:
        return
