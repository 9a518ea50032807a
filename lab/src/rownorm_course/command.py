"""``rownorm learn``: exercises."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path

import click

from rownorm_lab.command_line.options import (
    FOLDER,
    SuggestingGroup,
    examples,
    refuse_taken,
    unknown,
)
from rownorm_lab.data.files import write_whole
from rownorm_lab.data.texts import count

from . import submission, warm
from .catalog import DISCUSSION, SENTENCE, Exercise, exercises, sections
from .grades import Failure
from .progress import (
    Damaged,
    Progress,
    change,
    current,
    digests,
    home_folder,
    next_new,
    read,
    record,
)
from .progress import start as start_one
from .show import Display, listing, summary

HOME = click.option("--folder", type=FOLDER, help="Your folder. Default: learn, in this folder.")
NAME = click.argument("name", metavar="[EXERCISE]", required=False)


@click.group(
    "learn",
    cls=SuggestingGroup,
    invoke_without_command=True,
    epilog=examples(
        "rownorm learn start 1",
        "rownorm learn check",
        "rownorm learn check --watch",
        "rownorm learn hint",
        "rownorm learn discuss",
        "rownorm learn solution 1 --give-up",
        "rownorm learn submit",
    ),
)
@click.pass_context
def command(context: click.Context, /) -> None:
    """Learn to write norm kernels in Triton: exercises, graded by real checks, with or without a GPU.

    Without a command: the list of exercises with your progress. An EXERCISE is its number or a part of its name;
    without one, the exercise of the current folder, else the one that you worked on last. docs/course.md is the
    syllabus.
    """
    if context.invoked_subcommand is None:
        _list(None)


@command.command(
    "list", epilog=examples("rownorm learn list", "rownorm learn list --folder ~/norms")
)
@HOME
def show_list(folder: Path | None) -> None:
    """The exercises, with progress, points and time."""
    _list(folder)


def _list(folder: Path | None) -> None:
    click.echo("\n".join(listing(home_folder(folder))))
    click.echo(
        "Points are the best of all checks. Next: rownorm learn start, then rownorm learn check"
    )


@command.command(
    epilog=examples("rownorm learn start", "rownorm learn start 2", "rownorm learn start fusion")
)
@NAME
@HOME
def start(name: str | None, folder: Path | None) -> None:
    """Copy an exercise into your folder: EXERCISE, or the first that you have not started.

    Files that are there are kept; missing ones are written again.
    """
    home = home_folder(folder)
    one = _found(name) if name else next_new(home)
    if one is None:
        raise click.UsageError(f"every exercise was started in {home.resolve()}; name one")
    written, kept = start_one(one, home)
    place = home / one.folder
    click.echo(
        f"Exercise {one.number}: {one.title}, {one.points} points, about {one.minutes} minutes"
    )
    click.echo(one.about)
    if kept:
        click.echo(f"kept as they were: {', '.join(kept)}")
    if written:
        click.echo(f"written to {place}: {', '.join(written)}")
    if one.needs:
        click.echo(f"It needs {one.needs}.")
    warm.start()
    click.echo(
        f"Read {place / 'text.md'}, edit the other files, then: {_program()} learn check {one.number}"
    )


@command.command(
    epilog=examples(
        "rownorm learn check",
        "rownorm learn check 2 --part kernel",
        "rownorm learn check 2 --watch",
    )
)
@NAME
@HOME
@click.option("--watch", is_flag=True, help="Check again whenever a file is saved; Ctrl-C ends it.")
@click.option("--part", default="", metavar="NAME", help="Only this part, and those that it needs.")
@click.pass_context
def check(
    context: click.Context,
    /,
    name: str | None,
    folder: Path | None,
    watch: bool,
    part: str,
) -> None:
    """Grade an exercise. Your files run in a process of their own, with limits of time and memory.

    Each part is graded up to its first failure. A part that needs a failed one, such as the module that uses the
    kernel, is not tried; all others are. Without a GPU, kernels run in Triton's interpreter, and points for speed
    wait. Exit status 1 if something is wrong.
    """
    if find_spec("triton") is None:
        raise ModuleNotFoundError("no Triton", name="triton")  # the entry point says what to do
    one, home, _ = _started(name, folder)
    known = [each.name for each in one.part]
    if part and part not in known:
        raise click.BadParameter(unknown("part", part, known), param_hint="'--part'")
    if not watch:
        status = _checked_by_another(one, home, part)
        if status is None:
            status = _check(one, home, part)
        context.exit(status)
    click.echo(f"Watching {home / one.folder}; Ctrl-C ends it.")
    before: dict[str, int] = {}
    try:
        while True:
            now = _saved(home / one.folder)
            if now != before:
                before = now
                _check(one, home, part)
            time.sleep(0.3)
    except KeyboardInterrupt:
        click.echo("\nNo longer watching.")


def _checked_by_another(one: Exercise, home: Path, part: str) -> int | None:
    """The exit status of the process that stays warm, if there can be one."""
    arguments = [str(one.number), "--folder", str(home.resolve())]
    return warm.check([*arguments, *(["--part", part] if part else [])], one.number)


def _check(one: Exercise, home: Path, part: str = "") -> int:
    from . import run

    click.echo(f"Exercise {one.number}: {one.title}")
    progress = _progress(one, home)
    if progress.version != one.version:
        click.echo(
            f"This folder is of version {progress.version} of the exercise, the present one is {one.version}. It is "
            f"graded by the present one; rownorm learn start {one.number} adds files that are new."
        )
    files = digests(one, home)
    grade = run.check(one, home / one.folder, Display(), part, progress.tried)
    progress = record(one, home, grade, files, progress.tried)
    click.echo("\n".join(summary(grade, progress.reached)))
    following = next_new(home, one.number) or next_new(home)
    failed = {step.part for step in grade.steps if step.status == "failed"}
    if not grade.finished and not failed:
        names = [each.name for each in one.part if not progress.best.get(each.name)]
        names = [name for name in names if not progress.pending.get(name)]
        rest = f" --part {names[0]}" if names else ""
        click.echo(f"Next: {_program()} learn check {one.number}{rest}")
    elif not grade.finished:
        click.echo(f"Next: {_program()} learn hint {one.number} (hints cost no points)")
    elif following is None:
        click.echo(f"Next: {_program()} learn solution {one.number}")
    else:
        click.echo(
            f"Next: {_program()} learn solution {one.number} to compare, "
            f"{_program()} learn start {following.number} for {following.title}"
        )
    return int(bool(failed))


def _saved(folder: Path) -> dict[str, int]:
    """When each file of the folder was written last."""
    found = {}
    for path in folder.iterdir():
        if path.is_file() and not path.name.startswith("."):
            try:
                found[path.name] = path.stat().st_mtime_ns
            except FileNotFoundError:  # an editor that replaces a file removes it first
                continue
    return found


@command.command(epilog=examples("rownorm learn discuss 2"))
@NAME
@HOME
def discuss(name: str | None, folder: Path | None) -> None:
    """Compare your sentences in discussion.md with an answer each.

    An answer is shown where you have written a sentence. There are no points.
    """
    one, home, _ = _started(name, folder)
    path = home / one.folder / DISCUSSION
    if not path.is_file():
        raise click.ClickException(
            f"{path} is not there: rownorm learn start {one.number} writes it"
        )
    written = sections(path.read_text(encoding="utf-8"))
    for question, answer in one.discussion().items():
        mine = written.get(question, "").replace(SENTENCE, "").strip()
        shown = f"you: {mine}\n\nan answer: {answer}" if mine else f"write a sentence in {path}"
        click.echo(f"{question}\n\n{shown}\n")


@command.command(epilog=examples("rownorm learn table", "rownorm learn table --cols 128,1024"))
@HOME
@click.option("--cols", default="", metavar="N,N", help="Only these widths.")
def table(folder: Path | None, cols: str) -> None:
    """The table of your RMSNorm of exercise 2 by width: time, MB, GB/s, occupancy, error.

    A measured time is shown for a width that predictions.toml has a number for: of your GPU, and the one that was
    recorded on an H200. Occupancy is that of your kernel, compiled for an H200; the error is beside fp64.
    """
    from . import table as tables
    from .run import has_gpu

    one, home, _ = _started("2", folder)
    widths = [int(part) for part in cols.split(",") if part.strip().isdecimal()]
    if cols and not widths:
        raise click.BadParameter("expected widths such as 128,1024", param_hint="'--cols'")
    try:
        lines = tables.table(home / one.folder, has_gpu(), widths or tables.WIDTHS)
    except Failure as failure:
        raise click.ClickException(str(failure)) from None
    click.echo("\n".join(lines))
    click.echo(
        "RMSNorm forward, 32768 rows of fp16. GB/s are of your time, else of rownorm's recorded one. -: not predicted, "
        "not recorded, or there is no GPU."
    )


@command.command(epilog=examples("rownorm learn hint", "rownorm learn hint 2 --all"))
@NAME
@HOME
@click.option(
    "--all", "every", is_flag=True, help="All hints that were given so far, and the next."
)
def hint(name: str | None, folder: Path | None, every: bool) -> None:
    """Show the next hint. They go from a direction to almost the answer.

    Hints cost no points. A submission says how many were taken.
    """
    one, home, progress = _started(name, folder)
    hints = one.hints()
    if progress.hints >= len(hints):
        click.echo(f"There are no more than {count(len(hints), 'hint')}. Here is the last again.")

    def take(progress: Progress) -> None:
        progress.hints = min(progress.hints + 1, len(hints))

    progress = change(one, home, take)
    for number in range(1 if every else progress.hints, progress.hints + 1):
        click.echo(f"Hint {number} of {len(hints)}: {hints[number - 1]}\n")


@command.command(epilog=examples("rownorm learn solution 2", "rownorm learn solution 2 --give-up"))
@NAME
@HOME
@click.option("--give-up", is_flag=True, help="Show it although the exercise is not passed.")
@click.option("--out", type=FOLDER, help="Write its files into this folder instead.")
def solution(name: str | None, folder: Path | None, give_up: bool, out: Path | None) -> None:
    """Show the solution of an exercise that you have passed, or given up."""
    one, home, progress = _started(name, folder)
    passed = progress.reached + progress.waiting >= one.points
    if not (passed or give_up or progress.gave_up):
        raise click.UsageError(
            f"exercise {one.number} has {progress.reached} of {one.points} points. Pass it first, or give "
            f"up: rownorm learn solution {one.number} --give-up"
        )
    if give_up and not passed:

        def note(progress: Progress) -> None:
            progress.gave_up = True

        change(one, home, note)
    if out is not None:
        refuse_taken(out)
        for file, content in one.right().items():
            write_whole(out / file, content)
        click.echo(f"{count(len(one.right()), 'file')} in {out}")
        return
    for file, content in one.right().items():
        click.echo(f"==== {file}\n{content.decode()}")


@command.command(epilog=examples("rownorm learn submit", "rownorm learn submit 6 --out submission"))
@NAME
@HOME
@click.option("--out", type=FOLDER, help="Where to write it. Default: submission/NN_name.")
def submit(name: str | None, folder: Path | None, out: Path | None) -> None:
    """Write a folder to hand in: your files, and scores.json with the points of each part.

    The points are those of the files that are handed in: if they have changed since the last check, they are graded
    again. A submission of the same exercise is replaced; nothing else is.
    """
    one, home, progress = _started(name, folder)
    out = out or submission.FOLDER / one.folder
    before = submission.scores_in(out)
    if before is None or before.exercise != one.folder:
        refuse_taken(out)
    files = digests(one, home)
    changed = [
        file
        for file in sorted(files.keys() | progress.graded.keys())
        if files.get(file) != progress.graded.get(file)
    ]
    if changed:
        click.echo(f"Not graded as they are now: {', '.join(changed)}. Grading.")
        _check(one, home)
        progress = _progress(one, home)
    scores, missing = submission.write_submission(one, home, progress, out)
    replaced = ", in place of the submission that was there" if before else ""
    click.echo(
        f"{count(len(scores.files) + 1, 'file')} in {out}{replaced}: {scores.points} of {scores.of} points, "
        f"{scores.waiting_for_a_gpu} wait for a GPU"
    )
    for file in missing:
        click.echo(f"missing: {file}", err=True)


def _found(name: str) -> Exercise:
    """The exercise of a number or a name; a usage error that lists them."""
    known = exercises()
    if name.isdecimal() and int(name) in known:
        return known[int(name)]
    fitting = [one for one in known.values() if name.lower() in one.folder]
    if len(fitting) == 1 and not name.isdecimal():
        return fitting[0]
    names = [one.folder for one in known.values()]
    raise click.BadParameter(unknown("exercise", name, names), param_hint="'EXERCISE'")


def _started(name: str | None, folder: Path | None) -> tuple[Exercise, Path, Progress]:
    """(the exercise that a command is about, the learner's folder, the progress)."""
    home = home_folder(folder)
    one = _found(name) if name else current(home)
    if one is None:
        raise click.UsageError(f"no exercise was started in {home.resolve()}. {_other_folder(1)}")
    return one, home, _progress(one, home)


def _progress(one: Exercise, home: Path) -> Progress:
    try:
        found = read(one, home)
    except Damaged as error:
        raise click.ClickException(str(error)) from None
    if found is None:
        raise click.UsageError(
            f"exercise {one.number} was not started in {home.resolve()}. {_other_folder(one.number)}"
        )
    return found


def _other_folder(number: int) -> str:
    return (
        "Change to the folder in which you started it, or name your folder with --folder. To start it here: "
        f"rownorm learn start {number}"
    )


def _program() -> str:
    """The command as it was called, so that it can be copied."""
    called = Path(sys.argv[0])
    return "rownorm" if called.name != "rownorm" or called.parent.name != "bin" else str(called)
