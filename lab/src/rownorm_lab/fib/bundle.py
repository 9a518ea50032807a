"""The library's own source files as a package that needs no rownorm.

A self-contained Solution holds every file that ``rownorm.ops.into`` imports, directly or not, unchanged and at its
place below ``rownorm/``: kernels, planner with its tuned table, launcher with its C files. Relative imports then work
as they are, plans are the same as those of the installed package, and nothing is copied by hand. A package that is
imported only as the parent of a file is reduced to its docstring, so that it does not import the rest of the library.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import rownorm

Module = tuple[str, ...]  # the path of a module below rownorm


ROOT = Path(rownorm.__file__).parent
ENTRY: Module = ("ops", "into")


@cache
def sources() -> dict[str, str]:
    """Path below ``rownorm/`` to text, for all files that ``into.py`` needs."""
    whole: set[Module] = set()
    waiting = [ENTRY]
    while waiting:
        module = waiting.pop()
        if module not in whole:
            whole.add(module)
            waiting += _imports(module)
    parents = {module[:n] for module in whole for n in range(len(module))} - whole
    files = {_file(module): _file(module).read_text() for module in whole}
    files |= {_file(module): _docstring(_file(module)) for module in parents}
    files |= {data: data.read_text() for module in whole for data in _data(module)}
    return {str(file.relative_to(ROOT)): files[file] for file in sorted(files)}


def _file(module: Module) -> Path:
    """The file of a module or a package."""
    path = ROOT.joinpath(*module)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _imports(module: Module) -> Iterator[Module]:
    """The modules of the library that a module imports, inside functions too."""
    file = _file(module)
    package = module if file.name == "__init__.py" else module[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        base = package[: len(package) - node.level + 1]
        target = (*base, *(node.module.split(".") if node.module else ()))
        submodules = [(*target, alias.name) for alias in node.names]
        found = [one for one in submodules if _file(one).is_file()]
        yield from found
        if len(found) < len(submodules):  # a name of the package itself
            yield target


def _data(module: Module) -> Iterator[Path]:
    """The files of a package that are not Python: C sources, tables."""
    folder = ROOT.joinpath(*module)
    for path in folder.rglob("*") if folder.is_dir() else ():
        if path.is_file() and path.suffix in (".c", ".json"):
            yield path


def _docstring(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text())) or file.parent.name
    return f'"""{text.splitlines()[0]}"""\n'
