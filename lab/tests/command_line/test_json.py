"""``--json``: stdout is one document, and docs/json.md has its keys."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from lab_support import bars_records
from lab_support.analyses import launches, made_up
from lab_support.lab_commands import TINY, TWO_PROVIDERS, invoke, small_record, write_run
from lab_support.tuning import H200, HERE, FakeClock
from rownorm_lab.commands.tune import block_study, listing, own, static
from rownorm_lab.commands.tune import command as tune
from rownorm_lab.commands.tune.compiling import Ahead
from rownorm_lab.commands.tune.run import run_tune
from rownorm_lab.compiled import compile
from rownorm_lab.data.tunings import Fusion, Way

pytestmark = pytest.mark.usefixtures("command_line")

PAGE = Path(__file__).parents[3] / "docs" / "json.md"
OPEN = ("case", "settings", "values", "analysis", "speedup_over", "versions", "environment")


def documented(command: str) -> set[str]:
    """The keys that the section of a command names, and those of ratios."""
    section = PAGE.read_text().partition(f"\n## {command}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"`(\w+)`", section)) | {"ratio", "low", "high"}


def keys_of(value) -> set[str]:
    """All keys of a document. What has keys of its own, such as a case, is not looked into."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if isinstance(value, dict):
        inner = (keys_of(one) for name, one in value.items() if name not in OPEN)
        return set(value).union(*inner)
    return set()


def printed(*arguments, status=0):
    ran = invoke(*arguments, "--json")
    assert ran.exit_code == status, ran.output
    return json.loads(ran.stdout)


def test_info():
    document = printed("info")
    assert keys_of(document) <= documented("info")
    assert {"rownorm", "torch"} <= {one["name"] for one in document["providers"]}
    assert document["environment"]["kind"] in ("cpu", "cuda", "hip")


def test_check(monkeypatch):
    arguments = ("--op", "rms_norm", "--dtype", "fp32", "--data", "normal", "--pass", "forward")
    document = printed("check", *arguments, "--provider", "torch")
    assert keys_of(document) <= documented("check")
    assert document["results"][0]["provider"] == "torch"


def test_bench_and_its_cases():
    document = printed("bench", *TINY, *TWO_PROVIDERS, "--out", "made")
    assert keys_of(document) == documented("bench") - {"cases", "ratio", "low", "high"}
    ours, theirs = document["measurements"][:2]
    assert (ours["provider"], theirs["provider"]) == ("rownorm", "torch")
    ratio = theirs["seconds"]["median"] / ours["seconds"]["median"]
    assert ours["speedup_over"]["torch"]["ratio"] == pytest.approx(ratio)
    assert len(printed("bench", *TINY, "--list")["cases"]) == 2
    assert document == printed("bench", "--resume", "made")


def test_compare():
    write_run("base", small_record(), small_record(cols=16))
    write_run("new", small_record(slower=2.0), small_record(cols=32))
    document = printed("compare", "base", "new", status=1)
    assert keys_of(document) <= documented("compare")
    (one,) = document["comparisons"]
    assert (one["verdict"], round(one["ratio"]["ratio"])) == ("slower", 2)
    assert len(document["only_base"]) == len(document["only_new"]) == 1


def test_bars_judge(tmp_path, monkeypatch):
    folder = bars_records.write_run(
        tmp_path / "a", bars_records.good_records(bars_records.only(monkeypatch, "host"))
    )
    (of_run,) = printed("bars", "judge", folder, "--runs", 1)
    assert keys_of(of_run) == documented("bars judge") - {"ratio", "low", "high"}
    assert {one["part"] for one in of_run} == {"host"}
    assert all(one["holds"] for one in of_run)


def test_tune_list(monkeypatch):
    """Of a compilation, which takes seconds for each candidate, the figures are made up; the keys are its own."""
    figures = dict.fromkeys(static.CompiledCandidate._fields, 1) | {"cause": "", "why": ""}
    monkeypatch.setattr(compile, "INTERPRETING", False)
    monkeypatch.setattr(listing, "compiled", lambda *_: static.CompiledCandidate(**figures))
    arguments = ("--op", "rms_norm", "--width", 64, "--dtype", "bf16", "--pass", "forward")
    document = printed("tune", "--list", *arguments, "--target", "sm_90")
    assert keys_of(document) == documented_list()
    assert all(one["settings"] and one["target"] == "sm_90" for one in document["candidates"])


