"""The sections on tuning: rows that were found, verified rows, block sizes, fusion."""

import msgspec
import pytest

from lab_support.analyses import made_up
from lab_support.lab_commands import invoke
from lab_support.tuning import HERE
from rownorm_lab.data.analyses import Measured
from rownorm_lab.data.analyses import write as write_analyses
from rownorm_lab.data.tunings import (
    STUDY,
    SUMMARY,
    Fusion,
    FusionStudy,
    Tuning,
    Verified,
    Way,
    write,
)
from rownorm_lab.page.chapters import chapters_of
from rownorm_lab.page.compiled import write_plot

SETTINGS = {"regime": "resident", "block_rows": 1, "block_cols": 4096, "num_warps": 8}
ROW = {
    "direction": "forward",
    "center": True,
    "itemsize": 2,
    "residual": 4,
    "option": "gelu",
    "max_cols": 4096,
    "settings": SETTINGS,
    "gb_per_s": 3000,
    "ceiling_gb_per_s": 4000,
    "runner_up": {"settings": SETTINGS, "gb_per_s": 2950},
    "reason": "fastest of 40 candidates, 3 left out",
}
TUNING = Tuning(
    environment=HERE,
    date="2026-01-31",
    timed=40,
    left_out={"spills": 2, "crowds": 1},
    rows=[ROW],
    verified=[Verified(study="rms_norm <b>", shipped=SETTINGS, found=SETTINGS, ratio=0.987)],
    studies_left=2,
)


def test_a_tuning_folder_is_a_section(tmp_path, command_line):
    write(tmp_path, SUMMARY, TUNING)
    ran = invoke("report", tmp_path, "--out", tmp_path / "page", "--no-plots")
    assert ran.exit_code == 0, ran.output
    page = (tmp_path / "page" / "report.html").read_text()
    for words in (
        "Tuned plans",
        "40 candidates timed; left out: 2 spills, 1 crowds.",
        "Not finished: 2 rows left.",
        "LayerNorm forward, 2-byte elements, 4-byte residual, gelu",
        "75%",
        "2,950",
        "fastest of 40 candidates, 3 left out",
        "0.987",
        "rms_norm &lt;b&gt;",
    ):
        assert words in page


def test_block_sizes_and_fusion_are_sections_with_a_plot(tmp_path):
    way = Way(name="fused", kernels=1, predicted_bytes=1e6, predicted_seconds=1e-6)
    two = msgspec.structs.replace(way, name="two steps", predicted_bytes=2e6)
    fusion = Fusion(title="rms_norm + relu", device="H200", fused=way, two_steps=two, note="no ncu")
    seconds = Measured(seconds=1e-6, bytes_per_second=1e12, ceiling=None, device="NVIDIA H200")
    blocks = [made_up(), made_up(64), msgspec.structs.replace(made_up(128), measured=seconds)]
    write(tmp_path, STUDY, FusionStudy(fusions=[fusion]))
    write_analyses(tmp_path, blocks)
    compiled, fused = chapters_of([tmp_path])
    assert fused.name == "Fusion"
    assert "No ncu." in fused.html
    assert "<svg" in compiled.html
    assert "measured" in compiled.html
    assert "block 128 is best" in compiled.html
    [plot] = compiled.plots
    assert plot(tmp_path).name == "blocks-rms_norm-forward-bf16-64-sm_90.png"
    assert write_plot([made_up()], tmp_path) is None


@pytest.mark.parametrize("name", [SUMMARY, STUDY])
def test_a_damaged_file_is_named(tmp_path, command_line, name):
    (tmp_path / name).write_text("{")
    ran = invoke("report", tmp_path, "--out", tmp_path / "page")
    assert ran.exit_code == 2
    assert f"{name} cannot be read" in " ".join(ran.output.split())
