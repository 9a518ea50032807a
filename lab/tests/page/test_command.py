"""``rownorm report``: where it writes, and what it refuses."""

import os
from pathlib import Path

import pytest

from lab_support.lab_commands import invoke, small_record, without_torch, write_run

pytestmark = pytest.mark.usefixtures("command_line")


def test_report():
    write_run("made", small_record(), small_record(16), small_record(provider="torch"))
    ran = invoke("report", "made", "--no-plots")
    assert ran.exit_code == 0, ran.output
    assert "made/report/report.html" in ran.output
    assert "<html" in Path("made/report/report.html").read_text()
    assert os.path.exists("made/report/analysis.md")
    assert sorted(os.listdir("made")) == ["records.jsonl", "report"]


def test_report_replaces_only_with_force():
    write_run("made", small_record())
    os.makedirs("out/plots")
    Path("out/report.html").write_text("old")
    Path("out/plots/roofline.png").write_text("old")
    Path("out/plots/old-speedup-rms_norm.png").write_text("old")
    Path("out/notes").write_text("mine")
    ran = invoke("report", "made", "--out", "out", "--no-plots")
    assert ran.exit_code == 2
    assert "--force" in ran.output
    assert Path("out/report.html").read_text() == "old"
    ran = invoke("report", "made", "--out", "out", "--no-plots", "--force")
    assert ran.exit_code == 0, ran.output
    assert "<html" in Path("out/report.html").read_text()
    assert Path("out/notes").read_text() == "mine"
    assert not os.path.exists("out/plots")
    assert sorted(os.listdir()) == ["made", "out"]


def test_report_replaces_nothing_but_a_report():
    write_run("made", small_record())
    os.makedirs("out/plots")
    Path("out/plots/mine.png").write_text("mine")
    ran = invoke("report", "made", "--out", "out", "--no-plots", "--force")
    assert ran.exit_code == 2
    assert "holds no report" in ran.output
    Path("out/report.html").write_text("old")
    assert invoke("report", "made", "--out", "out", "--no-plots", "--force").exit_code == 0
    assert Path("out/plots/mine.png").read_text() == "mine"


def test_report_uses_the_good_lines_of_a_damaged_file():
    path = write_run("made", small_record())
    with open(path / "records.jsonl", "a") as file:
        file.write("not a record\n")
    ran = invoke("report", "made", "--no-plots")
    assert ran.exit_code == 0, ran.output
    assert "made: line 2 cannot be used: not JSON" in ran.output


def test_report_of_nothing():
    os.mkdir("made")
    Path("made/records.jsonl").touch()
    ran = invoke("report", "made")
    assert ran.exit_code == 2
    assert "no record can be read from made" in ran.output
    assert os.listdir("made") == ["records.jsonl"]
    write_run("other", small_record())
    for pair in (("made", "other"), ("other", "made")):
        assert "no record can be read from made" in invoke("compare", *pair).output


def test_report_of_several_needs_out():
    write_run("a", small_record())
    write_run("b", small_record(16))
    assert "--out" in invoke("report", "a", "b").output
    assert invoke("report", "a", "b", "--out", "both", "--no-plots").exit_code == 0


def test_a_case_in_two_runs_is_shown_once_and_the_reader_is_told():
    monday = {"run": "monday", "time": "2026-11-16T09:00:00Z"}
    tuesday = {"run": "tuesday", "time": "2026-11-17T09:00:00Z"}
    write_run("a", small_record(slower=7, **monday), small_record(provider="torch", **monday))
    write_run("b", small_record(slower=3, **tuesday))
    for order in (("a", "b"), ("b", "a")):
        ran = invoke("report", *order, "--out", "both", "--no-plots", "--force")
        assert ran.exit_code == 0, ran.output
        unused = "1 record is not used, because there is a newer one of the same case and provider: 1 of run monday"
        for text in (
            ran.output,
            Path("both/report.html").read_text(),
            Path("both/analysis.md").read_text(),
        ):
            assert f"{unused} (used: run tuesday)." in text
            assert "1 case has measurements of several runs." in text
        assert "30.1 µs" in Path("both/analysis.md").read_text()
        assert "70.1 µs" not in Path("both/analysis.md").read_text()


def test_report_needs_no_torch():
    write_run("made", small_record(), small_record(provider="torch"))
    ran = without_torch("report", "made", "--no-plots")
    assert ran.returncode == 0, ran.stderr
    assert os.path.exists("made/report/report.html")
