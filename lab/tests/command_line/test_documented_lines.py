"""Command lines in the documents: every command exists, with every option that the line has."""

import re
import shlex
from pathlib import Path

import click
import pytest

from rownorm_lab.main import cli

ROOT = Path(__file__).parents[3]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "lab" / "src" / "rownorm_course" / "exercises").glob("*/*.md")),
]
LINE = re.compile(
    r"`((?:[A-Z_]+=\S* )*rownorm [a-z][^`]*)`|^    ((?:[A-Z_]+=\S* )*rownorm [a-z].*)$",
    re.MULTILINE,
)
PLACES = ("NAME", "COMMAND")  # of a command's name


def commands(command=cli, path=()):
    """Every command by its path, groups included."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))


def wrong(line):
    """What the command line does not have: a command or options."""
    known, path = dict(commands()), ()
    words = shlex.split(line.partition(" | ")[0].partition(" && ")[0], comments=True)
    rest = words[words.index("rownorm") + 1 :]
    while rest and (*path, rest[0]) in known:
        path = (*path, rest.pop(0))
    if (
        isinstance(known[path], click.Group)
        and rest
        and rest[0] not in PLACES
        and rest[0][0] != "-"
    ):
        return [rest[0]]
    options = {o for one in known[path].params for o in (*one.opts, *one.secondary_opts)} | {
        "--help"
    }
    if "--" in rest:
        rest = rest[: rest.index("--")]
    return [
        word for word in rest if word.startswith("--") and word.partition("=")[0] not in options
    ]


def lines_of(page):
    return [
        first or second for first, second in LINE.findall(page.read_text().replace("\\\n", " "))
    ]


def test_every_line_is_one_of_the_command():
    found = {page: lines_of(page) for page in PAGES}
    assert sum(map(len, found.values())) > 200
    assert not {
        (page.name, line): parts for page in PAGES for line in found[page] if (parts := wrong(line))
    }


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("rownorm bench --suite quick --outt results", ["--outt"]),
        ("rownorm fib chek results/fib", ["chek"]),
        ("ROWNORM_TABLES= rownorm no-command", ["no-command"]),
        ("rownorm profile --script train.py -- --batch 8", []),
        ("rownorm study NAME", []),
    ],
)
def test_wrong_lines_are_noticed(line, parts):
    assert wrong(line) == parts


def test_every_command_with_json_has_its_section():
    """docs/json.md: of a group of commands, the group's."""
    page = (ROOT / "docs" / "json.md").read_text()
    sections = {
        name for line in re.findall("^## (.*)$", page, re.MULTILINE) for name in line.split(", ")
    }
    print_json = {
        path
        for path, one in commands()
        if any("--json" in parameter.opts for parameter in one.params)
    }
    named = {path[0] if path[0] == "study" else " ".join(path) for path in print_json}
    assert named == sections
