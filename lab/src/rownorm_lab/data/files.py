"""Writing a file whole or not at all; files of JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

Kind = TypeVar("Kind")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``, which replaces it if the block ends without an error, and is removed if not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes | memoryview) -> Path:
    """Write ``content`` to ``path`` through a temporary file beside it. If the disk is full, neither file remains."""
    with whole_file(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def json_text(content: Any) -> bytes:
    """The content as JSON that a person can read."""
    return msgspec.json.format(msgspec.json.encode(content), indent=1)


def write_json(path: Path, content: Any) -> Path:
    """Write a file of JSON, whole or not at all."""
    return write_whole(path, json_text(content))


def read_json(path: Path, kind: type[Kind], what: str) -> Kind:
    """The content of a file that ``write_json`` has written; ValueError with the reason if it cannot be read.

    what: the file's contents in words, for that reason: "a study".
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise ValueError(
            f"{path.parent} does not hold {what}: {path.name}: {error.strerror}"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as {what}: {error}") from None
