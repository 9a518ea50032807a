"""The files that ``write_report`` writes."""

import os
import re
import struct

import pytest
import vl_convert

from lab_support.lab_records import cpu_records, failed_records, gpu_records, record
from rownorm_lab.data.case import Case
from rownorm_lab.data.files import write_whole
from rownorm_lab.data.measurements import results_of
from rownorm_lab.page.charts import Charts, drawn
from rownorm_lab.page.looks import LOOKS, OTHER_LOOKS, looks_of
from rownorm_lab.page.points import points_of
from rownorm_lab.page.write import is_plot, write_report


def few(records):
    """Enough for every kind of plot."""
    return [r for r in records if r.case.dtype == "fp16"]


def size_of_png(path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", content[16:24])


def test_a_report_is_a_page_an_analysis_and_plots(tmp_path):
    steps = []
    written = write_report(few(gpu_records()), tmp_path / "out", on_step=steps.append)
    names = sorted(path.relative_to(tmp_path / "out").as_posix() for path in written)
    assert names == [
        "analysis.md",
        "plots/accuracy-forward.png",
        "plots/bandwidth-rms_norm-forward-fp16.png",
        "plots/host-cost-forward.png",
        "plots/latency-rms_norm-forward-fp16.png",
        "plots/roofline.png",
        "plots/speedup-rms_norm-forward-fp16.png",
        "report.html",
    ]
    there = sorted(p for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert there == sorted(written)  # and no temporary file is left
    assert "drawing roofline.png" in steps
    assert {path for path in written if is_plot(path)} == set(
        (tmp_path / "out" / "plots").iterdir()
    )
    for path in written:
        if path.suffix == ".png":
            width, height = size_of_png(path)
            assert width > 1000
            assert height > 200
    assert 500_000 < (tmp_path / "out" / "report.html").stat().st_size < 2_500_000


def test_plots_of_several_devices_have_the_device_in_their_names(tmp_path):
    records = [r for r in few(gpu_records()) if r.case.rows == 1] + cpu_records()[:3]
    written = write_report(records, tmp_path)
    names = {path.name for path in written}
    assert "nvidia-h200-roofline.png" in names
    assert "amd-epyc-9654-roofline.png" in names
    assert all(is_plot(path) for path in written if path.suffix == ".png")


@pytest.mark.parametrize("records", ([], failed_records()), ids=("none", "failed"))
def test_a_report_without_times(tmp_path, records):
    written = write_report(records, tmp_path)
    assert sorted(path.name for path in written) == ["analysis.md", "report.html"]
    page = (tmp_path / "report.html").read_text()
    assert ("rownorm bench" if not records else "CUDA error: out of memory") in page


def test_plots_can_be_left_out(tmp_path):
    write_report(cpu_records(), tmp_path, plots=False)
    assert not (tmp_path / "plots").exists()


def test_two_reports_of_the_same_records_are_the_same(tmp_path):
    for name in ("a", "b"):
        write_report(cpu_records(), tmp_path / name, plots=False)
    for name in ("report.html", "analysis.md"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize(
    ("widths", "labels"),
    [
        ((1024, 4096), ["1024", "4096"]),
        ((2304, 3584, 5376), ["2304", "3584", "5376"]),
        (
            [2**i for i in range(8, 16)],
            ["256", "512", "1024", "2048", "4096", "8192", "16k", "32k"],
        ),
        ((768, 1000, 1024, 1280, 1600, 2048, 4096), ["1024", "2048", "4096"]),
    ],
)
def test_widths_are_labeled(widths, labels):
    """A few widths are all labeled; of many, the powers of two."""
    cases = [Case(operation="rms_norm", rows=512, cols=cols) for cols in widths]
    (results,) = results_of([record(case, "rownorm") for case in cases])
    chart = drawn(Charts(results.providers).bandwidth(), points_of(results), [])
    svg = vl_convert.vegalite_to_svg(chart | {"width": 500, "height": 200})
    found = re.findall(r">(\d+[kM]?)</text>", svg)
    assert found[: len(labels)] == labels


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("paper", ("#fafaf9", "#1d2024"))
def test_colors_are_visible_on_light_and_on_dark(paper):
    for name, (color, _) in [*LOOKS.items(), *enumerate(OTHER_LOOKS)]:
        dark, light = sorted((luminance(color), luminance(paper)))
        assert (light + 0.05) / (dark + 0.05) >= 3, name


def test_a_provider_looks_the_same_in_every_chart():
    names = [*LOOKS, "new", "newer"]
    assert looks_of(names)["liger"] == looks_of(["liger"])["liger"]
    assert len({color for color, _ in looks_of(names).values()}) == len(names)


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = write_whole(tmp_path / "file", "before")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "after")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "before"
