"""The grader's end of a learner's process: start it, ask it, stop it."""

from __future__ import annotations

import atexit
import contextlib
import json
import linecache
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path

import click
import msgspec

from .grades import Failure, Mode
from .protocol import Reply, Request
from .wire import NONCE, Closed, Garbled, TooLate, receive, send

START_S = 120.0  # for a process to import torch and Triton
POLL_S = 0.05
PRINTED = 4000  # characters that are kept of what a step prints
# Times its limit of processor time that a step may take on a busy machine, or waiting.
PATIENCE = 10
PLACE_S = 5.0  # for a process to say where it is
_spawners: dict[Mode, Spawner] = {}


class Ended(Failure):
    """The learner's process has ended, or was stopped, before it answered."""


def spawner(mode: Mode) -> Spawner:
    """The one of this process; the first call starts it."""
    if mode not in _spawners:
        _spawners[mode] = Spawner(mode)
    return _spawners[mode]


def started() -> set[Mode]:
    """The modes that have one."""
    return set(_spawners)


def close(but: Collection[Mode] = ()) -> None:
    """End all of them, but those."""
    for mode in started() - set(but):
        _spawners.pop(mode).close()


atexit.register(close)


class Spawner:
    """A process that has imported torch and Triton, and forks the learner's processes."""

    def __init__(self, mode: Mode) -> None:
        self.mode: Mode = mode
        environment = dict(os.environ)
        # rownorm and the learner's environment come from this process.
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        environment["TRITON_INTERPRET"] = "1" if mode == "interpret" else "0"
        if mode != "gpu":
            environment["CUDA_VISIBLE_DEVICES"] = environment["HIP_VISIBLE_DEVICES"] = ""
            # Tensors here are small: further threads of PyTorch would only wait for each other, and that counts as
            # processor time.
            environment["OMP_NUM_THREADS"] = "1"
        self.control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self.process = subprocess.Popen(
                # -P: the current folder is the learner's, whose files are no modules of the host.
                [sys.executable, "-P", "-m", "rownorm_course.host", str(other.fileno()), mode],
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(other.fileno(),),
            )

    def fork(self, folder: Path, files: list[int], library: bool) -> int:
        """The process id of a new one. files: its channel, output, errors, stack."""
        request = {"folder": str(folder), "mode": self.mode, "library": library}
        socket.send_fds(self.control, [json.dumps(request).encode()], files)
        return self._answer()

    def status(self, pid: int) -> int:
        """The exit status of a process that has ended; negative: the signal."""
        self.control.send(json.dumps({"wait": pid}).encode())
        return self._answer()

    def _answer(self) -> int:
        self.control.settimeout(START_S)
        try:
            message = self.control.recv(1 << 12)
        except TimeoutError:  # a late answer would be taken for the next one
            _spawners.pop(self.mode, None)
            self.close()
            raise click.ClickException(
                f"No process for your files began within {START_S:.0f} s: the machine is busy, or its memory is full. "
                "Nothing was graded; check again."
            ) from None
        if not message:
            raise RuntimeError("rownorm_course.host has ended; run it by itself to see why")
        return int(json.loads(message))

    def close(self) -> None:
        """End it."""
        self.control.close()
        self.process.kill()
        self.process.wait()


