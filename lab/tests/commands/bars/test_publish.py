"""Publishing: Markdown pages, the index, and the data file, from made-up records."""

import msgspec
import pytest

from lab_support.bars_records import H200, good_records, only, record, write_run
from lab_support.lab_commands import invoke
from rownorm_lab.commands.bars import bars, publish
from rownorm_lab.data.published import read_published

CONDITIONS = "NVIDIA H200, driver 580, torch 2.11.0, triton 3.6.0, quack-kernels 0.6.5, 2026-11-15"


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """Two complete runs in which every bar holds."""
    folder = tmp_path_factory.mktemp("runs")
    return [write_run(folder / name, good_records()) for name in ("first", "second")]


def test_a_page_for_each_part_and_an_index(two_runs, tmp_path):
    out = tmp_path / "results"
    ran = invoke("bars", "publish", *two_runs, "--out", out)
    assert ran.exit_code == 0, ran.output
    pages = {file.stem for file in out.glob("*.md")}
    assert pages == {*(part.page for part in bars.PARTS), "first-call", "widths", "README"}
    for page in pages - {"widths"}:
        assert CONDITIONS in (out / f"{page}.md").read_text()
    index = (out / "README.md").read_text()
    assert "63 of 63 bars hold in every run" in index
    assert "| host | at most 1.1 of torch's host cost, forward | 1 | 1 | holds |" in index
    assert all(f"({page}.md)" in index for page in pages - {"README"})
    assert "| few-rows | less than 10 microseconds, 1 row |" in index


def test_the_figures_of_a_page(tmp_path, monkeypatch):
    part = only(monkeypatch, "bf16")
    records = [
        record(case, name, status="refused" if name == "fla" else "ok")
        for case, names in bars.jobs_of([part])
        for name in names
        if case.cols in (256, 512)
    ]
    folder = write_run(tmp_path / "a", records)
    assert invoke("bars", "publish", folder, "--out", tmp_path / "out").exit_code == 0
    lines = (tmp_path / "out" / "bf16.md").read_text().splitlines()
    assert lines[0] == "# bf16 (GB/s)"
    start = lines.index("## LayerNorm backward")
    assert lines[start : start + 6] == [
        "## LayerNorm backward",
        "",
        "| rows x columns | ceiling | rownorm | of ceiling | torch | torch.compile | Liger | QuACK "
        "| flash-linear-attention | over the fastest peer |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| 32768x256 | 4000 | 3800 | 0.95 | 800 | 2800 | 2800 | 3600 | - | 1.06 |",
        "| 32768x512 | 4000 | 3800 | 0.95 | 800 | 2800 | 2800 | 3600 | - | 1.06 |",
    ]
    index = (tmp_path / "out" / "README.md").read_text()
    assert "study" not in index
    (tmp_path / "out" / "study-llama.md").write_text("of rownorm study")
    assert invoke("bars", "publish", folder, "--out", tmp_path / "out").exit_code == 0
    assert "[study-llama](study-llama.md)" in (tmp_path / "out" / "README.md").read_text()
    assert "MISSING" in index  # the other widths
    assert "- fla refused, 8 cases:" in index


def test_the_data_file_is_small_and_can_be_read(two_runs, tmp_path, monkeypatch):
    package = tmp_path / "package"
    monkeypatch.setattr(publish, "PACKAGE_FOLDER", package)
    ran = invoke("bars", "publish", *two_runs, "--out", tmp_path, "--package")
    assert ran.exit_code == 0, ran.output
    file = package / "h200.json"
    assert not (tmp_path / "h200.json").exists()
    assert file.stat().st_size < 60 * 1024
    data = read_published(file)
    assert (data.device, data.date, data.runs, data.rounds) == ("NVIDIA H200", "2026-11-15", 2, 3)
    assert data.versions["quack-kernels"] == "0.6.5"
    assert len(data.bars) == 63
    assert all(bar.holds for bar in data.bars)
    parts = {part.name: part for part in data.parts}
    alone = [part for part in bars.PARTS if not part.has_settings]
    assert list(parts) == [part.name for part in alone]
    assert [len(part.cases) for part in data.parts] == [len(part.cases) for part in alone]
    case = parts["bf16"].cases[0]
    assert (case.operation, case.rows, case.cols) == ("rms_norm", 32768, 256)
    assert dict(zip(parts["bf16"].providers, case.values, strict=True))["rownorm"] == 3800
    assert (case.of_ceiling, case.over_fastest_peer, case.fastest_peer) == (0.95, 1.056, "quack")
    assert parts["host"].cases[0].over_fastest_peer == 1


def test_widths_come_from_the_tuned_table(two_runs, tmp_path):
    row = {"direction": "forward", "center": False, "itemsize": 2, "residual": 0, "option": ""}
    row |= {"max_cols": 8192, "gb_per_s": 3000, "ceiling_gb_per_s": 4000, "settings": {}}
    rows = [
        row,
        row | {"measured_cols": 7168, "gb_per_s": 2000},
        row | {"center": True, "direction": "backward", "residual": 4, "gb_per_s": 3600},
        row | {"option": "activation", "gb_per_s": 3200},
    ]
    head = {"device": "NVIDIA H200", "torch": "2.11", "triton": "3.6", "date": "2026-11-16"}
    text = publish.widths_page(head | {"plans": rows})
    assert "NVIDIA H200, torch 2.11, triton 3.6, 2026-11-16." in text
    assert "## bf16\n\n| columns | RMSNorm forward | LayerNorm forward |" in text
    assert "| 7168 | 0.50 |  |  |  |\n| 8192 | 0.75 |  |  |  |" in text
    assert "## bf16 with a residual in fp32" in text
    assert "| 8192 |  |  |  | 0.90 |" in text
    assert "## bf16 with an activation (silu)" in text


def test_runs_of_several_devices_are_refused(tmp_path, monkeypatch):
    case, names = bars.jobs_of([only(monkeypatch, "host")])[0]
    other = msgspec.structs.replace(H200, device="NVIDIA H100")
    folders = [
        write_run(tmp_path / "a", [record(case, names[0])]),
        write_run(tmp_path / "b", [record(case, names[0], environment=other)]),
    ]
    ran = invoke("bars", "publish", *folders, "--out", tmp_path / "out")
    assert ran.exit_code == 2
    assert "needs records of one device; got NVIDIA H100, NVIDIA H200" in ran.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 4090", "geforce-rtx-4090"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_the_name_of_the_data_file(device, name):
    assert publish.device_slug(device) == name
