"""A dataset folder of FlashInfer-Bench.

    definitions/<op_type>/<definition>.json
    solutions/<author>/<op_type>/<definition>/<solution>.json
    workloads/<op_type>/<definition>.jsonl
    traces/<op_type>/<definition>.jsonl

The package's own loader stops at the first bad file. This one names it and goes on, with the same classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flashinfer_bench import Definition, Solution, Trace, TraceSet
from pydantic import ValidationError

from ..data.files import write_whole

DEFINITIONS = "definitions"
PARTS = (DEFINITIONS, "solutions", "workloads", "traces")


class Problem(NamedTuple):
    """A file, line or Definition that is left out, and why."""

    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


class Dataset(NamedTuple):
    """What a folder holds, and what in it cannot be used."""

    content: TraceSet
    problems: list[Problem]


def read(folder: Path) -> Dataset:
    """Read a dataset; ValueError if the folder is none."""
    if not (folder / DEFINITIONS).is_dir():
        raise ValueError(
            f"{folder} is not a dataset: it has no folder definitions/. rownorm fib export {folder} writes one."
        )
    content, problems = TraceSet(root=folder), list[Problem]()

    def add(where: str, reason: str) -> None:
        problems.append(Problem(where, reason))

    for where, one in _files(folder, DEFINITIONS, Definition, add):
        if one.name in content.definitions:
            add(where, f"a second Definition {one.name}")
        else:
            content.definitions[one.name] = one
    names: set[str] = set()
    for where, one in _files(folder, "solutions", Solution, add):
        if one.definition not in content.definitions:
            add(where, f"its Definition {one.definition} is not in the folder")
        elif one.name in names:
            add(where, f"a second Solution {one.name}")
        else:
            names.add(one.name)
            content.solutions.setdefault(one.definition, []).append(one)
    for part, found in (("workloads", content.workloads), ("traces", content.traces)):
        for where, one in _lines(folder, part, add):
            if one.is_workload_trace() != (part == "workloads"):
                is_what = "a workload" if one.is_workload_trace() else "a trace"
                add(where, f"{is_what} in {part}/, the layout of another version")
            elif one.definition not in content.definitions:
                add(where, f"its Definition {one.definition} is not in the folder")
            else:
                found.setdefault(one.definition, []).append(one)
    # Made again with its solutions, because the constructor builds the index by name.
    found = {part: getattr(content, part) for part in PARTS}
    return Dataset(TraceSet(root=folder, **found), problems)


def _files(
    folder: Path, part: str, model: Any, add: Callable[[str, str], None]
) -> Iterator[tuple[str, Any]]:
    for path in sorted((folder / part).rglob("*.json")):
        where = str(path.relative_to(folder))
        try:
            yield where, model.model_validate_json(path.read_text(encoding="utf-8"))
        except (ValidationError, UnicodeDecodeError, OSError) as error:
            add(where, first_reason(error))


def _lines(folder: Path, part: str, add: Callable[[str, str], None]) -> Iterator[tuple[str, Any]]:
    for path in sorted((folder / part).rglob("*.jsonl")):
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            where = f"{path.relative_to(folder)}, line {number}"
            if not line.strip():
                continue
            try:
                yield where, Trace.model_validate_json(line)
            except ValidationError as error:
                add(where, first_reason(error))


def first_reason(error: Exception) -> str:
    """The first complaint of an exception, on one line, with the field that it is about."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        return f"{field}: {first['msg']}" if field else str(first["msg"])
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(
        ": "
    )


def write_new(
    folder: Path,
    definition: Definition,
    workloads: Sequence[Trace],
    solutions: Sequence[Solution],
) -> list[Path]:
    """Write a Definition with its workloads and Solutions into a new dataset; return the files."""
    op_type, name = definition.op_type, definition.name
    lines = "".join(f"{one.model_dump_json(exclude_none=True)}\n" for one in workloads)
    return [
        write_whole(folder / "definitions" / op_type / f"{name}.json", as_text(definition)),
        write_whole(folder / "workloads" / op_type / f"{name}.jsonl", lines),
        *(write_whole(solution_path(folder, definition, one), as_text(one)) for one in solutions),
    ]


def solution_path(folder: Path, definition: Definition, solution: Solution) -> Path:
    """Where the package expects a Solution."""
    place = folder / "solutions" / solution.author / definition.op_type / definition.name
    return place / f"{solution.name}.json"


def as_text(model: Any) -> str:
    """A model as the package writes it."""
    return str(model.model_dump_json(indent=2, exclude_unset=True)) + "\n"