class LearnerProcess:
    """One forked process with a learner's files. library: the exercise may import rownorm."""

    def __init__(self, mode: Mode, folder: Path, library: bool) -> None:
        self.mode: Mode = mode
        self.folder = folder
        self.spawner = spawner(mode)
        self.out = tempfile.TemporaryDirectory()
        self.channel, other = socket.socketpair()
        paths = [Path(self.out.name, name) for name in ("printed", "errors", "stack")]
        opened = [path.open("wb") for path in paths]
        try:
            files = [other.fileno(), *(one.fileno() for one in opened)]
            self.pid = self.spawner.fork(folder, files, library)
        except BaseException:
            self.channel.close()
            self.out.cleanup()
            raise
        finally:
            other.close()
            for one in opened:
                one.close()
        self.printed, self.errors, self.stack = paths
        self.ended = ""  # why; empty while it lives
        self.late = False  # whether it was stopped because of its time
        self.spent = 0.0  # seconds of processor time before this step
        self.begun = 0  # bytes that were printed before this step

    def begin_step(self) -> None:
        """What is printed from now on belongs to another step."""
        self.begun = self.printed.stat().st_size
        self.late, self.spent = False, processor_seconds(self.pid) or 0.0

    def printed_now(self) -> str:
        """The beginning of what this step has printed."""
        with self.printed.open("rb") as file:
            file.seek(self.begun)
            return file.read(4 * PRINTED).decode(errors="replace")[:PRINTED]

    def ask(
        self, request: Request, begun: float, limit_s: float, waiting: Callable[[], None]
    ) -> Reply:
        """The answer; Ended if there is none.

        A step that began at ``begun`` may use ``limit_s`` seconds of processor time, however busy the machine is, and
        several threads may use more within ``limit_s`` seconds of the clock. What waits is stopped after ``PATIENCE``
        times as many. On a GPU, and where the system does not tell the processor time, the limit is of the clock.
        """
        clocked = self.mode == "gpu" or processor_seconds(self.pid) is None
        deadline = begun + limit_s * (1 if clocked else PATIENCE)

        def meanwhile() -> None:
            late = not clocked and time.monotonic() - begun > limit_s
            if late and (processor_seconds(self.pid) or 0.0) - self.spent > limit_s:
                raise TooLate
            waiting()

        nonce = secrets.token_bytes(NONCE)
        try:
            send(self.channel, nonce, msgspec.msgpack.encode(request))
            _, message = receive(self.channel, nonce, deadline, meanwhile)
            return msgspec.msgpack.decode(message, type=Reply)
        except Closed:
            status = self._stop()
            why, habit = _crash(status), "ends-process" if status >= 0 else ""
        except TooLate:
            place = self._place()
            seconds = time.monotonic() - begun
            self._stop()
            self.late = True
            waited = not clocked and time.monotonic() >= deadline
            why = _lateness(self.mode, seconds if waited else limit_s, place, clocked or waited)
            habit = "one-block" if self.mode == "compile" else ""
        except (Garbled, msgspec.DecodeError):
            self._stop()
            why = "your code has written on the socket on which the process answers the grader"
            habit = "patches-grader"
        self.ended = why
        raise Ended(f"{why}{self._tail()}", habit)

    def _stop(self) -> int:
        """End it. Returns its exit status."""
        for stop in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                stop(self.pid, signal.SIGKILL)
        return self.spawner.status(self.pid)

    def close(self) -> None:
        """End it and remove its files."""
        if not self.ended:
            self._stop()
            self.ended = "closed"
        self.channel.close()
        self.out.cleanup()

    def _place(self) -> str:
        """The learner's line in which the process is now; empty if it does not answer."""
        os.kill(self.pid, signal.SIGUSR1)
        deadline = time.monotonic() + PLACE_S
        while time.monotonic() < deadline:
            time.sleep(POLL_S)
            for path, line, name in re.findall(
                r'File "(.*)", line (\d+) in (.*)', self.stack.read_text(errors="replace")
            ):
                if Path(path).is_relative_to(self.folder):
                    text = linecache.getline(path, int(line)).strip()
                    where = "" if name == "<module>" else f" of {name}"
                    return f"in {Path(path).name}, line {line}{where}\n    {text}"
        return ""

    def _tail(self) -> str:
        """The end of what the process itself wrote, such as the error with which it ended."""
        text = self.errors.read_bytes()[-4000:].decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()][-4:]
        return "".join(f"\n    {line}" for line in lines)


def processor_seconds(pid: int) -> float | None:
    """Seconds of processor time that a process and its children have used; None if the system does not say."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    ticks = text.rpartition(")")[2].split()[11:15]  # utime, stime, cutime, cstime
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _lateness(mode: Mode, seconds: float, place: str, clocked: bool) -> str:
    why = (
        "The compiler is slow if a block is far too wide"
        if mode == "compile"
        else "A loop that never ends is the usual reason"
    )
    limit = f"{seconds:.0f} s" if clocked else f"{seconds:g} s of processor time"
    return f"it did not end within {limit} and was stopped{f' {place}' if place else '.'}\n{why}"


def _crash(status: int) -> str:
    if status < 0:
        name = signal.Signals(-status).name
        return (
            f"the process crashed with {name}. Reading or writing far outside of a tensor is the usual reason: check "
            "offsets and masks"
        )
    return f"the process ended with status {status} before the step did"
