"""The wheel is complete and works without the source tree."""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
USE = """
import sys, torch, rownorm
x, weight = torch.randn(3, 100), torch.randn(100)
expected = torch.nn.functional.rms_norm(x, (100,), weight, 1e-6)
torch.testing.assert_close(rownorm.rms_norm(x, weight), expected)
print(rownorm.__version__, rownorm.__file__)
"""


def run(*command, **settings):
    ran = subprocess.run(command, capture_output=True, text=True, check=False, **settings)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    # From the metadata, because importing setuptools fails after distutils was imported.
    installed = {one.name.lower(): one.version for one in metadata.distributions()}
    if "pip" not in installed or int(installed.get("setuptools", "0").split(".")[0]) < 77:
        pytest.skip("needs pip and setuptools 77 or newer to build the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy, because building writes files next to the sources
    shutil.copytree(
        ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "--wheel-dir", str(folder), str(source))
    (built,) = folder.glob("rownorm-*.whl")
    return built


def test_contains_every_file_of_the_package(wheel):
    files = set(zipfile.ZipFile(wheel).namelist())
    sources = ROOT / "src"
    expected = {
        str(file.relative_to(sources))
        for file in sources.rglob("*")
        if file.is_file() and not {"__pycache__", "rownorm.egg-info"} & set(file.parts)
    }
    assert {"rownorm/py.typed", "rownorm_command.py"} <= expected
    assert {file for file in files if ".dist-info/" not in file} == expected
    assert any(file.endswith("licenses/LICENSE") for file in files)


def test_requires_torch_and_triton_only(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
    lines = archive.read(name).decode().splitlines()
    needed = [line for line in lines if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert [re.match(r"Requires-Dist: ([\w-]+)", line)[1] for line in needed] == ["torch", "triton"]


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
