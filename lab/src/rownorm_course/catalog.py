"""The exercises that the package ships: ``exercises/NN_name``. Importing it needs neither torch nor Triton.

exercise.toml       title, minutes, version, and the parts with their points
text.md             what to do
hints.md            one section for each hint
discussion.md       questions without points, each with an answer to compare with
starter/            the learner's files, with parts to write
solutions/right/    a solution with full points
solutions/wrong/    solutions that must be rejected: what each changes of the right one (FILE.diff), and reason.txt
solutions/also_right/    unusual solutions that must have full points, in the same form, with about.txt
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent / "exercises"
ABOUT, TEXT, HINTS, DISCUSSION = "exercise.toml", "text.md", "hints.md", "discussion.md"
SENTENCE = "Your sentence:"


class ExercisePart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an exercise. Its points are given if all of its steps pass. shares: each step has a share of them."""

    name: str
    points: int
    about: str
    after: list[str] = []  # parts that must pass first, because this one uses them
    shares: bool = False


class Exercise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One exercise. checks: the module of ``checks`` that grades it."""

    title: str
    about: str
    minutes: int
    version: int  # of its files; a folder that an older version made can still be graded
    checks: str
    part: list[ExercisePart]
    limit_s: int = 120  # of one step that compiles or runs on a GPU
    needs: str = ""  # beside torch and Triton
    makes: list[str] = []  # files that the learner's own run writes, and that are handed in
    given: list[str] = []  # files and folders of the starter that are to be read, not edited
    folder: str = ""

    @property
    def number(self) -> int:
        return int(self.folder.partition("_")[0])

    @property
    def points(self) -> int:
        return sum(part.points for part in self.part)

    @property
    def path(self) -> Path:
        return FOLDER / self.folder

    def starter(self) -> dict[str, bytes]:
        """The learner's files by their paths; the text is one of them."""
        folder = self.path / "starter"
        files = sorted(file for file in folder.rglob("*") if "__pycache__" not in file.parts)
        found = {
            file.relative_to(folder).as_posix(): file.read_bytes()
            for file in files
            if file.is_file()
        }
        return {TEXT: (self.path / TEXT).read_bytes(), DISCUSSION: self._questions()} | found

    def _questions(self) -> bytes:
        """The learner's copy of the discussion: without the answers."""
        lines = ["# Discussion"]
        for question in self.discussion():
            lines += ["", f"## {question}", "", SENTENCE]
        return ("\n".join(lines) + "\n").encode()

    def discussion(self) -> dict[str, str]:
        """Answers by question."""
        return sections((self.path / DISCUSSION).read_text(encoding="utf-8"))

    def is_given(self, name: str) -> bool:
        """Whether a file of the starter is to be read, not edited."""
        return name.partition("/")[0] in self.given

    def hints(self) -> list[str]:
        """The sections of hints.md, without their headings' marks."""
        found = (self.path / HINTS).read_text(encoding="utf-8").split("\n## ")[1:]
        return [section.strip() for section in found]

    def right(self) -> dict[str, bytes]:
        """The files of the right solution by name."""
        files = sorted((self.path / "solutions" / "right").iterdir())
        return {file.name: file.read_bytes() for file in files if file.is_file()}


def sections(text: str) -> dict[str, str]:
    """What stands below each heading of the second level."""
    found = (one.partition("\n") for one in text.split("\n## ")[1:])
    return {heading.strip(): body.strip() for heading, _, body in found}


@cache
def exercises() -> dict[int, Exercise]:
    """All exercises by number."""
    found = {}
    for file in sorted(FOLDER.glob(f"*/{ABOUT}")):
        fields = tomllib.loads(file.read_text(encoding="utf-8")) | {"folder": file.parent.name}
        one = msgspec.convert(fields, Exercise)
        found[one.number] = one
    return found
