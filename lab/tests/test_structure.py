"""The structure of the lab: no circular imports between its folders, no large files, a docstring everywhere."""

import ast
from pathlib import Path

import click

import rownorm_lab
from lab_support.lab_commands import invoke
from rownorm_lab import main

LAB = Path(rownorm_lab.__file__).parent
FILES = sorted(file for file in LAB.rglob("*.py"))


def folder_of(file):
    parts = file.relative_to(LAB).parts
    return parts[0].removesuffix(".py")


def imports_of(file):
    """The folders of the lab that a file imports, inside functions too."""
    package = ["rownorm", "lab", *file.relative_to(LAB).parent.parts]
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
        names = [name for name in base if name]
        if names[:2] == ["rownorm", "lab"]:
            yield from names[2:3] or (alias.name for alias in node.names)


def test_folders_import_each_other_without_a_circle():
    graph = {}
    for file in FILES:
        graph.setdefault(folder_of(file), set()).update(imports_of(file))
    graph = {name: used - {name} for name, used in graph.items()}
    while graph:
        free = {name for name, used in graph.items() if not used & graph.keys()}
        assert free, f"a circle among {graph}"
        graph = {name: used for name, used in graph.items() if name not in free}


def test_files_are_short_and_public_names_documented():
    """Except provider functions, which their decorator describes, and the plain kernels."""
    for file in FILES:
        text = file.read_text()
        assert len(text.splitlines()) <= 400, file
        tree = ast.parse(text)
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
    assert set(loaded) == {"rownorm_lab.hello.command"}
