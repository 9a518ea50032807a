"""Cases in a setting: trial runs on this machine, bars, reading runs again, the pages, ``rownorm study NAME``."""

import json
from pathlib import Path

import msgspec
import pytest
import torch

from lab_support.bars_records import record, write_run
from lab_support.lab_commands import invoke, refused
from rownorm_lab.commands.bars import (
    bars,
    calls,
    cpu,
    figures,
    judge,
    settings,
    steps,
    turns,
)
from rownorm_lab.data.case import Case
from rownorm_lab.data.records import read
from rownorm_lab.data.texts import count as count_of
from rownorm_lab.models import DIT_SIZES, SMALL_MODELS, TINY, Size
from rownorm_lab.models import small as small_models
from rownorm_lab.providers import as_tuple
from rownorm_lab.providers.data import output_names

pytestmark = [
    pytest.mark.usefixtures("command_line", "short"),
    pytest.mark.filterwarnings(
        "ignore:Mismatch dtype between input and weight"
    ),  # of torch's RMSNorm
]
PARTS = {part.name: part for part in (*bars.PARTS, bars.CPU) if part.has_settings}


@pytest.fixture
def short(monkeypatch):
    for name in ("WORKLOAD", "FORMS"):
        workload = getattr(calls, name)._replace(repeats=lambda _: 1)
        monkeypatch.setattr(calls, name, workload)
    monkeypatch.setattr(cpu, "ROUND", 1e-6)
    for module in (settings, steps):
        monkeypatch.setattr(module, "TINY", Size(8, 1, 2, 1, 2))


def study(*arguments, status=0):
    ran = invoke("study", *arguments)
    assert ran.exit_code == status, ran.output
    return ran.output


def write_measured(folder, part, slower, **changes):
    """A complete run as on an H200: rownorm takes ``slower`` times as long as what it is compared with."""
    compared = ("torch", settings.PLAIN)
    records = [
        record(
            case,
            name,
            seconds=[1.0 if name in compared else slower],
            host_seconds=[1.0 if name in compared else slower],
            **changes,
        )
        for case, names in bars.jobs_of([part])
        for name in names
    ]
    return write_run(Path(folder), records, [])


@pytest.mark.parametrize(
    "name",
    # The many cases of cpu take the longest, and the code is the same.
    [pytest.param(name, marks=[pytest.mark.exhaustive] * (name == "cpu")) for name in PARTS],
)
def test_a_trial_run_and_runs_that_are_judged(name):
    part = PARTS[name]
    trial = ("--tiny", "--rounds", "1", "--out", "trial")
    printed = study(name, *trial)
    assert "nothing is judged" in printed
    records = read("trial").records
    assert {one.case.key for one in records} == {case.key for case in part.tiny.cases}
    assert {one.provider for one in records} == {"rownorm", *part.providers}
    assert all(one.status == "ok" and one.is_timed for one in records), records[0].why
    assert all(one.environment.torch == str(torch.__version__) for one in records)
    assert "0 of them to be measured" in study(name, *trial)
    # The real cases are others, so a trial is never taken for a run.
    ran = invoke("bars", "judge", "trial", "--part", name, "--runs", "1")
    assert (ran.exit_code, "was not measured" in ran.output) == (1, True)

    for folder, slower in (("first", 0.5), ("second", 0.6), ("slow", 1.2)):
        write_measured(folder, part, slower)
    both = ("--read", "first", "--read", "second")
    count = sum(bar.applies(case) for case in part.cases for bar in part.bars)
    assert "hold in every run" in study(name, *both, "--publish", "docs")
    assert [file.name for file in Path("docs").iterdir()] == [f"study-{name}.md"]
    page = Path(f"docs/study-{name}.md").read_text()
    assert f"{count} of {count} bars hold in every run" in page
    assert "Run 2: NVIDIA H200" in page
    assert page.count("| holds |") == count
    lines = [line.split(" | ") for line in page.splitlines() if line.endswith("| holds |")]
    assert len({(*line[:3], line[-2]) for line in lines}) == count  # no two look the same
    printed = study(name, "--read", "first", "--read", "slow", status=1)
    assert f"0 of {count_of(len(part.bars), 'bar')} hold in every run" in printed
    findings = json.loads(study(name, "--read", "slow", "--json", status=1))
    assert [one["holds"] for one in findings[0]] == [False] * count

    ran = invoke("report", "slow")
    assert ran.exit_code == 0, ran.output
    text = Path("slow/report/report.html").read_text()
    assert '<section id="study">' in text
    assert part.cases[0].title in text
    assert text.count("0.833x") == len(part.cases) * (len(part.providers))


def test_ratios_are_those_of_the_medians():
    """Not medians of the ratios within each round: the ratio is that of the times shown beside it."""
    case = settings.step_cases()[0]
    times = {"torch": [2.0, 4.0, 3.0], "rownorm": [2.0, 2.0, 1.0], settings.ADD: [1.0] * 3}
    records = [record(case, name, seconds=seconds) for name, seconds in times.items()]
    run = judge.read_run(Path(write_run(Path("steps"), records, [])))
    measured = judge.cases_in(run, PARTS["small"])[0]
    assert figures.FIGURES[figures.OF_TORCH](measured) == 1.5
    assert figures.FIGURES[figures.WITH_ADD](measured) == 3.0
    case = settings.call_cases()[0]
    records = [record(case, name, seconds=[], host_seconds=times[name]) for name in times]
    run = judge.read_run(Path(write_run(Path("calls"), records, [])))
    measured = judge.cases_in(run, PARTS["calls"])[0]
    assert figures.FIGURES["of torch's host cost"](measured) == pytest.approx(2 / 3)


