"""The folder for compiled code: absolute, and such that no other user can change what is in it.

The first of these that is so:

    1. ``rownorm`` in Triton's cache (``TRITON_CACHE_DIR``, usually ``~/.triton/cache``)
    2. ``rownorm`` in ``$XDG_CACHE_HOME``, usually ``~/.cache``
    3. ``rownorm-<user id>`` in the folder for temporary files, and in ``/var/tmp``
    4. a new folder for temporary files, which this process removes when it ends
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

try:
    import fcntl
except ImportError:  # Windows; ``extension.reason_against`` says so
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None
_lock = threading.Lock()


class Folder(NamedTuple):
    """The folder in use, and why those before it in the list are not."""

    path: Path
    refused: tuple[str, ...]


class Refused(Exception):
    """Why a folder is not used."""


def find() -> Folder:
    """The folder for compiled code, created where it is missing; raises where there is none."""
    refused: list[str] = []
    for path in _candidates():
        try:
            return Folder(usable(path), tuple(refused))
        except (Refused, OSError) as error:
            refused.append(str(error))
    with _lock:
        try:
            return Folder(_of_this_process(), tuple(refused))
        except (Refused, OSError) as error:
            refused.append(str(error))
    raise RuntimeError(
        f"there is no private folder for compiled code ({'; '.join(refused)}); "
        "TRITON_CACHE_DIR can name one that only you can write"
    )


def _candidates() -> Iterator[Path]:
    yield _triton_cache() / "rownorm"
    yield Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "rownorm")
    for folder in _temporary():
        yield folder / f"rownorm-{os.geteuid()}"


def _triton_cache() -> Path:
    """Triton's folder, without importing Triton. It is relative where the user has no home, or where it was set so."""
    if (knobs := sys.modules.get("triton.knobs")) is not None:
        return Path(knobs.cache.dir)
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~/")
    return Path(os.environ.get("TRITON_CACHE_DIR") or os.path.join(home, ".triton", "cache"))


def _temporary() -> list[Path]:
    try:
        first = tempfile.gettempdir()
    except FileNotFoundError:  # no folder for temporary files can be written
        return []
    return list(dict.fromkeys((Path(first), Path("/var/tmp"))))


@functools.cache
def _of_this_process() -> Path:
    refused: Exception = Refused("there is no folder for temporary files")
    for parent in _temporary():
        try:
            path = Path(tempfile.mkdtemp(prefix="rownorm-", dir=parent))
        except OSError as error:
            refused = error
            continue
        atexit.register(_remove, path, os.getpid())
        try:
            return usable(path)
        except Refused as error:
            refused = error
    raise refused


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:  # not in a child that was forked
        shutil.rmtree(path, ignore_errors=True)


def usable(path: Path) -> Path:
    """``path`` without symbolic links; what is missing of it is created. Raises where it is not safe or not of use."""
    if not path.is_absolute():
        raise Refused(f"{path} is not an absolute path")
    path = Path(os.path.realpath(path))
    check_parents(next(folder for folder in (path, *path.parents) if os.path.lexists(folder)))
    make(path)
    check_parents(path)
    check_ours(path)
    if not os.access(path, os.W_OK | os.X_OK):
        raise Refused(f"{path} cannot be written")
    try:
        probe = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            os.close(probe)
    except BlockingIOError:
        pass
    except OSError as error:  # a network file system without locks
        raise Refused(f"{path} cannot be locked: {error}") from error
    return path


def make(path: Path) -> None:
    """Create ``path`` and what is missing above it, for this user alone, whatever the umask."""
    if not path.parent.exists():
        make(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return
    path.chmod(0o700)  # the umask may have taken away our own access


def check_parents(path: Path) -> None:
    """Raise where another user could replace ``path`` or a folder above it: the rule that OpenSSH has for its files."""
    # The owner of / can replace any file, so it is trusted. In some containers root's files have that owner's id.
    trusted = (0, os.geteuid(), os.lstat("/").st_uid)
    for folder in (path, *path.parents):
        state = os.lstat(folder)
        if not stat.S_ISDIR(state.st_mode):
            raise Refused(f"{folder} is not a folder")
        if state.st_uid not in trusted:
            raise Refused(f"{folder} belongs to another user ({state.st_uid})")
        # In a folder with the sticky bit, such as /tmp, a user can rename or remove only their own files.
        if state.st_mode & 0o022 and not state.st_mode & stat.S_ISVTX:
            raise Refused(f"{folder} can be written by its group or by others")


def check_ours(path: Path) -> None:
    """Raise where ``path`` is not a folder of this user or of root that no other user can write."""
    state = os.lstat(path)
    if not stat.S_ISDIR(state.st_mode):
        raise Refused(f"{path} is not a folder")
    check_owner(path, state)


def check_owner(path: Path, state: os.stat_result) -> None:
    """Raise where a file or folder of this state belongs to another user, or could be written by one."""
    if state.st_uid not in (0, os.geteuid()):
        raise Refused(f"{path} belongs to another user ({state.st_uid})")
    if state.st_mode & 0o022:
        raise Refused(f"{path} can be written by its group or by others")
