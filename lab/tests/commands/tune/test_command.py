"""``rownorm tune`` on a machine without a GPU: what it refuses, and what it can do there."""

import re

import msgspec
import pytest

from lab_support.analyses import made_up
from lab_support.lab_commands import invoke, refused, without_torch
from rownorm_lab.data import analyses
from rownorm_lab.data.analysis_tables import best_of, text_of
from rownorm_lab.data.tuning_tables import fusion_text
from rownorm_lab.data.tunings import (
    REQUEST,
    STUDY,
    Fusion,
    FusionStudy,
    TuneRequest,
    Way,
    read,
    write,
)
from rownorm_lab.device.environment import environment
from support.compiled import json_of

pytestmark = pytest.mark.usefixtures("command_line")


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "there is no GPU here to tune for. Without one, --list"),
        ("--dtype bf16,fp16", "bf16 and fp16 share the entries of a table"),
        ("--study --verify 3", "--study does not use --verify"),
        ("--study --pass backward", "--study does not use --pass"),
        ("--list --out here", "--list does not use --out"),
        ("--verify 3 --width 64", "--verify does not use --width"),
        ("--blocks 64", "only --list and --study use --blocks"),
        ("--verify 3", "ships no table for"),
        ("--target sm_75 --list", "unknown target 'sm_75'"),
        ("--study --blocks 100", "a block size is a power of two"),
        ("--study --blocks 64,x", "got 'x'"),
        ("--update nothing.json", "does not exist"),
        ("--limit-s nan", "nan is not a number to calculate with"),
    ],
)
def test_bad_input_is_refused(arguments, message, monkeypatch):
    monkeypatch.setattr("rownorm_lab.compiled.compile.INTERPRETING", False)
    assert message in " ".join(refused("tune", *arguments.split()).split())


def test_a_folder_that_tune_has_not_written_is_not_resumed(tmp_path):
    (tmp_path / "other").mkdir()
    ran = invoke("tune", "--resume", "other")
    assert ran.exit_code == 2
    assert "not a folder that tune has written" in ran.output
    (tmp_path / "other" / REQUEST).write_text('{"environment": 3}')
    ran = invoke("tune", "--resume", "other")
    assert ran.exit_code == 2
    assert "cannot be read" in ran.output


def test_a_folder_of_another_machine_is_not_resumed(tmp_path):
    other = msgspec.structs.replace(environment(), device="NVIDIA H100", arch="sm_90")
    write(tmp_path / "other", REQUEST, TuneRequest(environment=other))
    ran = invoke("tune", "--resume", "other")
    assert ran.exit_code == 2
    assert re.search(r"device is .*, not NVIDIA H100", " ".join(ran.output.split()))


def test_help_needs_no_torch():
    ran = without_torch("tune", "--help")
    assert ran.returncode == 0, ran.stderr
    assert "rownorm tune --study --width 4096" in ran.stdout


_RUN = """
import json, os, sys
from click.testing import CliRunner
from rownorm_lab.main import cli
os.chdir(sys.argv[1])
outputs = []
for line in sys.argv[2:]:
    ran = CliRunner().invoke(cli, line.split())
    outputs.append([ran.exit_code, ran.output])
print(json.dumps(outputs))
"""
LIST = "tune --list --width 8 --op rms_norm --pass forward --dtype bf16"
STUDIED = "tune --study --width 512 --blocks 64,512 --out studied"


def test_candidates_and_predictions_need_no_gpu(tmp_path, triton_cache):
    """Compiled for an H200, in a process without the interpreter."""
    commands = ["-c", _RUN, str(tmp_path), LIST, STUDIED, "report studied"]
    listed, studied, report = json_of(commands, triton_cache)
    assert [listed[0], studied[0], report[0]] == [0, 0, 0], (listed, studied, report)
    assert "rms_norm forward bf16, 8 columns on NVIDIA H100/H200 (sm_90)" in listed[1]
    assert "programs  occupancy  candidate" in listed[1]
    assert "to measure" in listed[1]
    assert max(map(len, listed[1].splitlines())) <= 100
    for words in (
        "rms_norm forward bf16 262144x512 on H200 SXM (sm_90), Triton",
        "Predicted, nothing was measured: block",
        "rms_norm + relu",
        "the fused kernel moves 50% of the bytes",
        "Nothing was measured",
        "Next: rownorm report studied",
    ):
        assert words in studied[1]
    assert [one.block for one in analyses.read(tmp_path / "studied")] == [None, 64, 512]
    (fusion,) = read(tmp_path / "studied", STUDY, FusionStudy).fusions
    rows_and_weight = fusion.two_steps.predicted_bytes - fusion.fused.predicted_bytes
    assert rows_and_weight == 2 * 262144 * 512 * 2  # relu reads and writes every element
    page = (tmp_path / "studied" / "report" / "report.html").read_text()
    assert '<section id="fusion">' in page
    assert (tmp_path / "studied/report/plots/blocks-rms_norm-forward-bf16-512-sm_90.png").exists()


def test_the_best_block_is_the_smallest_of_those_that_are_equally_fast():
    blocks = [made_up(block, block // 32) for block in (64, 128, 256, 512)]
    times = [4e-6, 2.004e-6, 2e-6, 3e-6]
    analyses = [
        msgspec.structs.replace(one, predicted_seconds=seconds)
        for one, seconds in zip(blocks, times, strict=True)
    ]
    assert best_of(analyses).block == 128
    assert best_of([made_up()]) is None
    text = "\n".join(text_of(analyses))
    assert "256 is within 0.5% of it." in text
    assert "Block 64 takes 2.00x the time" in text
    assert "2 bytes per load of a thread instead of 4" in text


def test_measured_times_and_bytes_stand_beside_the_predictions():
    fused = Way(
        name="fused", kernels=1, predicted_bytes=1e6, predicted_seconds=1e-6,
        measured_bytes=1.1e6, measured_seconds=2e-6,
    )  # fmt: skip
    two = Way(
        name="two steps", kernels=2, predicted_bytes=2e6, predicted_seconds=2e-6,
        measured_bytes=2.2e6, measured_seconds=5e-6,
    )  # fmt: skip
    text = "\n".join(fusion_text(Fusion(title="t", device="d", fused=fused, two_steps=two)))
    assert "Measured: it moves 50% of the bytes and is 2.50x as fast." in text
    without = msgspec.structs.replace(two, measured_bytes=None)
    found = Fusion(title="t", device="d", fused=fused, two_steps=without, note="no ncu")
    assert "Measured: it is 2.50x as fast." in "\n".join(fusion_text(found))
    assert "No ncu." in "\n".join(fusion_text(found))
