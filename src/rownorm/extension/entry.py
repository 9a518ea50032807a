"""One build in the folder for compiled code, and how it is kept.

    <name>_<sources and settings>_<compiler>/
        <name>.<suffix>    the library
        sha256             its digest
        lock               held by the process that builds it, and by its compiler
        build/             the compiler's files, until it has ended and its result is kept
        failed.txt         why it could not be built, and what the compiler printed

Permissions keep other users out: no other user can write the folder, so what was checked is what is loaded a moment
later. The digest finds files that are damaged, not files that were planted: who can write the one can write the other.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import folders

try:
    import fcntl
except ImportError:  # Windows; ``extension.reason_against`` says so
    fcntl = None  # type: ignore[assignment]

SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
DAY = 24 * 3600  # seconds
MONTH = 30 * DAY
TEN_MINUTES = 600
BUSY = 1.5  # processes that want to run, for each core; a compiler at low priority hardly runs beside them
_BRIEFLY = "it is tried again after ten minutes"
_NEW_FILE = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # Windows imports this too
_NAME = re.compile(r"[A-Za-z]\w*_[0-9a-f]{16}_[0-9a-f]{16}")


def digest_of(content: bytes | str) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def entry_of(base: Path, name: str, content: str, compiler: str) -> Entry:
    """The build of the extension ``name`` from ``content`` (sources and settings) by ``compiler`` (its identity)."""
    return Entry(base / f"{name}_{digest_of(content)[:16]}_{digest_of(compiler)[:16]}")


class Entry:
    """A build, in the folder of this path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name.rsplit("_", 2)[0]
        self.library = folder / f"{self.name}{SUFFIX}"
        self.build = folder / "build"
        self.failed = folder / "failed.txt"
        self._digest, self._lock = folder / "sha256", folder / "lock"

    def by_other_compilers(self) -> list[Entry]:
        """Builds of the same sources with the same settings, the one that was used last first."""
        same = self.folder.name.rpartition("_")[0]
        found = self.folder.parent.glob(f"{same}_*")
        return [Entry(one) for one in sorted(found, key=lambda one: -one.stat().st_mtime)]

    def reason_against(self) -> str:
        """Why the library cannot be loaded: missing, damaged, or another user's; empty where it can."""
        try:
            folders.check_ours(self.folder)
            library, digest = _read(self.library), _read(self._digest).decode()
        except FileNotFoundError:
            return "not built yet"
        except (folders.Refused, OSError, ValueError) as error:
            return str(error)
        return "" if digest_of(library) == digest else f"{self.library} is damaged"

    def load(self) -> Any:
        """Import the library. ``reason_against`` must have been empty."""
        with contextlib.suppress(OSError):
            os.utime(self.folder)  # the time of the last use
        path = str(self.library)
        loader = importlib.machinery.ExtensionFileLoader(self.name, path)
        spec = importlib.util.spec_from_file_location(self.name, path, loader=loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return module

    def keep(self, library: bytes) -> None:
        """Write the library and its digest, each whole or not at all."""
        write(self.library, library)
        write(self._digest, digest_of(library).encode())
        self.failed.unlink(missing_ok=True)

    def remember(self, why: str, printed: str = "") -> None:
        """Write down that it cannot be built: ``failure`` returns it for a day."""
        folders.make(self.folder)
        write(self.failed, f"{why}\n{printed}".encode())

    def remember_timeout(self, why: str, load: str, printed: str = "") -> None:
        """Write down that a time limit ended; for ten minutes only where the load, if known, may be the reason."""
        cores = os.cpu_count() or 1
        if load and float(load) > BUSY * cores:
            why += f", with a load of {float(load):.0f} and {cores} cores; {_BRIEFLY}"
        self.remember(why, printed)

    def failure(self) -> str:
        """Why it could not be built on this day, and the file that says more; else empty."""
        try:
            age = abs(time.time() - self.failed.stat().st_mtime)
            why = self.failed.read_text(errors="replace").partition("\n")[0]
        except FileNotFoundError:
            return ""
        if age > (TEN_MINUTES if why.endswith(_BRIEFLY) else DAY):
            return ""
        return f"{why}; see {self.failed}"

    @contextlib.contextmanager
    def locked(self, limit: float) -> Iterator[int]:
        """Hold the lock, for which other threads and processes wait; TimeoutError after ``limit`` seconds."""
        end = time.monotonic() + limit
        while (lock := self._acquire()) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"another process has been building it for {limit:g} s")
            time.sleep(0.02)
        try:
            yield lock
        finally:
            _unlock(lock)

    def _acquire(self) -> int | None:
        """The open file with the lock; None where another has it, or where the folder was just removed."""
        folders.make(self.folder)
        folders.check_ours(self.folder)
        try:
            lock = os.open(self._lock, _NEW_FILE, 0o600)
        except FileNotFoundError:
            return None
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(lock, 0o600)
            if _try_lock(lock) and os.path.samestat(os.fstat(lock), self._lock.stat()):
                return lock
        _unlock(lock)
        return None


def remove_unused(base: Path) -> None:
    """Remove builds that were not used for a month. Nothing else in ``base`` is touched."""
    for folder in filter(lambda one: _NAME.fullmatch(one.name), base.iterdir()):
        with contextlib.suppress(OSError, folders.Refused):
            folders.check_ours(folder)
            if time.time() - folder.stat().st_mtime < MONTH:
                continue
            lock = os.open(folder / "lock", _NEW_FILE, 0o600)
            try:
                if _try_lock(lock):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                _unlock(lock)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(lock: int) -> None:
    # Not only closed: a child that was forked meanwhile has the same open file.
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def _read(path: Path) -> bytes:
    """The content of a file of this user or of root that no other user can write; a symbolic link is an error."""
    # Non-blocking, because it could be a pipe.
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(file, "rb") as opened:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "it is not a file", str(path))
        folders.check_owner(path, state)
        return opened.read()


def write(path: Path, content: bytes) -> None:
    """Write a file for this user alone, whatever the umask: another process sees it whole or not at all."""
    new = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    file = os.open(new, _NEW_FILE | os.O_TRUNC, 0o600)
    try:
        with open(file, "wb") as opened:
            os.fchmod(file, 0o600)
            opened.write(content)
            opened.flush()
            os.fsync(file)
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
