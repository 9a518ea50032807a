"""One process at a time writes into a folder of results."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

# It names the process; the system's lock on it ends with the process, however it ends.
FILE = ".in-use"


class InUse(Exception):
    """Another process writes into the folder; the message names it."""


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Make the folder and hold it; InUse if another process does. Without file locks (Windows) nothing is held.

    A folder that was made here and is empty in the end is removed.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield
        return
    path = folder / FILE
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.read(file, 200).decode(errors="replace").strip() or "another process"
            os.close(file)
            raise InUse(
                f"{folder} is in use by {who}; wait for it, or choose another folder"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(file).st_ino:
                break
        os.close(file)  # its holder removed it after it was opened here
    try:
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()} on {platform.node()}".encode())
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
            if is_new:
                folder.rmdir()  # fails unless it is empty
        os.close(file)