def documented_list() -> set[str]:
    """The keys that the paragraph of ``tune --list`` names."""
    section = PAGE.read_text().partition("`--list`: `candidates`")[2].partition("\n\n")[0]
    return {"candidates"} | set(re.findall(r"`(\w+)`", section))


def test_fib_check():
    assert invoke("fib", "export", "data", "--cols", 16, "--batch", "1").exit_code == 0
    document = printed("fib", "check", "data")
    # A dataset without files that are left out, and not FlashInfer's own.
    assert keys_of(document) == documented("fib check") - {"ratio", "low", "high", "where", "name"}
    assert {one["status"] for one in document["results"]} == {"ok"}


def test_tune_of_a_users_kernel(monkeypatch):
    """What is compiled is made up; the keys are the command's own."""
    first, second = launches(2)
    monkeypatch.setattr(compile, "INTERPRETING", False)
    monkeypatch.setattr(own, "chosen_launch", lambda *_, **__: (first.source, Launch(), 1))
    monkeypatch.setattr(own, "require_constants", lambda *_: None)
    monkeypatch.setattr(own, "judged", lambda one, recorded: one)
    analyses = iter([first, first, second])
    monkeypatch.setattr(own, "analyze_launch", lambda *_: next(analyses))
    arguments = (f"{__file__}:kernel", "--over", "BLOCK=64,128", "--target", "sm_90")
    document = printed("tune", *arguments)
    assert keys_of(document) == {"candidates", "values", "analysis", "why", "seconds"}
    assert keys_of(document) <= documented("tune")
    assert [one["values"] for one in document["candidates"]] == [{"BLOCK": 64}, {"BLOCK": 128}]
    assert document["candidates"][0]["seconds"] == first.traffic.predicted_seconds


class Launch:
    """A launch of a user's kernel that nobody compiles."""

    def kernel(self):
        """It has a name."""

    def describe(self):
        return "x_ptr bf16[8192x4096]"

    def with_values(self, values):
        return self


def test_tune_study(monkeypatch):
    way = Way(name="fused", kernels=1, predicted_bytes=1e6, predicted_seconds=1e-6)
    fusion = Fusion(title="t", device="d", fused=way, two_steps=way)
    monkeypatch.setattr(compile, "INTERPRETING", False)
    monkeypatch.setattr(block_study, "analyses_of", lambda *_, **__: ([made_up()], []))
    monkeypatch.setattr(block_study.fusion, "fusion_of", lambda *_: fusion)
    document = printed("tune", "--study", "--width", 64, "--target", "sm_90")
    assert set(document) == {"analyses", "fusions"} <= documented("tune")
    assert document["analyses"] == json.loads(msgspec.json.encode([made_up()]))
    assert document["fusions"] == msgspec.to_builtins([fusion])


def test_a_search_prints_its_table(monkeypatch):
    def search(request, folder, *_):
        return run_tune(folder, request, H200, Ahead(0, None), FakeClock().of)

    monkeypatch.setattr("rownorm_lab.device.environment.environment", lambda: HERE)
    monkeypatch.setattr(tune, "_run", search)
    arguments = ("--op", "rms_norm", "--pass", "forward", "--dtype", "bf16", "--width", 1024)
    document = printed("tune", *arguments, "--out", "tuned")
    assert document == json.loads(Path("tuned/sm_90.json").read_text())
    page = (PAGE.parents[1] / "CONTRIBUTING.md").read_text()
    section = page.partition("### Add a tuned table, or an entry")[2].partition("\n### ")[0]
    assert set().union(*document["plans"]) <= set(re.findall(r"`(\w+)`", section))


def test_patch(monkeypatch, tmp_path):
    (tmp_path / "a_model.py").write_text(
        "import torch.nn as nn\nmodel = nn.Sequential(nn.LayerNorm(8), nn.BatchNorm1d(8))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    document = printed("patch", "a_model:model", "--fuse-residuals")
    assert [one["name"] for one in document["swapped"]] == ["0"]
    assert keys_of(document) <= documented("patch")
    assert set(document) | {"name", "class_name", "form", "reason"} == documented("patch") - {
        "ratio",
        "low",
        "high",
    }
