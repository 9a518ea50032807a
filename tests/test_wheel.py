"""Wheel and sdist: complete, without stray files, described for a package index; they work without the source tree."""

import email
import email.policy
import os
import re
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from support.packages import ROOT, assert_complete, built_wheel, files_in, run, source_copy

USE = """
import sys, torch, rownorm
x, weight = torch.randn(3, 100), torch.randn(100)
expected = torch.nn.functional.rms_norm(x, (100,), weight, 1e-6)
torch.testing.assert_close(rownorm.rms_norm(x, weight), expected)
print(rownorm.__version__, rownorm.__file__)
"""


# Files that lie beside those of the package in a developer's tree.
STRAYS = ("rownorm/notes.md", "rownorm/launch/native/eager.o", "rownorm/ops/norms.py.orig")
FILES = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "docs/package-index.md")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return source_copy(".", tmp_path_factory.mktemp("source") / "rownorm", FILES, STRAYS)


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    return built_wheel(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    run(sys.executable, "-c", build, cwd=source)
    (built,) = folder.glob("rownorm-*.tar.gz")
    return built


def test_wheel_contains_the_files_of_the_package_and_no_others(wheel):
    assert "rownorm/py.typed" in files_in(wheel)
    assert_complete(files_in(wheel), ".")
    assert any(name.endswith("licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())


def test_sdist_contains_what_the_wheel_is_built_from_and_no_tests(sdist):
    with tarfile.open(sdist) as archive:
        files = {one.name.partition("/")[2] for one in archive if one.isfile()}
    sources = {name.removeprefix("src/") for name in files if name.startswith("src/")}
    assert_complete({name for name in sources if "egg-info" not in name}, ".")
    assert {name for name in files if not name.startswith("src/")} == {
        "LICENSE",
        "MANIFEST.in",
        "PKG-INFO",
        "README.md",
        "docs/package-index.md",
        "pyproject.toml",
        "setup.cfg",
    }


@pytest.mark.exhaustive
def test_sdist_builds_the_same_wheel(sdist, wheel, tmp_path):
    assert files_in(built_wheel(sdist, tmp_path)) == files_in(wheel)


@pytest.fixture(scope="module")
def described(wheel):
    """The metadata, as a package index reads it."""
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
    return email.message_from_bytes(archive.read(name), policy=email.policy.default)


def test_metadata(described):
    assert described["Author"] == "rownorm contributors"
    urls = dict(line.split(", ") for line in described.get_all("Project-URL"))
    assert {"Repository", "Documentation", "Issues"} <= urls.keys()
    versions = {f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)}
    assert versions <= set(described.get_all("Classifier"))


def test_description_works_on_a_package_index(described):
    """No link is relative, and the examples are the first ones of README.md, which a test runs."""
    description = described.get_content()
    links = re.findall(r"\]\(([^)]*)\)", description)
    assert links
    assert all(link.startswith("https://") for link in links)
    example = re.compile(r"```python\n.*?```", re.S)
    assert example.findall(description) == example.findall((ROOT / "README.md").read_text())[:2]


def test_requires_torch_and_triton_only(described):
    needed = [line for line in described.get_all("Requires-Dist") if "extra ==" not in line]
    assert [re.match(r"[\w-]+", line)[0] for line in needed] == ["torch", "triton"]


def test_works_in_an_empty_environment(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=False)
    python = str(tmp_path / "venv" / "bin" / "python")
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        str(wheel),
        # With a path to src, where builds leave metadata, pip would take the wheel for installed.
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    # torch and triton come from the environment of the tests. Its editable packages are not on this path.
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    shared = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "shared.pth").write_text("\n".join(shared))
    for interpret in ("0", "1"):  # plain PyTorch, then the kernels
        environment = os.environ | {"TRITON_INTERPRET": interpret}
        version, file = run(python, "-I", "-c", USE, cwd=tmp_path, env=environment).split()
        assert Path(file).is_relative_to(packages)
        assert version
