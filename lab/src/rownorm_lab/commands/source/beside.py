"""Source lines and the instructions that were compiled from them, by the compiler's line information."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...compiled.isa import Line

OTHER = "other sources"  # Triton's own library, and instructions without a line
PACKAGES = ("rownorm", "rownorm_lab")


class Pair(msgspec.Struct, frozen=True):
    """A source line and its instructions, in the order of the code."""

    number: int
    source: str
    instructions: list[tuple[str, str]]  # (mark, text)


class Listing(msgspec.Struct, frozen=True):
    """A function of a source file, from its first line to its last."""

    file: str
    function: str
    lines: list[Pair]

    @property
    def title(self) -> str:
        """The file and the function."""
        return f"{self.file}: {self.function}" if self.function else self.file


class Shown(NamedTuple):
    """A kernel beside its code, and what is said about it."""

    kernel: str
    about: str  # what it was compiled for
    target: str
    triton: str
    isa: str
    answers: list[tuple[str, str]]
    analysis: msgspec.Struct
    code: list[Listing]


def listings(lines: Sequence[Line], kernel: str, folder: Path | None = None) -> list[Listing]:
    """The functions that instructions came from: the kernel first, then the helpers that were inlined into it.

    folder: of a user's file; its files are shown as those of the library are.
    """
    by_place: dict[str, dict[int, list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if line.opcode:
            file = Path(line.file)
            own = _below_package(file) is not None or (
                folder is not None and file.is_relative_to(folder)
            )
            by_place[line.file if own else ""][line.number].append((line.mark, line.text))
    found = [
        listing
        for file, by_number in by_place.items()
        if file and Path(file).is_file()
        for listing in _of_file(Path(file), by_number)
    ]
    found.sort(key=lambda one: (one.function != kernel, one.file, one.lines[0].number))
    rest = [pair for pairs in by_place[""].values() for pair in pairs]
    if rest:
        found.append(Listing(OTHER, "", [Pair(0, "", rest)]))
    return found


def _below_package(file: Path) -> str | None:
    """The place of a file in the library or the lab: ``kernels/memory.py``; None for other files."""
    places = [at for at, part in enumerate(file.parts) if part in PACKAGES]
    return "/".join(file.parts[places[-1] + 1 :]) if places else None


def _of_file(file: Path, by_number: dict[int, list[tuple[str, str]]]) -> Iterator[Listing]:
    text = file.read_text(encoding="utf-8")
    source = text.splitlines()
    name = _below_package(file) or file.name
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            numbers = range(first, (node.end_lineno or node.lineno) + 1)
            if any(number in by_number for number in numbers):
                pairs = [Pair(n, source[n - 1], by_number.get(n, [])) for n in numbers]
                yield Listing(name, node.name, pairs)


def summarized(instructions: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The marked instructions, equal opcodes together, then how many others there are: (mark, text)."""
    marked = Counter((mark, _opcode(text)) for mark, text in instructions if mark)
    lines = [
        (mark, f"{opcode} x {count}" if count > 1 else opcode)
        for (mark, opcode), count in marked.items()
    ]
    others = sum(not mark for mark, _ in instructions)
    if others:
        lines.append(("", f"{others} other{'s' if others > 1 else ''}"))
    return lines


def _opcode(text: str) -> str:
    words = text.lstrip("{ ").split()
    return words[1] if words[0].startswith("@") and len(words) > 1 else words[0]
