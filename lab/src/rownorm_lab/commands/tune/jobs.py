"""``tune`` on a cluster: a study is a job. Its trials arrive one by one and are kept in the one journal.

A job gets the trials of its study that the journal has, so it continues where another process was lost. The rows of the
table follow from the trials, so they are found where the journal is.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from rownorm.inside import Device

from ...data.tunings import TuneRequest
from . import verify
from .compiling import Ahead
from .gpu import Gpu, gpu_here, known_target
from .journal import Journal, Trial, Trials
from .run import run_tune, studies_of
from .search import Search, width_between
from .study import TuningCase
from .timer import DeviceLost, Timer

if TYPE_CHECKING:
    from ...cluster.pool import Pool


class StudyJob(msgspec.Struct, frozen=True):
    """A study, by its number in the request, and its trials so far. workers: processes that compile."""

    request: TuneRequest
    number: int
    trials: list[Trial]
    workers: int


class DeviceThere(msgspec.Struct, frozen=True):
    """The GPU of a process. target: see ``Ahead``."""

    device: Device
    target: str | None


# ---- in the process that hands out jobs ----


def run_on(
    pool: Pool, folder: Path, request: TuneRequest, workers: int, limit_s: float | None
) -> int:
    """``run_tune`` on a cluster."""
    there = msgspec.json.decode(pool.ask(f"{__name__}:device_here"), type=DeviceThere)
    elsewhere = functools.partial(searched_on, pool, request, workers)
    click.echo(f"On {pool.describe()}")
    return run_tune(
        folder, request, there.device, Ahead(0, there.target), _no_timer, limit_s, elsewhere
    )


def searched_on(
    pool: Pool,
    request: TuneRequest,
    workers: int,
    journal: Journal,
    numbers: Iterator[int],
    on_tried: Callable[[Trial], None],
    say: Callable[[str], None],
    function: str = f"{__name__}:search_study",
) -> Iterator[tuple[int, str]]:
    """Keep the trials as they arrive; yield (number of a study, why it failed or empty) when it has ended."""
    from ...cluster.pool import Job

    studies = studies_of(request)
    begun: dict[Job, int] = {}

    def jobs() -> Iterator[Job]:
        for number in numbers:
            study = studies[number]

            def arguments(number: int = number, study: TuningCase = study) -> bytes:
                job = StudyJob(request, number, _trials_of(journal, study), workers)
                return msgspec.json.encode(job)

            job = Job(study.key, function, arguments)
            begun[job] = number
            yield job

    for message in pool.run(jobs(), say):
        if message.content is None:
            failure = f"{message.job.name}: {message.failure}" if message.failure else ""
            yield begun[message.job], failure
            continue
        trial = msgspec.json.decode(message.content, type=Trial)
        if not journal.has(trial):  # two widths may share the trials of a width between
            journal.keep(trial)
            on_tried(trial)


def _trials_of(journal: Journal, study: TuningCase) -> list[Trial]:
    """The trials that a search of the study uses."""
    keys = {study.key, study._replace(n_cols=width_between(study.n_cols)).key}
    return [trial for trial in journal.trials if trial.study in keys]


def _no_timer(study: TuningCase) -> Timer:
    raise ValueError(f"{study.key}: a trial is missing; --resume makes it")


# ---- in the processes of the cluster ----


def device_here(arguments: bytes) -> Iterator[bytes]:
    """A ``DeviceThere``."""
    from rownorm.inside import device_of

    yield msgspec.json.encode(DeviceThere(device_of(0), known_target()))


def search_study(arguments: bytes) -> Iterator[bytes]:
    """Search a ``StudyJob``; every new trial."""
    from ...cluster.here import require_working_gpu

    require_working_gpu()
    job = msgspec.json.decode(arguments, type=StudyJob)
    yield from trials_made(job, _gpu(job.workers))


@functools.cache
def _gpu(workers: int) -> Gpu:
    """One for all jobs of this process: its compiling processes take seconds to start."""
    return gpu_here(workers)


def trials_made(job: StudyJob, gpu: Gpu) -> Iterator[bytes]:
    """Search a study in a thread and yield every trial as soon as it is made."""
    from ...cluster.here import place

    where = place()  # here, because it asks the GPU: no other thread may while a graph is captured
    made: queue.SimpleQueue[Trial | BaseException | None] = queue.SimpleQueue()

    def search() -> None:
        try:
            _search(job, gpu, made.put)
            made.put(None)
        except BaseException as error:
            made.put(error)

    threading.Thread(target=search, daemon=True).start()
    while (one := made.get()) is not None:
        if isinstance(one, BaseException):
            raise one
        yield msgspec.json.encode(msgspec.structs.replace(one, where=where))


def _search(job: StudyJob, gpu: Gpu, keep: Callable[[Trial], None]) -> None:
    from ...cluster import ProcessLost

    study = studies_of(job.request)[job.number]
    search = Search(gpu.device, Trials(job.trials, keep), gpu.ahead, gpu.timer_of)
    gpu.ahead.begin(study, search.left(study))
    try:
        if job.request.verify:
            verify.verified(search, job.request.verify[job.number])
        else:
            search.rows(study)
    except DeviceLost as lost:
        raise ProcessLost(f"the GPU's context was lost with {lost.settings}: {lost}") from None
