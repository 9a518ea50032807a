"""``rownorm study``: tables, files, resuming, failures, the page and the published page."""

import json
import os
from pathlib import Path

import pytest
import torch

from lab_support.lab_commands import invoke, refused, small_record, without_torch, write_run
from rownorm_lab.commands.study import command, measure
from rownorm_lab.data.studies import read_study
from rownorm_lab.models import STAGES, blocks, tasks

pytestmark = pytest.mark.usefixtures("command_line", "small")
SHORT = ("--setting", "eager", "--size", "tiny", "--steps", "2")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(measure, "WARM_UP", 1)
    for task in tasks.TASKS.values():
        monkeypatch.setitem(task.budgets, "tiny", tasks.Budget(1, 3e-3))


def study(*arguments, status=0):
    ran = invoke("study", *arguments)
    assert ran.exit_code == status, ran.output
    return ran.output


def test_a_study_its_page_and_its_report():
    printed = study("llama", *SHORT, "--out", "made", "--publish", "docs")
    for text in (*STAGES, "tokens/s", "rownorm beside", "llama tiny", "aten::"):
        assert text in printed
    assert sorted(os.listdir("made")) == ["study-llama.json", "study-llama.png"]
    found = read_study(Path("made/study-llama.json"))
    assert [one.key for one in found.records] == [("eager", stage) for stage in STAGES]
    model = tasks.TASKS["llama"].model(tasks.TASKS["llama"].configs["tiny"], "fused")
    n_bytes = sum(parameter.nbytes for parameter in model.parameters())
    for one in found.records:
        assert [len(times) for times in (one.forward, one.backward, one.step, one.host)] == [2] * 4
        assert all(f + b <= s for f, b, s in zip(one.forward, one.backward, one.step, strict=True))
        assert one.loss == pytest.approx(found.records[0].loss, rel=1e-2)
        assert 0 < one.norm_share < 1
        # Parameters, both moments of AdamW, and in a step the gradients, at least.
        assert one.peak_bytes > 4 * n_bytes
    assert found.environment.torch == str(torch.__version__)
    page = Path("docs/study-llama.md").read_text()
    assert page.startswith("# llama tiny")
    assert found.environment.describe() in page
    assert found.date in page
    assert "| rownorm |" in page

    assert "1 files" not in invoke("report", "made").output
    text = Path("made/report/report.html").read_text()
    assert '<section id="study">' in text
    assert "<svg" in text
    assert "There are no records" not in text
    assert os.listdir("made/report/plots") == ["study-llama.png"]


def test_a_report_of_a_benchmark_and_a_study():
    study("openfold", *SHORT, "--stage", "rownorm", "--out", "study")
    write_run("bench", small_record())
    os.rename("study/study-openfold.json", "bench/study-openfold.json")
    ran = invoke("report", "bench", "--no-plots")
    assert ran.exit_code == 0, ran.output
    text = Path("bench/report/report.html").read_text()
    assert '<section id="study">' in text
    assert 'href="#study"' in text
    assert os.path.exists("bench/report/analysis.md")
    # A second study joins the folder; a study in it is never replaced.
    before = Path("bench/study-openfold.json").read_bytes()
    assert "--resume" in study("openfold", *SHORT, "--out", "bench", status=2)
    assert Path("bench/study-openfold.json").read_bytes() == before


