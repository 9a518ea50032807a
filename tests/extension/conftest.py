"""Fixtures: a small extension in a cache of its own, compilers that are scripts, and new processes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rownorm import extension

REAL = shutil.which("gcc") or shutil.which("clang") or "cc"
SOURCE = """
#include <Python.h>
static int run(PyObject *module) { return PyModule_AddIntConstant(module, "value", 41); }
static PyModuleDef_Slot slots[] = {{Py_mod_exec, run}, {0, NULL}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "dummy", NULL, 0, NULL, slots};
PyMODINIT_FUNC PyInit_dummy(void) { return PyModuleDef_Init(&module); }
"""
# The package alone: importing rownorm would import torch, which takes a second.
# Interrupts end it, also where they are ignored because the tests run in the background.
HEAD = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.append(sys.argv[1])
import extension
from pathlib import Path
extension.compilers.LOAD = str(Path(sys.argv[2]).with_name("load"))
def dummy(**settings):
    return extension.Extension("dummy", (Path(sys.argv[2]),), **settings)
"""


# The same, but it creates a file as soon as it is loaded.
EVIL = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void run_it(void) { fclose(fopen(getenv("IT_RAN"), "w")); }
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """The small module, and the evil one, compiled once for all tests."""
    folder, paths = tmp_path_factory.mktemp("libraries"), []
    for name, text in (("good", SOURCE), ("evil", EVIL + SOURCE)):
        (folder / f"{name}.c").write_text(text)
        paths.append(folder / f"{name}.so")
        command = [REAL, "-shared", "-fPIC", f"-I{extension.python_headers()}"]
        subprocess.run([*command, f"{folder / name}.c", "-o", paths[-1]], check=True)
    return paths


@pytest.fixture
def source(tmp_path):
    """A small module in C, in a file."""
    file = tmp_path / "dummy.c"
    file.write_text(SOURCE)
    return file


@pytest.fixture
def dummy(source):
    """A function that describes a small extension."""
    return lambda **settings: extension.Extension("dummy", (source,), **settings)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch, compiler):
    """The folder of Triton's cache; it does not exist yet. Nothing is kept outside of ``tmp_path``."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(extension.folders, "_temporary", lambda: [temporary])
    # Whatever else this machine does, it is not busy.
    (tmp_path / "load").write_text("0.50 0.50 0.50 1/100 1234\n")
    monkeypatch.setattr(extension.compilers, "LOAD", str(tmp_path / "load"))
    compiler("compile")
    extension.compilers.version.cache_clear()
    extension.folders._of_this_process.cache_clear()
    yield tmp_path / "triton"
    extension.folders._of_this_process.cache_clear()


@pytest.fixture
def compiler(tmp_path, monkeypatch, libraries):
    """A function that makes the C compiler a script, which counts its compilations in ``started``.

    ``compile`` in the script does what a compiler would do with the small module.
    """

    def use(*lines, name="compiler"):
        script = tmp_path / name
        head = ("#!/bin/sh", 'test "$1" = --version && exec echo "my compiler 1.0"')
        head += (f"echo once >> {tmp_path}/started", f"compile() {{ cp {libraries[0]} built; }}")
        script.write_text("\n".join((*head, *lines)))
        script.chmod(0o755)
        monkeypatch.setenv("CC", str(script))
        return script

    return use


@pytest.fixture
def real_compiler(monkeypatch):
    """The compiler is a real one."""
    monkeypatch.setenv("CC", REAL)
    return REAL


@pytest.fixture
def started(tmp_path):
    """A function that returns how often the script of ``compiler`` compiled."""
    file = tmp_path / "started"
    return lambda: len(file.read_text().split()) if file.exists() else 0


@pytest.fixture
def process(source):
    """A function that starts a new Python process, in which ``extension`` and ``dummy`` are defined."""

    def start(code, *arguments, **settings) -> subprocess.Popen:
        folder = str(Path(extension.__file__).parent.parent)
        command = [sys.executable, "-c", HEAD + code, folder, str(source), *map(str, arguments)]
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | settings
        return subprocess.Popen(command, **settings)

    return start


@pytest.fixture
def other_user():
    """The id of a user without an entry in the list of users."""
    if os.geteuid() != 0:
        pytest.skip("only root can make files of another user")
    return 12345
