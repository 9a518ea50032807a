"""A process that stays behind after a check, with torch, Triton and the grader imported, and does the next ones.

``python -m rownorm_course.warm SOCKET`` forks a process for every check, and ends when none was asked for during
``STAYS_S`` seconds. The command sends its arguments, folder, environment and terminal. Where nothing can stay behind,
the command grades by itself, as it does on a machine with a GPU: PyTorch refuses CUDA in a fork.

Importing this module imports neither torch nor Triton.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rownorm_lab.command_line.plain import NAME as PLAIN
from rownorm_lab.command_line.plain import use_plain_characters

VARIABLE = "ROWNORM_LEARN_WARM_S"
STAYS_S = 600.0  # without a check, unless the variable says otherwise; 0: no process stays
START_S = 60.0  # to import everything
GPUS = ("/dev/nvidiactl", "/dev/kfd")
# Variables that a program may read when it begins: another value needs another process.
READ_EARLY = (
    *("CUDA", "HIP", "HOME", "LD_", "MKL", "OMP", "PATH", "PYTHON", "ROWNORM", "TMPDIR", "TORCH"),
    *("TRITON", "XDG"),
)


def stays_s() -> float:
    """How many seconds a process stays; 0: none."""
    if any(map(os.path.exists, GPUS)):
        return 0.0
    with contextlib.suppress(ValueError):
        return float(os.environ.get(VARIABLE, STAYS_S))
    return 0.0


def check(arguments: list[str], number: int) -> int | None:
    """The exit status of ``rownorm learn check ARGUMENTS``, done by the process that stays; None if there is none.

    number: of the exercise.
    """
    try:
        files = [sys.stdout.fileno(), sys.stderr.fileno()]
        if stays_s() <= 0 or (channel := _connected()) is None:
            return None
        with channel:
            return _asked(channel, files, arguments, number)
    except OSError:  # no file, no folder that is ours alone, or its name is too long for a socket
        return None


def _asked(
    channel: socket.socket, files: list[int], arguments: list[str], number: int
) -> int | None:
    request = {
        "arguments": arguments,
        "number": number,
        "encoding": "ascii" if sys.stdout.encoding == PLAIN else sys.stdout.encoding,
        "program": sys.argv[0],
        "folder": os.getcwd(),
        "environment": dict(os.environ),
    }
    message = json.dumps(request).encode()
    sys.stdout.flush()
    socket.send_fds(channel, [len(message).to_bytes(8, "little")], files)
    channel.sendall(message)
    answer = channel.recv(16)  # Ctrl-C closes the channel, which ends the check
    return int(answer) if answer else None


def start() -> None:
    """Begin the process that stays, unless it is there."""
    with contextlib.suppress(OSError):
        if stays_s() > 0:
            _start(_place())


def _start(place: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "rownorm_course.warm", str(place)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _connected() -> socket.socket | None:
    place, began = _place(), time.monotonic()
    process = None
    while time.monotonic() < began + START_S:
        channel = socket.socket(socket.AF_UNIX)
        try:
            channel.connect(str(place))
            return channel
        except (FileNotFoundError, ConnectionRefusedError):
            channel.close()
        if process is None:
            process = _start(place)
        elif process.poll():
            return None
        elif process.poll() == 0:  # another one is about to listen, or to end
            process = None
            time.sleep(0.2)
        time.sleep(0.02)
    return None


def _place() -> Path:
    """The socket, in a folder that only this user can enter. Its name stands for everything that was read early."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    folder /= f"rownorm-learn-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o077:
        raise PermissionError(f"{folder} is not ours alone")
    early = sorted(one for one in os.environ.items() if one[0].startswith(READ_EARLY))
    known = repr((sys.version, sys.executable, sys.path, early, list(_changed())))
    return folder / hashlib.sha256(known.encode()).hexdigest()[:16]


def _changed() -> Iterator[tuple[str, int]]:
    """When the sources of the lab and the course were written, and the packages below them."""
    for package, patterns in (
        ("rownorm_course", ("*.py", "checks/*.py", "exercises/*/exercise.toml")),
        ("rownorm_lab", ("**/*.py",)),
        ("rownorm", ("*.py",)),
        ("torch", ("version.py",)),
        ("triton", ("__init__.py",)),
    ):
        spec = find_spec(package)
        folder = Path(spec.origin).parent if spec is not None and spec.origin else Path()
        for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
            yield str(path), path.stat().st_mtime_ns


# ---- the process that stays ----


def main() -> None:
    """Listen on the socket until nobody has asked for a while."""
    place = Path(sys.argv[1])
    os.chdir("/")  # the learner may remove the folder
    with open(f"{place}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another one listens, or is about to
        place.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listening:
            _import_all()
            listening.bind(str(place))
            listening.listen()
            try:
                _serve(listening)
            finally:
                place.unlink(missing_ok=True)
                Path(lock.name).unlink(missing_ok=True)


def _import_all() -> None:
    from . import process
    from .catalog import exercises
    from .grade import tasks_of

    process.spawner("interpret")  # it imports while this process does
    for name in ("command", "run", "show"):
        import_module(f"rownorm_course.{name}")
    for number in exercises():
        tasks_of(number)


def _serve(listening: socket.socket) -> None:
    while select.select([listening], [], [], stays_s())[0]:
        channel, _ = listening.accept()
        with channel, contextlib.suppress(OSError):
            _one(channel)


def _one(channel: socket.socket) -> None:
    """One check, in a fork; the answer is its exit status."""
    from . import process
    from .grade import tasks_of

    size, files, *_ = socket.recv_fds(channel, 8, 2)
    if len(files) < 2:
        return
    message = bytearray()
    while len(message) < int.from_bytes(size, "little"):
        if not (more := channel.recv(1 << 16)):
            return
        message += more
    request = json.loads(message)
    if any("compile" in task.modes for task in tasks_of(request["number"])):
        process.spawner("compile")  # stays, too
    child = os.fork()
    if not child:
        _checked(request, files)
    for one in files:
        os.close(one)
    watched = os.pidfd_open(child)
    try:
        waited: list[Any] = [watched, channel]
        if watched not in select.select(waited, [], [])[0]:  # the command has gone
            signal.pidfd_send_signal(watched, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
    finally:
        os.close(watched)
    channel.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _checked(request: dict[str, Any], files: list[int]) -> None:
    """In the fork: be the command that asked. Does not return."""
    status = 1
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))  # the command has said so itself
        for number, one in enumerate(files, 1):
            os.dup2(one, number)
        os.environ.clear()
        os.environ.update(request["environment"] | {VARIABLE: "0"})  # it does not ask again
        os.chdir(request["folder"])
        sys.argv = [request["program"]]
        sys.stdout = os.fdopen(1, "w", 1, encoding=request["encoding"])
        sys.stderr = os.fdopen(2, "w", 1, encoding=request["encoding"])
        status = _exit_status(request["arguments"])
        sys.stdout.flush()
    except BaseException:  # the command's own errors are its output
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


def _exit_status(arguments: list[str]) -> int:
    from . import process
    from .command import check as command

    inherited = process.started()
    try:
        use_plain_characters()
        command.main(arguments, prog_name="rownorm learn check")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        process.close(inherited)
    return 0


if __name__ == "__main__":
    main()
