"""The wheel of the lab: complete, without stray files, and it brings the command."""

import re
import zipfile

import pytest

from support.packages import ROOT, assert_complete, built_wheel, files_in, source_copy

# Files that lie beside those of the course in a developer's or a learner's tree.
STRAYS = (
    "rownorm_course/exercises/notes.md",
    "rownorm_course/exercises/02_rmsnorm/notes.txt",
    "rownorm_course/exercises/02_rmsnorm/starter/notes.md",
    "rownorm_course/exercises/02_rmsnorm/starter/rmsnorm.py.orig",
    "rownorm_course/exercises/02_rmsnorm/starter/__pycache__/rmsnorm.cpython-311.pyc",
    "rownorm_course/exercises/02_rmsnorm/solutions/right/__pycache__/rmsnorm.cpython-311.pyc",
    "rownorm_course/exercises/07_profiling/starter/profile/.DS_Store",
)
NOT_SHIPPED = {"rownorm_course/exercises/07_profiling/capture.sh"}  # a developer's script


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    files = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
    source = source_copy("lab", folder / "source", files, STRAYS)
    return built_wheel(source, folder)


def test_wheel_contains_lab_and_course_and_nothing_else(wheel):
    assert {"rownorm_lab/py.typed", "rownorm_lab/page/data/h200.json"} <= files_in(wheel)
    assert_complete(files_in(wheel), "lab", NOT_SHIPPED)


def test_wheel_has_the_licence(wheel):
    (name,) = (one for one in zipfile.ZipFile(wheel).namelist() if one.endswith("LICENSE"))
    assert zipfile.ZipFile(wheel).read(name) == (ROOT / "LICENSE").read_bytes()


def test_wheel_brings_the_command_and_needs_the_library(wheel):
    archive = zipfile.ZipFile(wheel)

    def text_of(ending):
        (name,) = (name for name in archive.namelist() if name.endswith(ending))
        return archive.read(name).decode()

    assert "rownorm = rownorm_lab.main:main" in text_of("entry_points.txt")
    needed = re.findall(r"^Requires-Dist: ([\w-]+)(?!.*extra ==)", text_of("METADATA"), re.M)
    assert needed[0] == "rownorm"
    assert not {"torch", "triton", "ray"} & set(needed)
