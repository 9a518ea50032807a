"""Extensions in C and C++, built when they are first needed, kept for later processes, and loaded.

``folders`` finds a private folder, ``compilers`` runs the compiler, ``entry`` keeps what it built.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import compilers, folders
from .entry import SUFFIX, Entry, digest_of, entry_of, remove_unused, write

# Eight ranks that start on a busy machine wait for one compiler, which takes 3 s where it has a core for itself.
LIMIT = 60  # seconds
_FLAGS = {
    "c": ("-O3", "-fPIC", "-shared", "-Wno-psabi"),
    "c++": ("-std=c++20", "-O2", "-g0", "-fPIC", "-shared"),
}
_FILE = {"c": "source.c", "c++": "source.cpp"}


@dataclass(frozen=True)
class Extension:
    """What is compiled, and how. The files are compiled as one, in their order.

    key: what the result depends on beside the sources and the compiler's command, such as the version of PyTorch. Its
    users add their ``__name__``: a copy of the library under another name, as a Hugging Face kernel is, has variables
    of its own in C.
    limit: seconds that the compiler may take. background: at low priority.
    """

    name: str
    sources: tuple[Path, ...]
    language: compilers.Language = "c"
    include: tuple[Path, ...] = ()
    flags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    key: str = ""
    limit: float = LIMIT
    background: bool = False

    def arguments(self) -> tuple[str, ...]:
        """The compiler's arguments. The script that calls it is in the folder of the source."""
        include = (f"-I{folder}" for folder in (*self.include, _headers()))
        flags = (*_FLAGS[self.language], *self.flags, *include)
        return (*flags, _FILE[self.language], *self.libraries, "-o", "built")


def build(extension: Extension) -> Any:
    """The module; it is compiled unless an earlier build is there. Raises where that fails.

    One process at a time compiles it: the others, for example the ranks of a training run, wait for that one. What a
    compiler failed at is not tried again with that compiler on the same day; where a time limit ended while the machine
    was busy, for ten minutes.
    """
    base = folders.find().path
    try:
        words = compilers.find(extension.language)
    except compilers.NoCompiler:
        # No compiler, no key: a build by any compiler will do, for example in a container that has only the cache.
        for entry in _entry(extension, base, "").by_other_compilers():
            if (module := _load(entry)) is not None:
                return module
        raise
    entry = _entry(extension, base, _identity(base, words))
    if (module := _load(entry)) is not None:
        return module
    try:
        with entry.locked(extension.limit + compilers.GRACE) as lock:
            # A process that has ended may have started the compiler.
            _settle(extension, entry, words)
            if (module := _load(entry)) is not None:
                return module
            if why := entry.failure():
                raise RuntimeError(why)
            module = _compile(extension, entry, words, lock)
    except TimeoutError as error:
        entry.remember_timeout(str(error), compilers.load())
        raise RuntimeError(entry.failure()) from error
    remove_unused(base)
    return module


def describe(extension: Extension) -> list[str]:
    """The compiler, and what is kept, in lines for ``rownorm info``. Builds nothing."""
    if reason_against():
        return []
    try:
        base = folders.find().path
        words = compilers.find(extension.language)
        entry = _entry(extension, base, _identity(base, words))
    except compilers.NoCompiler as error:
        others = _entry(extension, base, "").by_other_compilers()
        built = [f"{one.folder.name}: built" for one in others if not one.reason_against()]
        return [str(error), *built]
    except RuntimeError as error:
        return [str(error)]
    first = (compilers.version(words).splitlines() or [""])[0]
    why = entry.reason_against()
    state = (entry.failure() or why) if why else "built"
    return [f"compiler {compilers.paths(words)}: {first}", f"{entry.folder.name}: {state}"]


def describe_folder() -> list[str]:
    """The folder of all builds, and why those that would be used before it are not."""
    if why := reason_against():
        return [f"nothing: {why}"]
    try:
        path, refused = folders.find()
    except RuntimeError as error:
        return [str(error)]
    return [str(path), *(f"not used: {why}" for why in refused)]


