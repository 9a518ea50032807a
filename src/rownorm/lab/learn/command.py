"""``rownorm learn``: exercises."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..cli.options import FOLDER, SuggestingGroup, examples, refuse_taken, unknown
from ..texts import count

if TYPE_CHECKING:
    from .catalog import Exercise
    from .progress import Progress

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
        "rownorm learn solution 1 --give-up",
        "rownorm learn submit --out submission",
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
    from .progress import home_folder
    from .show import listing

    click.echo("\n".join(listing(home_folder(folder))))
    click.echo("Next: rownorm learn start NUMBER, then rownorm learn check")


@command.command(epilog=examples("rownorm learn start 2", "rownorm learn start fusion"))
@click.argument("name", metavar="EXERCISE")
@HOME
def start(name: str, folder: Path | None) -> None:
    """Copy an exercise into your folder. Files that are there are kept; missing ones are written again."""
    from .progress import folder_of, home_folder
    from .progress import start as start_one

    one, home = _found(name), home_folder(folder)
    written, kept = start_one(one, home)
    place = folder_of(one, home)
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
    click.echo(
        f"Read {place / 'text.md'}, edit the other files, then: {_program()} learn check {one.number}"
    )


@command.command(
    epilog=examples("rownorm learn check", "rownorm learn check 2", "rownorm learn check 2 --watch")
)
@NAME
@HOME
@click.option("--watch", is_flag=True, help="Check again whenever a file is saved; Ctrl-C ends it.")
@click.pass_context
def check(context: click.Context, /, name: str | None, folder: Path | None, watch: bool) -> None:
    """Grade an exercise. Your files run in a process of their own, with limits of time and memory.

    Without a GPU, kernels run in Triton's interpreter, and points for speed wait. Exit status 1 if something is wrong.
    """
    from .progress import folder_of, home_folder

    home = home_folder(folder)
    one = _chosen(name, home)
    _progress(one, home)
    if not watch:
        context.exit(_check(one, home))
    click.echo(f"Watching {folder_of(one, home)}; Ctrl-C ends it.")
    before: dict[str, int] = {}
    try:
        while True:
            now = _saved(folder_of(one, home))
            if now != before:
                before = now
                _check(one, home)
            time.sleep(0.3)
    except KeyboardInterrupt:
        click.echo("\nNo longer watching.")


def _check(one: Exercise, home: Path) -> int:
    from . import run
    from .progress import folder_of, record
    from .show import finished, step_lines, summary

    click.echo(f"Exercise {one.number}: {one.title}")
    progress = _progress(one, home)
    if progress.version != one.version:
        click.echo(
            f"This folder is of version {progress.version} of the exercise, the present one is {one.version}. It is "
            f"graded by the present one; rownorm learn start {one.number} adds files that are new."
        )
    grade = run.check(
        one, folder_of(one, home), lambda step: click.echo("\n".join(step_lines(step)))
    )
    record(one, home, progress, grade)
    click.echo("\n".join(summary(grade)))
    done = finished(grade.steps)
    next_step = "solution" if done else "hint"
    click.echo(f"Next: {_program()} learn {next_step} {one.number}")
    return int(not done)


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


@command.command(epilog=examples("rownorm learn hint", "rownorm learn hint 2 --all"))
@NAME
@HOME
@click.option(
    "--all", "every", is_flag=True, help="All hints that were given so far, and the next."
)
def hint(name: str | None, folder: Path | None, every: bool) -> None:
    """Show the next hint. They go from a direction to almost the answer."""
    from .progress import home_folder, write

    home = home_folder(folder)
    one = _chosen(name, home)
    progress = _progress(one, home)
    hints = one.hints()
    if progress.hints >= len(hints):
        click.echo(f"There are no more than {count(len(hints), 'hint')}. Here is the last again.")
    progress.hints = min(progress.hints + 1, len(hints))
    write(one, home, progress)
    for number in range(1 if every else progress.hints, progress.hints + 1):
        click.echo(f"Hint {number} of {len(hints)}: {hints[number - 1]}\n")


@command.command(epilog=examples("rownorm learn solution 2", "rownorm learn solution 2 --give-up"))
@NAME
@HOME
@click.option("--give-up", is_flag=True, help="Show it although the exercise is not passed.")
@click.option("--out", type=FOLDER, help="Write its files into this folder instead.")
def solution(name: str | None, folder: Path | None, give_up: bool, out: Path | None) -> None:
    """Show the solution of an exercise that you have passed, or given up."""
    from ..results.files import write_whole
    from .progress import home_folder, write

    home = home_folder(folder)
    one = _chosen(name, home)
    progress = _progress(one, home)
    passed = sum(progress.best.values()) + sum(progress.pending.values()) >= one.points
    if not (passed or give_up or progress.gave_up):
        raise click.UsageError(
            f"exercise {one.number} has {sum(progress.best.values())} of {one.points} points. Pass it first, or give "
            f"up: rownorm learn solution {one.number} --give-up"
        )
    if give_up and not passed and not progress.gave_up:
        progress.gave_up = True
        write(one, home, progress)
    if out is not None:
        refuse_taken(out)
        for file, content in one.right().items():
            write_whole(out / file, content)
        click.echo(f"{count(len(one.right()), 'file')} in {out}")
        return
    for file, content in one.right().items():
        click.echo(f"==== {file}\n{content.decode()}")


@command.command(epilog=examples("rownorm learn submit --out submission", "rownorm learn submit 6"))
@NAME
@HOME
@click.option("--out", type=FOLDER, default=Path("submission"), show_default=True)
def submit(name: str | None, folder: Path | None, out: Path) -> None:
    """Write a folder to hand in: your files, and scores.json with the points of each part.

    EXERCISE is by default the FlashInfer-Bench Solution. Its folder has triton_rmsnorm.py, create_solution.py,
    benchmark.py, traces.json and analysis.md. Points are those of the last checks.
    """
    from .progress import home_folder
    from .submission import DEFAULT, write_submission

    home = home_folder(folder)
    one = _found(name or DEFAULT)
    progress = _progress(one, home)
    refuse_taken(out)
    files, missing = write_submission(one, home, progress, out)
    points, waiting = sum(progress.best.values()), sum(progress.pending.values())
    click.echo(
        f"{count(len(files), 'file')} in {out}: {points} of {one.points} points, {waiting} wait for a GPU"
    )
    for file in missing:
        click.echo(f"missing: {file}", err=True)


def _found(name: str) -> Exercise:
    """The exercise of a number or a name; a usage error that lists them."""
    from .catalog import exercises

    known = exercises()
    if name.isdecimal() and int(name) in known:
        return known[int(name)]
    fitting = [one for one in known.values() if name.lower() in one.folder]
    if len(fitting) == 1 and not name.isdecimal():
        return fitting[0]
    names = [one.folder for one in known.values()]
    raise click.BadParameter(unknown("exercise", name, names), param_hint="'EXERCISE'")


def _chosen(name: str | None, home: Path) -> Exercise:
    from .progress import current

    one = _found(name) if name else current(home)
    if one is None:
        raise click.UsageError(
            f"no exercise was started in {home}: rownorm learn start 1, or --folder with your folder"
        )
    return one


def _progress(one: Exercise, home: Path) -> Progress:
    from .progress import Damaged, folder_of, read

    try:
        found = read(one, home)
    except Damaged as error:
        raise click.ClickException(str(error)) from None
    if found is None:
        raise click.UsageError(
            f"exercise {one.number} is not in {folder_of(one, home)}: rownorm learn start {one.number}"
        )
    return found


def _program() -> str:
    """The command as it was called, so that it can be copied."""
    called = Path(sys.argv[0])
    return "rownorm" if called.name != "rownorm" or called.parent.name != "bin" else str(called)