def test_resuming_measures_what_is_missing(monkeypatch):
    measured = []
    original = measure.measure

    def counted(study, setting, stages, on_step):
        measured.append(setting)
        yield from original(study, setting, stages, on_step)

    def interrupted(study, setting, stages, on_step):
        records = counted(study, setting, stages, on_step)
        yield next(records)
        raise KeyboardInterrupt

    def at_once(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "measure", at_once)
    assert "--resume --out made" in study("llama", *SHORT, "--out", "made", status=130)
    assert read_study(Path("made/study-llama.json")).records == []
    monkeypatch.setattr(measure, "measure", interrupted)
    resumed = study("llama", *SHORT, "--out", "made", "--resume", status=130)
    assert "--resume --out made" in resumed
    assert len(read_study(Path("made/study-llama.json")).records) == 1
    monkeypatch.setattr(measure, "measure", counted)
    study("llama", "--resume", "--out", "made", "--setting", "eager")
    found = read_study(Path("made/study-llama.json"))
    assert len(found.records) == 3
    assert len({one.run for one in found.records}) == 1  # all stages again: they take turns
    printed = study("llama", "--resume", "--out", "made", "--json", "--publish", "docs")
    assert measured == ["eager", "eager"]
    assert os.listdir("docs") == ["study-llama.md"]
    assert json.loads(printed[printed.index("{") : printed.rindex("}") + 1])["size"] == "tiny"


def test_a_study_of_another_machine_is_not_continued():
    study("llama", *SHORT, "--stage", "rownorm", "--out", "made")
    file = Path("made/study-llama.json")
    file.write_text(file.read_text().replace('"torch": "', '"torch": "0.'))
    assert "was begun on" in study("llama", "--resume", "--out", "made", status=2)
    # Nothing is left to measure: its pages can be made anywhere.
    study("llama", "--resume", "--out", "made", "--stage", "rownorm", "--publish", "docs")


def test_more_samples_in_a_step():
    options = ("--stage", "rownorm", "--out", "made")
    assert "3 samples in a step" in study("openfold", *SHORT, "--samples", "3", *options)
    again = ("openfold", "--resume", *options, "--setting", "eager")
    assert "has samples 3, not 2" in study(*again, "--samples", "2", status=2)
    study(*again)


def test_a_stage_that_fails_or_is_wrong(monkeypatch):
    def fails(self, x, norm, modulation=None):
        raise RuntimeError("out of memory, as it were")

    monkeypatch.setattr(blocks.Fused, "norm", fails)
    original = blocks.Rownorm.add_norm

    def wrong(self, h, update, norm, modulation=None):
        y, h = original(self, h, update, norm, modulation)
        return -5 * y, h

    monkeypatch.setattr(blocks.Rownorm, "add_norm", wrong)
    printed = study("llama", *SHORT, "--out", "made", status=1)
    assert "fused failed: out of memory, as it were" in " ".join(printed.split())
    assert "rownorm wrong: the loss of the first step" in " ".join(printed.split())
    found = {one.stage: one.status for one in read_study(Path("made/study-llama.json")).records}
    assert found == {"baseline": "ok", "fused": "failed", "rownorm": "wrong"}
    assert "rownorm beside" not in printed


def test_bad_input():
    assert "did you mean llama?" in refused("study", "lama")
    assert "autocast" in refused("study", "llama", "--setting", "autocst")
    assert "--out" in refused("study", "llama", "--resume")
    assert "without --resume" in refused("study", "llama", "--resume", "--out", "nowhere")
    Path("made").mkdir()
    Path("made/study-llama.json").write_text("{")
    assert "as a study" in study("llama", "--resume", "--out", "made", status=2)
    assert "as a study" in invoke("report", "made").output


@pytest.mark.parametrize("name", ["", *tasks.TASKS, "small", "calls", "dit-steps", "cpu"])
def test_help_needs_no_torch(name):
    ran = without_torch("study", *name.split(), "--help")
    assert ran.returncode == 0, ran.stderr
    expected = command.SETTINGS if name in tasks.TASKS else ("--tiny",) if name else tasks.TASKS
    assert all(text in ran.stdout for text in expected)


@pytest.mark.exhaustive
def test_a_compiled_study():
    """Of one model, because C++ is compiled for every block and stage."""
    printed = study(
        "llama", "--size", "tiny", "--steps", "1", "--setting", "compiled", "--out", "a"
    )
    found = read_study(Path("a/study-llama.json"))
    assert [one.status for one in found.records] == ["ok"] * 3, printed
    assert found.get("compiled", "rownorm").attribution == "names"
