"""``rownorm report``: where it writes, and what it refuses."""

import os
from pathlib import Path

import pytest

from support.lab_commands import invoke, small_record, write_run

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
