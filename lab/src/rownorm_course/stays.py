"""The process that stays behind after a check, with torch, Triton and the grader imported, and does the next ones.

``python -m rownorm_course.stays SOCKET`` forks a process for every check that ``warm.py`` asks for, and ends when there
was none during ``warm.STAYS_S`` seconds. The grader is imported once this process has the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from rownorm_lab.command_line.plain import use_plain_characters

from .warm import VARIABLE, stays_s


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
    with channel.makefile("rb") as stream:
        message = stream.read(int.from_bytes(size, "little"))
    if len(message) < int.from_bytes(size, "little"):
        return
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
