"""Grade a folder in processes of their own, with limits of time and memory."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from .catalog import Exercise
from .grade import RUNNING, Mode, Request
from .grades import Grade, Step

_LATE = "it did not end within"
MEMORY = 6 << 30  # bytes of data of a process without a GPU


def check(
    exercise: Exercise, folder: Path, on_step: Callable[[Step], None] = lambda _: None
) -> Grade:
    """Run every step of an exercise. on_step: called with each finished step."""
    modes: list[Mode] = ["interpret"]
    gpu = has_gpu()
    if gpu:
        modes.append("gpu")
    if exercise.compiles:
        modes.append("compile")
    found: dict[tuple[str, str], Step] = {}
    for mode in modes:
        failed = sorted({step.part for step in found.values() if step.status == "failed"})
        if all({part.name, *part.after} & set(failed) for part in exercise.part):
            break  # nothing is left that another process could grade
        for step in _steps(exercise, folder, mode, failed, gpu):
            key = (step.part, step.name)
            known = found.get(key)
            if known is None or known.status == "passed":
                found[key] = step
                on_step(step)
    return Grade(exercise=exercise, steps=list(found.values()))


def has_gpu() -> bool:
    """Whether torch sees a GPU."""
    import torch

    return torch.cuda.is_available()


def _steps(exercise: Exercise, folder: Path, mode: Mode, skip: list[str], gpu: bool) -> list[Step]:
    """The steps of one mode. A process that dies or takes too long fails the step that it was in."""
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "steps.jsonl"
        request = Request(
            exercise=exercise.number,
            folder=str(folder.resolve()),
            out=str(out),
            mode=mode,
            seed=secrets.randbelow(1 << 30),
            skip=skip,
            gpu=gpu,
        )
        ended, printed = _process(request, exercise.limit_s)
        lines = out.read_bytes().splitlines() if out.exists() else []
    steps: list[Step] = []
    for line in lines:
        step = msgspec.json.decode(line, type=Step)
        if steps and steps[-1].message == RUNNING:
            steps.pop()
        steps.append(step)
    if steps and steps[-1].message == RUNNING:
        steps[-1].status, steps[-1].message = "failed", f"{ended}{printed}"
        steps[-1].habit = "one-block" if mode == "compile" and _LATE in ended else ""
    elif not steps and ended:
        part = exercise.part[0].name
        steps.append(Step(part=part, name="start", status="failed", message=f"{ended}{printed}"))
    return steps


def _process(request: Request, limit_s: float) -> tuple[str, str]:
    """Run a grading process. Returns (how it ended if not well, the end of what it printed)."""
    environment = dict(os.environ)
    # rownorm and the learner's environment come from this process.
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    environment["TRITON_INTERPRET"] = "1" if request.mode == "interpret" else "0"
    if request.mode != "gpu":
        environment["CUDA_VISIBLE_DEVICES"] = environment["HIP_VISIBLE_DEVICES"] = ""
    command = [
        sys.executable,
        "-m",
        "rownorm.lab.learn.grade",
        msgspec.json.encode(request).decode(),
    ]
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=None if request.mode == "gpu" else _limit_memory,
    )
    try:
        printed, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        why = (
            "The compiler is slow if a block is far too wide"
            if request.mode == "compile"
            else "A loop that never ends is the usual reason"
        )
        return f"{_LATE} {limit_s:g} s and was stopped. {why}", _tail(printed)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    status = process.returncode
    if status == 0:
        return "", ""
    if status < 0:
        name = signal.Signals(-status).name
        return (
            f"the process crashed with {name}. Reading or writing far outside of a tensor is the usual reason: check "
            "offsets and masks",
            _tail(printed),
        )
    return f"the process ended with status {status}", _tail(printed)


def _limit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _tail(printed: str) -> str:
    lines = [line for line in printed.strip().splitlines() if line.strip()][-4:]
    return "".join(f"\n    {line}" for line in lines)
