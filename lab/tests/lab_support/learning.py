"""Folders with the solutions of the exercises, and their grades."""

from pathlib import Path

from rownorm_course.catalog import exercises
from rownorm_course.grade import grade
from rownorm_course.learner import Learner
from rownorm_lab.data.files import write_whole


def wrong_solutions():
    """(exercise, name) of every solution that must be rejected."""
    return [
        (one.number, folder.name)
        for one in exercises().values()
        for folder in sorted((one.path / "solutions" / "wrong").iterdir())
        if folder.is_dir() and folder.name != "__pycache__"
    ]


def also_right_solutions():
    """(exercise, name) of every unusual solution that must have full points."""
    return [
        (one.number, folder.name)
        for one in exercises().values()
        for folder in sorted((one.path / "solutions" / "also_right").glob("*"))
    ]


def reason(number, name):
    """(part, habit) for which a solution must be rejected."""
    part, habit, *_ = _words(number, name)
    return part, habit


def only_compiled(number, name):
    """Whether a wrong solution gives right values, so that only its compiled code shows what is wrong."""
    return _words(number, name)[2:] == ["compiled"]


def rejecting_step(number, name):
    """The step of that part that rejects a wrong solution, if it is one of the interpreter."""
    return _reason(number, name)[1]


def _words(number, name):
    return _reason(number, name)[0].split()


def _reason(number, name):
    path = exercises()[number].path / "solutions" / "wrong" / name / "reason.txt"
    return path.read_text().splitlines()


def put(folder, number, other="", kind="wrong"):
    """Write the right solution, or another one of a kind, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    one = exercises()[number]
    given = {name: content for name, content in one.starter().items() if one.is_given(name)}
    for name, content in (given | one.right()).items():
        write_whole(folder / name, content)
    for file in (one.path / "solutions" / kind / other).iterdir() if other else ():
        if file.suffix == ".diff":
            target = folder / file.stem
            target.write_text(changed(target.read_text(), file.read_text()))
        elif file.suffix in (".py", ".json", ".jsonl"):
            write_whole(folder / file.name, file.read_bytes())
    return folder


def changed(text, diff):
    """``text`` with the changes of a unified diff without context. The lines that it removes must be there."""
    lines, hunks = text.splitlines(), []
    for line in diff.splitlines():
        if line.startswith("@@"):
            start, _, count = line.split()[1].removeprefix("-").partition(",")
            # A hunk that only adds names the line that it comes after.
            hunks.append((int(start) - (count != "0"), [], []))
        else:
            _, removed, added = hunks[-1]
            (removed if line.startswith("-") else added).append(line[1:])
    for start, removed, added in reversed(hunks):
        end = start + len(removed)
        assert lines[start:end] == removed, f"the right solution has changed: {lines[start:end]}"
        lines[start:end] = added
    return "\n".join(lines) + "\n"


def compiled_grades(folders):
    """The steps of the mode ``compile``, by (number, folder)."""
    found = {}
    for number, folder in folders:
        with Learner(Path(folder), number, "compile", 7) as learner:
            found[number, folder] = [
                (one.part, one.name, one.status, one.habit, one.message) for one in grade(learner)
            ]
    return found
