"""Grade a folder in processes of their own, with limits of time and memory."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from .catalog import Exercise
from .grade import GradingRequest, Mode, tasks_of
from .grades import Grade, GradedStep

MEMORY = 6 << 30  # bytes of data of a process without a GPU
START_S = 120.0  # for a process to import torch and Triton
POLL_S = 0.05
_LATE = "it did not end within"


class Watcher:
    """Called during a check, for progress output. This base class prints nothing."""

    def began(self, step: GradedStep, mode: Mode) -> None:
        """A step is running."""

    def waits(self, step: GradedStep, seconds: float) -> None:
        """It has been running for that long."""

    def ended(self, step: GradedStep, mode: Mode) -> None:
        """A step has its result."""


class Worker:
    """A grading process. It imports what it needs and waits for its request."""

    def __init__(self, mode: Mode, number: int) -> None:
        self.out = tempfile.TemporaryDirectory()
        environment = dict(os.environ)
        # rownorm and the learner's environment come from this process.
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        environment["TRITON_INTERPRET"] = "1" if mode == "interpret" else "0"
        if mode != "gpu":
            environment["CUDA_VISIBLE_DEVICES"] = environment["HIP_VISIBLE_DEVICES"] = ""
        self.pipe, writing = os.pipe()
        os.set_blocking(self.pipe, False)
        try:
            with open(Path(self.out.name, "output"), "wb") as output:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "rownorm_course.grade", str(writing), str(number)],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=(writing,),
                    preexec_fn=None if mode == "gpu" else _limit_memory,
                )
        finally:
            os.close(writing)

    def send(self, request: GradingRequest) -> None:
        """Let it grade."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as given:
            given.write(msgspec.json.encode(request))

    def stop(self) -> None:
        """End the process; its files stay."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self.process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        os.close(self.pipe)
        self.out.cleanup()


Workers = dict[Mode, Worker]


def close(workers: Workers) -> None:
    """End processes that were not used."""
    while workers:
        with workers.popitem()[1]:
            pass


def check(
    exercise: Exercise,
    folder: Path,
    watcher: Watcher | None = None,
    part: str = "",
    fail_fast: bool = False,
    waiting: Workers | None = None,
) -> Grade:
    """Run every step of an exercise.

    part: only this one, with those that it comes after. fail_fast: nothing is tried after a failure, except questions.
    waiting: processes that were started before; those that are not used stay there.
    """
    workers: Workers = {} if waiting is None else waiting
    try:
        # The processes import torch and Triton while this one does.
        if "interpret" not in workers:
            workers["interpret"] = Worker("interpret", exercise.number)
        return _checked(exercise, folder, watcher or Watcher(), part, fail_fast, workers)
    finally:
        if waiting is None:
            close(workers)


def _checked(
    exercise: Exercise,
    folder: Path,
    watcher: Watcher,
    part: str,
    fail_fast: bool,
    workers: Workers,
) -> Grade:
    modes: list[Mode] = ["interpret"]
    gpu = has_gpu()
    if gpu:
        modes.append("gpu")
    shares = {one.name for one in exercise.part if one.shares}
    wanted = wanted_parts(exercise, part)
    if any("compile" in task.modes and task.part in wanted for task in tasks_of(exercise.number)):
        modes.append("compile")
        if "compile" not in workers:
            workers["compile"] = Worker("compile", exercise.number)
    found: dict[tuple[str, str], GradedStep] = {}
    for mode in modes:
        failed = {
            step.part: step.title
            for step in reversed(found.values())
            if step.status == "failed" and step.part not in shares
        }
        if all({one.name, *one.after} & failed.keys() for one in exercise.part) or (
            fail_fast and failed
        ):
            break  # nothing is left that another process could grade
        for step in steps_of(
            exercise, folder, mode, failed, gpu, watcher, wanted, fail_fast, workers
        ):
            key = (step.part, step.name)
            known = found.get(key)
            if known is None or known.status == "passed":
                found[key] = step
                watcher.ended(step, mode)
    _add_missing(exercise, modes, wanted, found)
    stopped = fail_fast and any(step.status == "skipped" for step in found.values())
    return Grade(exercise=exercise, steps=list(found.values()), partial=bool(part) or stopped)


def wanted_parts(exercise: Exercise, part: str) -> list[str]:
    """The parts that are graded for ``part``: those that it comes after, and itself; all without one."""
    if not part:
        return [one.name for one in exercise.part]
    (chosen,) = (one for one in exercise.part if one.name == part)
    return [*chosen.after, part]


def _add_missing(
    exercise: Exercise,
    modes: list[Mode],
    wanted: list[str],
    found: dict[tuple[str, str], GradedStep],
) -> None:
    """Every step that was expected and not reported has failed, or was not tried after a failure."""
    failed = next((step.title for step in found.values() if step.status == "failed"), "")
    why = f"not tried, because {failed} failed" if failed else "it did not report a result"
    for task in tasks_of(exercise.number):
        key = (task.part, task.name)
        if key not in found and (task.part not in wanted or set(task.modes) & set(modes)):
            left_out = task.part not in wanted
            found[key] = GradedStep(
                part=task.part,
                name=task.name,
                status="skipped" if failed or left_out else "failed",
                message="not asked for" if left_out else why,
            )


def has_gpu() -> bool:
    """Whether torch sees a GPU."""
    import torch

    return torch.cuda.is_available()


def steps_of(
    exercise: Exercise,
    folder: Path,
    mode: Mode,
    failed: dict[str, str],
    gpu: bool,
    watcher: Watcher,
    parts: Sequence[str] = (),
    fail_fast: bool = False,
    workers: Workers | None = None,
) -> Iterator[GradedStep]:
    """The steps of one mode. A step whose process dies or takes too long fails; a new process does the others."""
    failed, done = dict(failed), list[tuple[str, str]]()
    workers = {} if workers is None else workers
    while True:
        with workers.pop(mode, None) or Worker(mode, exercise.number) as worker:
            request = GradingRequest(
                exercise=exercise.number,
                nonce=secrets.token_hex(16),
                parts=list(parts),
                fail_fast=fail_fast,
                folder=str(folder.resolve()),
                out=worker.out.name,
                mode=mode,
                limit_s=exercise.limit_s,
                seed=secrets.randbelow(1 << 30),
                failed=failed,
                done=done,
                gpu=gpu,
            )
            died = None
            for step in _steps(worker, request, exercise, watcher):
                done.append((step.part, step.name))
                died = step if step.limit_s else None
                yield step
        if died is None or fail_fast:
            return
        failed[died.part] = died.title


def _steps(
    worker: Worker, request: GradingRequest, exercise: Exercise, watcher: Watcher
) -> Iterator[GradedStep]:
    """The steps of one process. One in which it died is the last, failed, and has its limit."""
    worker.send(request)
    process = worker.process
    running: GradedStep | None = None
    since, content, late, complete = time.monotonic(), b"", False, False
    begin = request.nonce.encode()
    try:
        while True:
            ended = process.poll() is not None
            content += _read(worker.pipe)
            *lines, content = content.split(b"\n")
            for line in lines:
                if not line.startswith(begin):
                    continue  # not the grader's
                if line == begin:
                    complete = True
                    continue
                step = msgspec.json.decode(line.removeprefix(begin), type=GradedStep)
                since = time.monotonic()
                running = step if step.status == "running" else None
                if running:
                    watcher.began(step, request.mode)
                else:
                    yield step
            if ended:
                break
            seconds = time.monotonic() - since
            if seconds > (running.limit_s if running else START_S):
                late = True
                break
            if running:
                watcher.waits(running, seconds)
            time.sleep(POLL_S)
        place = _place(process, request) if late else ""
    finally:
        worker.stop()
    if not late and complete:
        return
    why = _lateness(request.mode, running, place) if late else _crash(process.returncode)
    if running is None:
        part = exercise.part[0].name
        text = f"{why}{_tail(Path(request.out, 'output'))}"
        yield GradedStep(part=part, name="start", status="failed", message=text)
        return
    running.status, running.message = "failed", f"{why}{_tail(Path(request.out, 'output'))}"
    running.printed = (
        request.printed.read_text(errors="replace") if request.printed.exists() else ""
    )
    running.habit = "one-block" if request.mode == "compile" and late else ""
    yield running


def _read(pipe: int) -> bytes:
    """What is in the pipe now."""
    found = b""
    while True:
        try:
            more = os.read(pipe, 1 << 16)
        except BlockingIOError:
            return found
        if not more:
            return found
        found += more


def _place(process: subprocess.Popen[bytes], request: GradingRequest) -> str:
    """The learner's line in which a process is now; empty if it does not answer."""
    process.send_signal(signal.SIGUSR1)
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        time.sleep(POLL_S)
        for path, line, name in re.findall(
            r'File "(.*)", line (\d+) in (.*)', request.stack.read_text(errors="replace")
        ):
            if Path(path).is_relative_to(request.folder):
                text = linecache.getline(path, int(line)).strip()
                where = "" if name == "<module>" else f" of {name}"
                return f"in {Path(path).name}, line {line}{where}\n    {text}"
    return ""


def _lateness(mode: Mode, running: GradedStep | None, place: str) -> str:
    limit = running.limit_s if running else START_S
    why = (
        "The compiler is slow if a block is far too wide"
        if mode == "compile"
        else "A loop that never ends is the usual reason"
    )
    return f"{_LATE} {limit:g} s and was stopped{f' {place}' if place else '.'}\n{why}"


def _crash(status: int) -> str:
    if status < 0:
        name = signal.Signals(-status).name
        return (
            f"the process crashed with {name}. Reading or writing far outside of a tensor is the usual reason: check "
            "offsets and masks"
        )
    return f"the process ended with status {status} before the step did"


def _limit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _tail(output: Path) -> str:
    """The end of what the process itself wrote, such as the error with which it ended."""
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - 4000))
        text = file.read().decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()][-4:]
    return "".join(f"\n    {line}" for line in lines)