def python_headers() -> Path:
    """The folder of Python's headers; raises where they are missing."""
    folder = _headers()
    if not (folder / "Python.h").exists():
        raise RuntimeError(f"{folder / 'Python.h'} is missing")
    return folder


def joined(sources: Sequence[Path]) -> str:
    """The text of these files as one; a compiler's messages name the file and the line."""
    return "".join(f'#line 1 "{source.name}"\n{source.read_text()}' for source in sources)


def reason_against() -> str:
    """Why no extension may be used; empty where one may."""
    if os.environ.get("ROWNORM_NATIVE", "1") == "0":
        return "ROWNORM_NATIVE is 0"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python runs without the GIL, which the extension relies on"
    if not folders.HAS_LOCKS:
        return "this system has no POSIX permissions and locks, which the kept builds rely on"
    return ""


def _headers() -> Path:
    # Debian's own scheme has no headers.
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    return Path(sysconfig.get_paths(scheme)["include"])


def _entry(extension: Extension, base: Path, compiler: str) -> Entry:
    """The build in ``base``. Its name depends on all that the result depends on."""
    parts = (joined(extension.sources), *extension.arguments(), extension.key, SUFFIX, _libc())
    return entry_of(base, extension.name, "\0".join(parts), compiler)


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):  # musl, which the suffix names
        return ""


def _identity(base: Path, words: tuple[str, ...]) -> str:
    """The compiler's files and version. One that did not say its version is not asked again for a while."""
    found = compilers.paths(words)
    asked = entry_of(base, "compiler", "", found)
    if why := asked.failure():
        raise RuntimeError(why)
    try:
        return f"{found}\n{compilers.version(words)}"
    except TimeoutError as error:
        asked.remember_timeout(str(error), compilers.load())
        raise RuntimeError(asked.failure()) from error


def _load(entry: Entry) -> Any:
    """The module; None where it is missing, damaged, another user's, or was built beside other libraries."""
    if entry.reason_against():
        return None
    try:
        return entry.load()
    except ImportError:
        return None


def _compile(extension: Extension, entry: Entry, words: tuple[str, ...], lock: int) -> Any:
    """Compile it and load it. The lock is held."""
    python_headers()
    folders.make(entry.build)
    write(entry.build / _FILE[extension.language], joined(extension.sources).encode())
    arguments = extension.arguments()
    compilers.run(entry.build, words, arguments, extension.limit, lock, low=extension.background)
    _settle(extension, entry, words)
    if why := entry.reason_against():
        raise RuntimeError(entry.failure() or f"{words[0]} was stopped before it ended: {why}")
    try:
        return entry.load()
    except ImportError as error:
        entry.remember(f"{words[0]} built what cannot be loaded: {error}")
        raise RuntimeError(entry.failure()) from error


def _settle(extension: Extension, entry: Entry, words: tuple[str, ...]) -> None:
    """Keep what a compiler that has ended left in ``entry.build``, or remember why it failed.

    A compiler that was killed from outside left no status, and is not remembered. The lock is held.
    """

    def text(name: str) -> str:
        file = entry.build / name
        return file.read_text(errors="replace") if file.exists() else ""

    status, *more = text("status").split() or [""]
    name, printed = Path(words[0]).name, text("printed")
    command = f"{' '.join((*words, *extension.arguments()))}\n{printed}"
    built = entry.build / "built"
    if status == "timeout":
        why = f"{name} did not end within {extension.limit:g} s"
        entry.remember_timeout(why, more[0] if more else "", command)
    elif status == "0" and built.exists():
        library = built.read_bytes()
        # They differ where the machine stopped before all was on disk.
        if not more or more[0] == digest_of(library):
            entry.keep(library)
    elif status:
        errors = (f": {line}" for line in printed.splitlines() if "error" in line)
        entry.remember(f"{name} failed{next(errors, '')}", command)
    shutil.rmtree(entry.build, ignore_errors=True)
