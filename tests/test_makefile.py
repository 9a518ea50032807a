"""``make``: wheels, release and site, each with an environment of its own; ``clean`` removes only what make created."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")

# Stands in for Python. It makes environments with itself as the interpreter, and writes down what it is asked for.
PYTHON = """#!/bin/sh
echo "$*" >> "$LOG"
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *"pip wheel"*) mkdir -p dist && touch dist/rownorm.whl ;;
esac
"""


@pytest.fixture
def tree(tmp_path):
    """A tree with the Makefile and what it reads."""
    tree = tmp_path / "tree"
    for folder in ("examples", "lab", "src", "tests/__pycache__", "tools"):
        (tree / folder).mkdir(parents=True)
    shutil.copytree(ROOT / "constraints", tree / "constraints")
    for name in ("Makefile", "pyproject.toml", "lab/pyproject.toml"):
        shutil.copy(ROOT / name, tree / name)
    python = tree / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return tree


def make(tree, *arguments, status=0):
    """(what was printed, what Python was asked for)"""
    log = tree / "log"
    log.write_text("")
    # Without the settings of a make that runs these tests.
    settings = ("MAKE", "MFLAGS", "VENV", "TORCH", "TESTS", "WORKERS", "NEWEST", "PIP_CONSTRAINT")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(settings)}
    environment["LOG"] = str(log)
    ran = subprocess.run(
        ["make", "--no-print-directory", f"PYTHON={tree / 'python'}", *arguments],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert (ran.returncode != 0) == (status != 0), ran.stdout
    return ran.stdout, log.read_text()


def test_wheel_installs_setuptools_only(tree):
    _, asked = make(tree, "wheel")
    installed = [line.split("install ")[1] for line in asked.splitlines() if "install" in line]
    assert installed == ["--quiet setuptools"]
    assert (tree / "dist/rownorm.whl").exists()
    assert not (tree / ".venv").exists()
    _, asked = make(tree, "wheel")
    assert "install" not in asked  # the second time


def test_release_builds_both_distributions_then_checks_and_tries_them(tree):
    _, asked = make(tree, "release", f"VENV={tree / 'own'}")
    steps = ("-m build --no-isolation --outdir dist .", "-m build --no-isolation --outdir dist lab")
    steps += ("-m twine check --strict dist/*", "tools/try_wheels.py dist")
    assert asked.splitlines()[-4:] == list(steps)
    assert "install --quiet build setuptools twine" in asked
    assert (tree / ".venvs/release/.stamp").exists()


def test_docs_need_zensical_only_and_end_with_the_check_of_links(tree):
    _, asked = make(tree, "docs")
    installed = [line.split("install ")[1] for line in asked.splitlines() if "install" in line]
    assert installed == ["--quiet zensical"]
    assert not (tree / ".venv").exists()
    assert asked.splitlines()[-3:] == [
        "tools/docs_site.py write build/docs",
        "-m zensical build --clean --strict",
        "tools/docs_site.py check site",
    ]


def test_frameworks_are_installed_in_a_folder_of_their_own(tree):
    """In the versions of their file, or the newest, and without what they require; then their tests run."""
    settings = (f"VENV={tree / 'own'}",)
    _, asked = make(tree, "test-frameworks", *settings)
    pip, tests = asked.splitlines()[-2:]
    assert "--no-deps --target .venvs/frameworks --requirement" in pip
    assert tests == "-m pytest tests/integrations lab/tests/fib/test_for_flashinfer.py"
    file = tree / ".venvs/frameworks/requirements.txt"
    assert file.read_text() == (ROOT / "constraints/frameworks.txt").read_text()
    shutil.rmtree(tree / ".venvs")
    make(tree, "test-frameworks", "NEWEST=1", *settings)
    assert "\nvllm\n" in file.read_text()
    make(tree, "clean", *settings)
    assert not (tree / ".venvs").exists()


def test_clean_removes_what_make_created(tree):
    make(tree, "check")
    make(tree, "check", "VENV=.venvs/torch-2.15", "TORCH=2.15")
    make(tree, "wheel")
    make(tree, "docs")
    for page in ("site/index.html", "build/docs/index.md", ".cache/page"):
        (tree / page).parent.mkdir(parents=True)
        (tree / page).touch()
    for work in ("results/mine/records.jsonl", "learn/01_basics/kernel.py", "traces/mine.json"):
        (tree / work).parent.mkdir(parents=True)
        (tree / work).touch()
    make(tree, "clean")
    for gone in (".venv", ".venvs", ".cache", "build", "dist", "site", "tests/__pycache__"):
        assert not (tree / gone).exists()
    for kept in ("results/mine/records.jsonl", "learn/01_basics/kernel.py", "traces/mine.json"):
        assert (tree / kept).exists()
    make(tree, "clean")  # nothing to do


def test_clean_refuses_a_folder_that_make_did_not_create(tree, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "thesis.txt").touch()
    printed, _ = make(tree, "clean", f"VENV={own}", status=2)
    assert f"make did not create {own}" in printed
    # Also after make has installed into it.
    make(tree, "check", f"VENV={own}")
    assert (own / ".stamp").exists()
    make(tree, "clean", f"VENV={own}", status=2)
    assert (own / "thesis.txt").exists()
    make(tree, "clean", "VENV=")
    assert (own / "thesis.txt").exists()


def test_help_says_what_clean_keeps(tree):
    printed, _ = make(tree, "help")
    assert "except results/ and learn/" in printed
