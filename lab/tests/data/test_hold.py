"""One process at a time in a folder of results."""

import os
import subprocess
import sys

import pytest

from lab_support.lab_commands import TINY, TWO_PROVIDERS, invoke
from rownorm_lab.data.hold import FILE, InUse, hold

HOLDS = """
import sys
from pathlib import Path
from rownorm_lab.data.hold import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    input()
"""


def test_a_second_process_is_told_who_is_there(tmp_path):
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(InUse, match=f"in use by process {other.pid} on "), hold(tmp_path / "out"):  # fmt: skip
            pass
        other.kill()  # a lock ends with its process, however it ends
        other.wait()
    with hold(tmp_path / "out"):
        assert str(os.getpid()) in (tmp_path / "out" / FILE).read_text()
    assert not (tmp_path / "out" / FILE).exists()


@pytest.mark.usefixtures("command_line")
def test_bench_does_not_write_into_a_folder_that_another_writes(tmp_path):
    assert invoke("bench", *TINY, *TWO_PROVIDERS, "--out", "made").exit_code == 0
    with hold(tmp_path / "made"):
        ran = invoke("bench", "--resume", "made")
    assert ran.exit_code == 2
    assert "made is in use by process" in " ".join(ran.output.split())
    assert invoke("bench", "--resume", "made").exit_code == 0


def test_a_folder_that_stays_empty_is_removed(tmp_path):
    with hold(tmp_path / "new"):
        pass
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with hold(tmp_path / "old"):
        pass
    assert (tmp_path / "old").exists()
