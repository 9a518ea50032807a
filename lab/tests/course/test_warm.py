"""The process that stays behind after a check."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from rownorm_course import warm
from rownorm_course.catalog import exercises

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="nothing stays on a GPU")
STAYS_S = "5"


@pytest.fixture
def run_folder():
    """Where the socket is: its name may have 107 characters, and tmp_path has nearly as many."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def learn(tmp_path, run_folder, monkeypatch):
    """``rownorm learn`` in a process of its own, which names what it imports."""
    monkeypatch.chdir(tmp_path)
    environment = os.environ | {
        "ROWNORM_LEARN_WARM_S": STAYS_S,
        "XDG_RUNTIME_DIR": str(run_folder),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "rownorm_lab", "learn", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_check_is_done_by_the_process_that_stays(learn, run_folder):
    """The commands themselves do not import torch. The process ends when nobody has asked for a while."""
    begun = learn("start", "0")
    puzzles = Path("learn/00_warmup/puzzles.py")
    right = exercises()[0].right()["puzzles.py"]
    puzzles.write_bytes(right)
    passed = learn("check", "0", "--part", "mask")
    puzzles.write_bytes(
        right.replace(b"tl.load(x_ptr + lanes, mask=ok)", b"tl.load(x_ptr + lanes)")
    )
    failed = learn("check", "0", "--part", "mask")
    for ran in (begun, passed, failed):
        assert " torch\n" not in ran.stderr
    assert passed.returncode == 0
    assert "12 of 100 points" in passed.stdout
    assert failed.returncode == 1
    assert "an active lane leaves its tensor" in failed.stdout
    assert "12 of 100 points" not in failed.stdout.split("best so far")[0]
    refused = learn("check", "0", "--part", "mask", "--folder", "elsewhere")
    assert refused.returncode == 2
    folder = run_folder / f"rownorm-learn-{os.geteuid()}"
    assert folder.stat().st_mode & 0o077 == 0
    deadline = time.monotonic() + 60
    while list(folder.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not list(folder.iterdir())


def test_a_folder_of_others_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / f"rownorm-learn-{os.geteuid()}").mkdir(mode=0o777)
    (tmp_path / f"rownorm-learn-{os.geteuid()}").chmod(0o777)
    with pytest.raises(PermissionError):
        warm._place()


def test_other_sources_and_settings_have_another_process(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    first = warm._place()
    assert warm._place() == first
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    second = warm._place()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert len({first, second, warm._place()}) == 3
