"""Wheels and source distributions of a folder of this repository: building them, and what they must contain."""

import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command, **settings):
    """What a command prints; the test fails if the command does."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False, **settings)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def source_copy(folder, copy, files, strays):
    """A copy of what a package is built from, with stray files, because building writes files next to the sources.

    folder: with the pyproject.toml, below the root. files: beside it. strays: below src.
    """
    # From the metadata, because importing setuptools fails after distutils was imported.
    installed = {one.name.lower(): one.version for one in metadata.distributions()}
    if "pip" not in installed or int(installed.get("setuptools", "0").split(".")[0]) < 77:
        pytest.skip("needs pip and setuptools 77 or newer to build the wheel")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / folder / "src", copy / "src", ignore=ignored)
    for name in files:
        (copy / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / folder / name, copy / name)
    for name in ("tests/test_a.py", "tests/support/__init__.py", *(f"src/{one}" for one in strays)):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("stray")
    return copy


def built_wheel(source, folder):
    """The wheel of a source folder or an sdist, built into ``folder``."""
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "--wheel-dir", str(folder), str(source))
    (built,) = folder.glob("*.whl")
    return built


def files_in(wheel):
    """The files of a wheel without its metadata."""
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def assert_complete(shipped, folder, not_shipped=frozenset()):
    """These are the files under src: all that git tracks, and no others except new ones."""

    def listed(*options):
        names = run("git", "ls-files", *options, "src", cwd=ROOT / folder).splitlines()
        there = {name for name in names if (ROOT / folder / name).exists()}
        return {name.removeprefix("src/") for name in there} - not_shipped

    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs the git repository for the list of files")
    tracked = listed()
    assert not tracked - shipped
    assert not shipped - tracked - listed("--others", "--exclude-standard")
