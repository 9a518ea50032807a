"""The structure of library and lab: floors, commands apart, one door to the library, a docstring everywhere."""

import ast
import importlib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import click

import rownorm
import rownorm_course
import rownorm_lab
from lab_support.lab_commands import invoke
from rownorm_lab import main

# Top to bottom. A room imports rooms of lower floors only.
FLOORS = (
    ("commands", "course", "main", "__main__"),
    ("fib",),
    ("command_line", "compiled", "models"),
    ("page", "measure", "cluster"),
    ("profilers", "providers", "device", "interpreter"),
    ("data", "version"),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# The same of the library.
LIBRARY_FLOORS = (
    ("integrations", "inside"),
    ("patching",),
    ("nn",),
    ("functional", "explain", "integration"),
    ("ops",),
    ("launch",),
    ("kernels",),
    ("reference",),
    ("program",),
    ("extension", "version", "_ops"),
)
LIBRARY_FLOOR_OF = {room: floor for floor, rooms in enumerate(LIBRARY_FLOORS) for room in rooms}
LIBRARY = Path(rownorm.__file__).parent
ROOTS = [Path(package.__file__).parent for package in (rownorm_lab, rownorm_course)]
FILES = sorted(
    file for root in ROOTS for file in root.rglob("*.py") if "exercises" not in file.parts
)


def module_of(file):
    (root,) = (root for root in (*ROOTS, LIBRARY) if file.is_relative_to(root))
    names = file.relative_to(root.parent).with_suffix("").parts
    return names[:-1] if names[-1] == "__init__" else names


@cache
def imports_of(file):
    """(module, name) of every import, inside functions too."""
    found = []
    module = module_of(file)
    package = module if file.name == "__init__.py" else module[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += ((tuple(alias.name.split(".")), "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            target = (*base, *(node.module or "").split(".")) if node.module else base
            found += ((target, alias.name) for alias in node.names)
    return found


def room_of(module, name=""):
    """The room of a module, or of a name imported from the package itself; None for the package."""
    if module[0] == "rownorm_course":
        return "course"
    return (*module, name)[1] or None


def rooms_that(file):
    own = room_of(module_of(file))
    for target, name in imports_of(file):
        if target[0] in ("rownorm_lab", "rownorm_course"):
            room = room_of(target, name)
            if room is not None and room != own:
                yield own, room, target


def test_imports_go_down():
    for file in FILES:
        for own, room, target in rooms_that(file):
            if own is not None:
                assert FLOOR_OF[room] > FLOOR_OF[own] or (own, room) == ("__main__", "main"), (
                    f"{file} imports {'.'.join(target)}"
                )


def test_imports_of_the_library_go_down():
    """The door imports what it shows, and nothing imports an integration but its framework."""
    for file in sorted(LIBRARY.rglob("*.py")):
        own = room_of(module_of(file))
        for target, name in imports_of(file):
            if target[0] == "rownorm" and own is not None:
                room = room_of(target, name)
                assert room == own or (
                    room is not None and LIBRARY_FLOOR_OF[room] > LIBRARY_FLOOR_OF[own]
                ), f"{file} imports {'.'.join(target)} {name}"


def test_no_files_import_each_other():
    """No circle of imports between files either, not even inside a folder or inside functions."""
    files = {module_of(file): file for file in (*FILES, *LIBRARY.rglob("*.py"))}
    order = TopologicalSorter()
    for module, file in files.items():
        for target, name in imports_of(file):
            of = next((one for one in ((*target, name), target) if one in files), module)
            if of != module:
                order.add(module, of)
    order.prepare()  # raises CycleError, which names the files of a circle


def test_no_command_imports_another():
    """Nor does the course import a command."""
    for file in FILES:
        own = module_of(file)[:3]
        for target, name in imports_of(file):
            if target[:2] == ("rownorm_lab", "commands"):
                assert (*target, name)[:3] == own, f"{file} imports {'.'.join(target)}"


def test_the_library_has_one_door():
    """The lab imports public names of rownorm, its modules for users, and what ``rownorm.inside`` lists."""
    public = {"", *rownorm.__all__}
    for file in FILES:
        for target, name in imports_of(file):
            if target[0] != "rownorm":
                continue
            where = f"{file} imports {name} from {'.'.join(target)}"
            if target == ("rownorm", "inside"):
                assert name in importlib.import_module("rownorm.inside").__all__, where
            elif target == ("rownorm",):
                assert name in public, where
            else:
                assert target in (("rownorm", "nn"), ("rownorm", "functional")), where


def test_everything_behind_the_door_is_used():
    used = {
        name for file in FILES for target, name in imports_of(file) if target[1:] == ("inside",)
    }
    assert used == set(importlib.import_module("rownorm.inside").__all__)


def test_the_library_knows_nothing_of_the_lab():
    for file in Path(rownorm.__file__).parent.rglob("*.py"):
        assert "rownorm_lab" not in file.read_text(), file


def test_public_names_are_documented():
    """Except provider functions, which their decorator describes, and the plain kernels."""
    for file in FILES:
        tree = ast.parse(file.read_text())
        assert ast.get_docstring(tree), file
        for node in tree.body if file.parent.name != "kernels" else ():
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                provider = any(ast.unparse(d).startswith("provider(") for d in node.decorator_list)
                assert provider or ast.get_docstring(node), f"{file}: {node.name}"


def test_a_new_command_needs_its_file_and_one_line(monkeypatch):
    @click.command("hello")
    def command():
        """Say hello."""
        click.echo("hello")

    module = type("module", (), {"command": command})
    loaded = []
    monkeypatch.setitem(main.COMMANDS, "hello", "Say hello.")
    monkeypatch.setattr(main, "import_module", lambda name: loaded.append(name) or module)
    assert "Say hello." in invoke("--help").output
    assert not loaded
    assert invoke("hello").output == "hello\n"
    assert set(loaded) == {"rownorm_lab.commands.hello.command"}


def test_the_version_is_the_librarys():
    assert importlib.import_module("rownorm_lab.version").__version__ == rownorm.__version__
    requirement = f'"rownorm=={rownorm.__version__}"'
    assert requirement in (Path(__file__).parents[1] / "pyproject.toml").read_text()
