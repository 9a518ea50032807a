"""One process at a time in a folder of results."""

import os
import subprocess
import sys

import pytest

from lab_support.lab_commands import TINY, TWO_PROVIDERS, invoke
from rownorm_lab.commands.bars import measure as bars_measure
from rownorm_lab.commands.bench import run as bench_run
from rownorm_lab.commands.profile import command as profile_command
from rownorm_lab.commands.study import measure as study_measure
from rownorm_lab.commands.tune import block_study, own
from rownorm_lab.compiled import analysis
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


MEASURING = (
    ("study", "llama", "--setting", "eager", "--size", "tiny", "--steps", 1),
    ("bars", "measure", "--part", "bf16", "--tiny"),
    ("profile", "rms_norm", "--rows", 4, "--cols", 16, "--dtype", "fp32", "--tools", "chrome"),
    ("bench", *TINY, *TWO_PROVIDERS),
    ("analyze", "rms_norm", "--cols", 64),
    ("tune", "--study", "--width", 64),
    ("tune", f"{__file__}:kernel", "--over", "BLOCK=64,128", "--signature", "*bf16"),
)


@pytest.fixture
def nothing_works(monkeypatch):
    """Fail if a command measures, profiles or compiles anything."""

    def works(*_, **__):
        raise AssertionError("the command began to work")

    for module, name in (
        (study_measure, "measure"),
        (bars_measure, "measure"),
        (profile_command, "collected"),
        (bench_run, "run_bench"),
        (analysis, "analyses_of"),
        (block_study, "analyses_of"),
        (own, "chosen_launch"),
    ):
        monkeypatch.setattr(module, name, works)


@pytest.mark.usefixtures("command_line", "nothing_works")
@pytest.mark.parametrize("command", MEASURING, ids=lambda command: command[0])
def test_a_second_command_with_one_out_says_who_is_there_and_stops(command, tmp_path):
    with hold(tmp_path / "out"):
        ran = invoke(*command, "--out", "out")
        assert os.listdir("out") == [FILE]
    assert ran.exit_code == 2, ran.output
    assert f"out is in use by process {os.getpid()}" in " ".join(ran.output.split())


@pytest.mark.usefixtures("command_line", "nothing_works")
@pytest.mark.parametrize("command", MEASURING, ids=lambda command: command[0])
def test_a_folder_that_cannot_be_made_is_found_before_the_work(command, tmp_path):
    (tmp_path / "file").touch()
    ran = invoke(*command, "--out", "file")
    assert ran.exit_code == 2
    assert "'file' is a file" in ran.output
    ran = invoke(*command, "--out", "file/below")
    assert isinstance(ran.exception, NotADirectoryError), ran.output


@pytest.mark.usefixtures("command_line")
def test_what_a_killed_process_left_does_not_refuse_its_folder(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / FILE).write_text("process 1 on another")
    ran = invoke("bench", *TINY, *TWO_PROVIDERS, "--out", "out")
    assert ran.exit_code == 0, ran.output
    assert os.listdir("out") != [FILE]


def test_a_folder_that_stays_empty_is_removed(tmp_path):
    with hold(tmp_path / "new"):
        pass
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with hold(tmp_path / "old"):
        pass
    assert (tmp_path / "old").exists()
