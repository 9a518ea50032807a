"""Names in a user's Python file: ``FILE.py:name``. The file is imported as ``python FILE.py`` would find it."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from .no_gpu import answering_driver


class Source(msgspec.Struct, frozen=True):
    """A name in a file, and the SHA-256 of the file's bytes. Files that it imports are not part of the digest."""

    file: str  # an absolute path
    name: str
    digest: str

    @property
    def place(self) -> str:
        """``FILE.py:name``, as on the command line."""
        return f"{self.file}:{self.name}"

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.name}, SHA-256 {self.digest[:12]}"


def is_place(text: str) -> bool:
    """Whether a text has the form ``FILE.py:name``."""
    return ".py:" in text or text.endswith(".py")


def source_of(place: str) -> Source:
    """The source that ``FILE.py:name`` names; ValueError if there is no such file."""
    file, _, name = place.rpartition(":")
    if not file or not name.isidentifier():
        has = _functions_in(Path(place.removesuffix(":")))
        raise ValueError(
            f"{place!r}: name what to use of the file, as FILE.py:name{f'; it has {has}' if has else ''}"
        )
    path = Path(file).expanduser().absolute()
    try:
        return Source(str(path), name, hashlib.sha256(path.read_bytes()).hexdigest())
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None


def _functions_in(path: Path) -> str:
    """The functions of a file by its text; empty if it has none or cannot be read."""
    try:
        tree = ast.parse(path.expanduser().read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    names = [one.name for one in tree.body if isinstance(one, ast.FunctionDef)]
    return ", ".join(name for name in names if not name.startswith("_"))


def load(source: Source, arguments: Sequence[str] = ()) -> tuple[ModuleType, Any]:
    """(the module, the named object), from the file as it is now; ValueError if it has no such name."""
    path = Path(source.file)
    module = imported(path, arguments)
    if not hasattr(module, source.name):
        known = [each for each, value in vars(module).items() if callable(value)]
        own = [each for each in known if not each.startswith("_")]
        raise ValueError(
            f"{path.name} has no {source.name!r}; it has {', '.join(own) or 'no functions'}"
        )
    return module, getattr(module, source.name)


def imported(path: Path, arguments: Sequence[str] = ()) -> ModuleType:
    """The module of a file, as it is now.

    The file's folder is on ``sys.path`` and ``sys.argv`` has no arguments but these, as if it were run; ``__name__`` is
    not ``__main__``. Triton's driver answers also where there is no GPU. ValueError with the line if the file cannot be
    imported.
    """
    path = path.absolute()
    name = f"_rownorm_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module  # dataclasses and pickle look a module up by its name
    before, sys.argv = sys.argv, [str(path), *arguments]
    try:
        with answering_driver():
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path.name} cannot be imported: {blame(error, path)}") from error
    finally:
        sys.argv = before
    return module


def blame(error: BaseException, path: Path) -> str:
    """An exception in one line, with the line of the user's file that it came from."""
    words = error.msg if isinstance(error, SyntaxError) else str(error)  # str() has its own place
    first = next((line.strip() for line in words.splitlines() if line.strip()), "")
    said = f"{type(error).__name__}: {first[:200]}" if first else type(error).__name__
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == str(path)]
    number = frames[-1].lineno if frames else None
    if isinstance(error, SyntaxError):
        number = error.lineno if error.filename == str(path) else None
    return f"{said} ({path.name}, line {number})" if number else said
