"""Mishaps that end in a message: too many shapes, plain terminals, damaged lines, paths with spaces, users' errors."""

import os
import subprocess
import sys

import pytest

from lab_support.lab_commands import TINY, TWO_PROVIDERS, invoke, refused, small_record, write_run
from rownorm_lab.data.shapes import parse_shapes
from rownorm_lab.profilers import ncu_csv

pytestmark = pytest.mark.usefixtures("command_line")


def test_shapes_are_counted_before_they_are_made():
    told = " ".join(refused("bench", "--shape", "4x1..100000000:1", "--list").split())
    assert "100,000,000 shapes, and 10,000 are the most" in told
    assert len(parse_shapes("4x1..10000:1")) == 10_000
    told = refused("bench", "--shape", "4x1..10000:1", "--dtype", "bf16,fp32", "--list")
    assert "has 20,000 cases, and 10,000 are the most" in " ".join(told.split())


def test_a_terminal_that_has_ascii_only():
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-m", "rownorm_lab", "bench", *TINY, *TWO_PROVIDERS]
    ran = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert b" us" in ran.stdout
    ran.stdout.decode("ascii")


def test_equal_reasons_are_one_line(tmp_path):
    folder = write_run("made", small_record())
    text = (folder / "records.jsonl").read_text()
    newer = text.replace('"schema":1', '"schema":99')
    (folder / "records.jsonl").write_text(text + 50 * newer)
    ran = invoke("report", folder, "--no-plots")
    assert ran.output.count("a newer rownorm wrote it") == 1
    assert "50 lines, the first is 2, cannot be used: schema 99" in ran.output


def test_a_path_with_a_space_is_quoted():
    ran = invoke("bench", *TINY, *TWO_PROVIDERS, "--out", "my run")
    assert "Next: rownorm report 'my run'" in ran.output
    ran = invoke("bench", *TINY, *TWO_PROVIDERS, "--out", "my run")
    assert "--resume 'my run'" in " ".join(ran.output.split())


def test_a_table_of_ncu_that_is_cut_inside_its_header():
    header = '"ID","Process ID","Process Name","Host Name","Kernel Name","gpu__time_du'
    for cut in (header, header[:20], f'{header}ration.sum"\n'):
        with pytest.raises(ValueError, match=r"cut off|not the CSV"):
            ncu_csv.parse(cut)


def test_patch_shows_the_users_error_without_ours(tmp_path):
    (tmp_path / "broken_models.py").write_text("def make():\n    raise KeyError('layers')\n")
    (tmp_path / "broken_module.py").write_text("x = 1 / 0\n")
    for place, said in (
        ("broken_models:make", "broken_models:make failed: KeyError: 'layers'"),
        ("broken_module:make", "broken_module cannot be imported: ZeroDivisionError"),
    ):
        ran = invoke("patch", place)
        assert ran.exit_code == 1
        assert said in ran.output
        assert "Traceback" not in ran.output
        assert ran.exception is None or isinstance(ran.exception, SystemExit)


def test_tensor_parallel_openfold_says_first_that_it_cannot_be():
    told = refused("train", "openfold", "--parallel", "tensor")
    assert "for openfold use --parallel ddp or fsdp" in " ".join(told.split())
