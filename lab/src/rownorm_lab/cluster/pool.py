"""Hands out jobs to the processes of a Ray cluster, one for each GPU, and gives back what they send.

A job is a function of the package and its arguments, as bytes. What it yields arrives while it runs. A process that is
lost is replaced, and its job is tried again, up to ``TRIES`` times in all.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import msgspec
import ray
import ray.cloudpickle
from ray.exceptions import RayError, RayTaskError

from ..data.records import Environment
from ..data.texts import count
from ..version import __version__
from . import ClusterError, ProcessLost, worker
from .connect import connect, slots

TRIES = 3
START_S = 120  # the longest wait for a process while there is none
JOIN_S = 30  # and for the others

Say = Callable[[str], None]


class Job(NamedTuple):
    """A function of the package, "module:name", that takes bytes and yields bytes.

    arguments: is called whenever the job is handed out, so that a job that is tried again can begin where it was.
    single: its first item is all that it gives, so that it is not tried again after that.
    """

    name: str
    function: str
    arguments: Callable[[], bytes] = lambda: b""
    single: bool = False


class Message(NamedTuple):
    """Something from a job. content: an item; None: it has ended. failure: why it ended without success."""

    job: Job
    content: bytes | None = None
    failure: str = ""


class About(msgspec.Struct, frozen=True):
    """A process of the cluster."""

    node: str
    pid: int
    environment: Environment | None = None
    problem: str = ""


class Process:
    """A process of the cluster: starting, idle, or with a job."""

    def __init__(self, needs: dict[str, int]) -> None:
        self.actor = ray.remote(worker.Worker).options(**needs, max_restarts=0).remote()
        self.about: About | None = None
        self.job: Job | None = None
        self.has_given_all = False  # whether nothing more of the job is needed
        self.expected = self.actor.about.remote(__version__)  # what comes next

    def begin(self, job: Job) -> None:
        """Start a job."""
        self.job, self.has_given_all = job, False
        run = self.actor.run.options(num_returns="streaming")
        self.expected = run.remote(job.function, job.arguments())

    def receive(self) -> tuple[Message | None, str]:
        """(what its job has sent, "") when it is there; (None, the reason) if the process is lost."""
        job = self.job
        assert job is not None
        try:
            content: bytes = ray.get(next(self.expected))
        except StopIteration:
            self.job = None
            return Message(job), ""
        except RayTaskError as error:
            if isinstance(error.cause, ProcessLost):
                return None, str(error.cause)
            self.job = None
            return Message(job, failure=f"{type(error.cause).__name__}: {error.cause}"), ""
        except RayError as error:
            return None, _in_short(error)
        self.has_given_all = job.single
        return Message(job, content), ""

    def end(self) -> None:
        """End it, whatever it does."""
        ray.kill(self.actor)


class Pool:
    """The processes of a cluster. environment: of all of them, apart from host and GPU."""

    def __init__(self, address: str, most: int) -> None:
        """Connect and start a process for each GPU (without GPUs: for each CPU), but not more than ``most``.

        ClusterError if there is no cluster or no process, if rownorm is not the same everywhere, or if the devices
        are of different kinds: their times must not be mixed.
        """
        ray.cloudpickle.register_pickle_by_value(worker)
        connect(address)
        try:
            n_slots, self._needs = slots()
            self.processes = [Process(self._needs) for _ in range(min(n_slots, max(1, most)))]
            self._start()
        except BaseException:
            ray.shutdown()
            raise

    def describe(self) -> str:
        """How many devices of which kind, on how many hosts."""
        ready = [one.about for one in self.processes if one.about]
        what = "CPU" if self.environment.kind == "cpu" else "GPU"
        hosts = count(len({one.node for one in ready}), "host")
        waiting = len(self.processes) - len(ready)
        later = f"; {waiting} in use by others will join" if waiting else ""
        return f"{count(len(ready), what)} of {hosts}, {self.environment.device}{later}"

    def ask(self, function: str) -> bytes:
        """The single item of a job; ClusterError if there is none."""
        answers = list(self.run([Job(function, function, single=True)]))
        for one in answers:
            if one.content is not None:
                return one.content
        raise ClusterError(answers[-1].failure)

    def run(self, jobs: Iterable[Job], say: Say = lambda text: None) -> Iterator[Message]:
        """Run jobs and yield what they send, in the order of arrival; ``jobs`` is read when a process is idle.

        A job that fails, or loses its process TRIES times, ends with a failure, and the others go on. ClusterError if
        no process is left.
        """
        source, again, lost = iter(jobs), deque[Job](), Counter[Job]()
        while True:
            for process in self.processes:
                if process.about and not process.job:  # it is idle
                    job = again.popleft() if again else next(source, None)
                    if job is None:
                        break
                    process.begin(job)
            if not again and not any(one.job for one in self.processes):
                job = next(source, None)
                if job is None:
                    return
                again.append(job)  # no process has started yet
            for process in self._ready(say):
                message, why = process.receive()
                if message is not None:
                    yield message
                    continue
                job, node = process.job, process.about and process.about.node
                assert job is not None
                self._replace(process)
                lost[job] += 1
                if process.has_given_all:
                    yield Message(job)
                elif lost[job] < TRIES:
                    again.append(job)
                    say(f"{job.name}: its process on {node} was lost and it is tried again: {why}")
                else:
                    failure = f"lost its process {TRIES} times, last on {node}: {why}"
                    yield Message(job, failure=failure)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes and leave the cluster; a local one ends too."""
        for process in self.processes:
            process.end()
        ray.shutdown()

    def _start(self) -> None:
        """Wait for the processes. Those that do not start in time, because others use the GPUs, may join later."""
        if not self.processes:
            raise ClusterError("the cluster has neither a GPU nor a CPU to offer")
        expected = [one.expected for one in self.processes]
        ready, _ = ray.wait(expected, timeout=START_S)
        if not ready:
            raise ClusterError(
                f"no process has started in {START_S} s; are all GPUs in use? ray status shows it"
            )
        ready, _ = ray.wait(expected, num_returns=len(expected), timeout=JOIN_S)
        failures, abouts = list[str](), list[About]()
        for process in [one for one in self.processes if one.expected in ready]:
            try:
                process.about = msgspec.json.decode(ray.get(process.expected), type=About)
                abouts.append(process.about)
            except RayError as error:
                failures.append(_in_short(error))
                self.processes.remove(process)
        if not abouts:
            raise ClusterError(f"its processes end when they start: {failures[0]}")
        self.environment = common_environment(abouts)

    def _ready(self, say: Say) -> Sequence[Process]:
        """Wait; the processes whose job has sent something or ended. Processes that have started become idle."""
        by_expected: dict[Any, Process] = {
            one.expected: one for one in self.processes if one.job or not one.about
        }
        if not by_expected:
            raise ClusterError("no process is left")
        working = any(one.about for one in self.processes)
        found, _ = ray.wait(list(by_expected), timeout=None if working else START_S)
        if not found:
            raise ClusterError(f"all processes were lost, and no new one started in {START_S} s")
        ready = [by_expected[one] for one in found]
        for process in ready:
            if not process.job:
                self._join(process, say)
        return [one for one in ready if one.job]

    def _join(self, process: Process, say: Say) -> None:
        """Use a process that has started late, or leave it out and say why."""
        try:
            about = msgspec.json.decode(ray.get(process.expected), type=About)
        except RayError as error:
            say(f"a new process did not start: {_in_short(error)}")
            self.processes.remove(process)
            return
        reason = about.problem
        if about.environment:
            reason = "; ".join(self.environment.differences(about.environment))
        if reason:
            say(f"{about.node} is not used: {reason}")
            self.processes.remove(process)
            process.end()
            return
        process.about = about

    def _replace(self, process: Process) -> None:
        """A new process for one that was lost."""
        process.end()
        self.processes[self.processes.index(process)] = Process(self._needs)


def common_environment(abouts: Sequence[About]) -> Environment:
    """The environment of processes, without host and GPU; ClusterError if they cannot work together."""
    problems = sorted({f"{one.node} {one.problem}" for one in abouts if one.problem})
    if problems:
        raise ClusterError(
            f"{'; '.join(problems)}. On every node: pip install 'rownorm-lab[ray]=={__version__}'"
        )
    first, *rest = [one.environment for one in abouts if one.environment]
    for other in rest:
        if reasons := first.differences(other):
            raise ClusterError(
                f"the nodes are not of one kind: on {other.node} {'; '.join(reasons)} as on {first.node}. "
                "Their times must not be mixed: use a cluster with one kind of GPU and the same software"
            )
    return msgspec.structs.replace(first, node="", gpu="")


def _in_short(error: BaseException) -> str:
    """The last line of Ray's message, without its advice."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].split(" Some common causes")[0].strip()