def test_the_settings_of_each_part():
    by_part = {name: {case.setting for case in part.cases} for name, part in PARTS.items()}
    assert by_part == {
        "calls": {*settings.CALLS},
        "host-forms": {settings.BESIDE_PLAIN},
        "small": {*settings.STEPS},
        "dit-steps": {*settings.DIT_STEPS},
        "cpu": {*settings.THREADS},
    }
    forward = {case.setting for case in PARTS["calls"].cases if case.direction == "forward"}
    assert {*settings.CALLS} - forward == {"checkpoint"}
    assert {bar.setting: bar.bound for bar in bars.SMALL if bar.subject == "rownorm"} == {
        setting: bound for setting, (bound, _) in settings.STEPS.items()
    }


def test_an_error_is_of_its_case(monkeypatch):
    first = settings.call_cases(tiny=True)[:2]

    def fails(case, is_ours, device):
        if case.setting == "plain":
            raise RuntimeError("no such thing")
        return lambda: None

    monkeypatch.setattr(calls, "call_of", fails)
    found = list(turns.bench_in_turns(first, ["rownorm", "torch"], run="one", rounds=1))
    assert [one.status for one in found] == ["failed", "failed", "ok", "ok"]
    assert found[0].why == "RuntimeError: no such thing"


def test_a_run_is_interrupted_and_resumed(monkeypatch):
    original, left = calls.call_of, [5]

    def interrupted(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(calls, "call_of", interrupted)
    command = ("calls", "--tiny", "--rounds", "1", "--out", "made")
    assert "What was measured is kept" in study(*command, status=130)
    assert len(read("made").records) == 4
    left[0] = 2  # one case, then again
    assert "36 cases, 34 of them to be measured" in study(*command, status=130)
    assert len(read("made").records) == 6
    left[0] = 0
    assert "36 cases, 33 of them to be measured" in study(*command, status=130)


@pytest.mark.parametrize("name", PARTS)
def test_bad_input(name):
    if not torch.cuda.is_available() and name != "cpu":
        assert "--tiny tries it on the CPU" in refused("study", name)
    Path("empty").mkdir()
    assert "holds no measurements" in study(name, "--read", "empty", status=2)
    assert "--read measures nothing" in study(name, "--read", "empty", "--tiny", status=2)
    assert "not published" in study(name, "--tiny", "--publish", "docs", status=2)


def test_the_cpu_is_measured_alone():
    assert "measured alone" in refused("bars", "measure", "--out", "a", "--part", "cpu,host")


@pytest.mark.parametrize("direction", ["forward", "both"])
@pytest.mark.parametrize("operation", ["rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm"])
def test_torch_and_rownorm_compute_the_same_on_a_cpu(operation, direction):
    case = Case(operation=operation, direction=direction, rows=3, cols=16, dtype="fp32")
    made = cpu.calls_of(case, ["rownorm", "torch"], "cpu")
    results = [as_tuple(call()) for call in made.values()]
    assert len(results[0]) == len(output_names(case))
    for ours, torchs in zip(*results, strict=True):
        torch.testing.assert_close(ours, torchs)


@pytest.mark.parametrize("kind", list(SMALL_MODELS))
def test_the_three_kinds_of_norms_compute_the_same(kind):
    tokens = torch.randint(small_models.VOCABULARY, (2, 3))
    outputs = []
    for norms in ("torch", "rownorm", settings.ADD):
        torch.manual_seed(0)
        model = small_models.Model(kind, TINY, norms)
        y = model(tokens)
        y.square().sum().backward()
        assert all(p.grad is not None for p in model.parameters())
        outputs.append(y.detach())
    for y in outputs[1:]:
        torch.testing.assert_close(y, outputs[0], rtol=1e-4, atol=1e-5)


def test_the_widths_of_the_dit():
    """Those of DiT-XL and FLUX, in blocks whose tokens fill a square."""
    cases = settings.dit_cases()
    assert {case.cols for case in cases} == {1152, 3072}
    for size in DIT_SIZES.values():
        assert steps.config_of(size).n_tokens == size.n_tokens
    assert all(bar.applies(case) for case, bar in zip(cases, bars.DIT, strict=False))


def test_forms_are_called_beside_the_plain_norm():
    """The call of the form, and that of a norm of the same shape with a weight and nothing else."""
    for case in settings.form_cases(tiny=True):
        made = calls.forms_of(case, ["rownorm", settings.PLAIN], "cpu")
        form, plain = (as_tuple(call()) for call in made.values())
        assert form[0].numel() == plain[0].numel() == 8 * 16
        assert len(form) == len(output_names(case))
        assert len(plain) == len(output_names(figures.plain_of(case)))
        assert bars.HOST_OF_FORMS[0].applies(case)


def test_a_setting_is_part_of_the_identity_of_a_case():
    case = Case(operation="rms_norm", rows=8, cols=4096)
    other = msgspec.structs.replace(case, setting="autocast bf16")
    assert other.key == "rms_norm (autocast bf16) forward bf16 8x4096 eps=1e-05"
    assert case.key != other.key
