"""Asks the process that stays behind after a check (``stays.py``) to do this one, or starts it.

The command sends its arguments, folder, environment and terminal. Where nothing can stay behind, the command grades by
itself, as it does on a machine with a GPU: PyTorch refuses CUDA in a fork.

Importing this module imports neither torch nor Triton.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from rownorm_lab.command_line.plain import NAME as PLAIN

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
        [sys.executable, "-P", "-m", "rownorm_course.stays", str(place)],
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
