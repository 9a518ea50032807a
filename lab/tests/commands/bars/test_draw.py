"""The draw: which widths a seed picks, a trial run on this machine, judging and publishing runs of two seeds."""

from pathlib import Path

import pytest
import torch

from lab_support.bars_records import good_records, record, write_run
from lab_support.lab_commands import invoke, refused
from rownorm_lab.commands.bars import bars, draw, judge
from rownorm_lab.data.records import read
from rownorm_lab.data.suites import SUITES

pytestmark = pytest.mark.usefixtures("command_line")
TINY = ("bars", "measure", "--part", "draw", "--tiny", "--rounds", "1")
HOST = bars.PARTS[0]
MODELS = ("llama-3-8b", "llama-3-70b", "qwen3", "gemma", "gpt-2", "vit", "dit", "flux", "evoformer")


def write_drawn(folder, seed, shares=None):
    """A run with this seed in which every bar holds, but for rownorm's shares of the bandwidth by case."""
    records = [
        record(case, name, (shares or {}).get(case.key) if name == "rownorm" else None)
        for case, names in bars.jobs_of([bars.DRAW.of_seed(seed)])
        for name in names
    ]
    written = write_run(Path(folder), records, [])
    draw.write_seed(Path(folder), seed)
    return written


@pytest.mark.parametrize("seed", range(20))
def test_what_a_seed_draws(seed):
    drawn = draw.widths(seed)
    assert drawn == draw.widths(seed) != draw.widths(seed + 1)
    narrow, regular, models, odd = drawn.values()
    assert all(32 <= cols <= 1024 for cols in narrow)
    assert all(cols % 64 == 0 and 64 <= cols <= 16384 for cols in regular)
    assert set(models) <= set(draw.MODEL_COLS)
    assert all(cols % 2 and 32 < cols < 16384 for cols in odd)
    everything = {*narrow, *regular, *models, *odd}
    assert [*map(len, drawn.values()), len(everything)] == [8, 8, 8, 8, 32]

    cases = draw.cases(seed)
    plain, added = ([one for one in cases if one.adds is adds] for adds in (False, True))
    assert len({case.key for case in cases}) == len(cases) == 160
    for of_kind, n_cols in ((plain, 32), (added, 8)):
        cols = {case.cols for case in of_kind}
        assert cols <= everything
        assert len(cols) == n_cols
        kinds = {(case.operation, case.direction, case.cols) for case in of_kind}
        assert len(kinds) == len(of_kind) == 4 * n_cols
    assert {case.residual_dtype for case in added} == {"fp32"}
    assert {case.dtype for case in cases} == {"bf16"}
    assert all(any(bar.applies(case) for bar in bars.DRAWN) for case in cases)


def test_a_printed_seed_draws_the_same_with_another_python():
    assert draw.widths(7)["32 to 1024 columns"] == [*(363, 1002, 186, 436, 698, 81, 106, 872)]


def test_rows():
    """Narrow rows have 2^28 elements, wider ones the rows of the suite speed."""
    assert draw.shape(64) == (1 << 22, 64)
    assert draw.shape(1024) == (1 << 18, 1024)
    assert draw.shape(96)[0] * 96 == pytest.approx(1 << 28, rel=1e-6)
    speed = {(case.rows, case.cols) for case in SUITES["speed"].cases()}
    for rows, cols in speed:
        if 1024 < cols <= draw.WIDEST:
            assert draw.shape(cols) == (rows, cols)


def test_the_widths_of_the_models_of_the_suites_can_be_drawn():
    assert {case.cols for name in MODELS for case in SUITES[name].cases()} <= set(draw.MODEL_COLS)


def test_the_bars():
    assert [str(bar) for bar in bars.DRAW.bars] == [
        "at least 0.97 of the fastest peer, forward",
        "at least 1 of the fastest peer, backward",
    ]
    assert bars.DRAW not in bars.chosen(())[0]


def test_a_trial_is_resumed_with_its_seed():
    command = (*TINY, "--provider", "rownorm,torch", "--out", "trial")
    ran = invoke(*command)
    assert ran.exit_code == 0, ran.output
    seed = draw.read_seed(Path("trial"))
    assert f"The seed of the draw is {seed}." in ran.output
    records = read("trial").records
    cases = draw.cases(seed, tiny=True)
    assert {one.case.key for one in records} == {case.key for case in cases}
    assert len(records) == 2 * len(cases)
    assert all(one.status == "ok" and one.is_timed for one in records)

    for again in ((), ("--seed", str(seed))):
        ran = invoke(*command, *again)
        assert ran.exit_code == 0
        assert f"{len(cases)} cases, 0 of them to be measured" in ran.output
    ran = invoke(*command, "--seed", str(seed + 1))
    assert ran.exit_code == 2
    assert f"has the seed {seed}, not {seed + 1}" in ran.output
    assert draw.read_seed(Path("trial")) == seed

    ran = invoke("bars", "judge", "trial", "--tiny", "--part", "draw", "--runs", "1")
    assert ran.exit_code == 0, ran.output
    assert f"Widths drawn by a seed (GB/s), seed {seed}" in ran.output
    assert "nothing is judged" in ran.output
    ran = invoke("bars", "judge", "trial", "--part", "draw", "--runs", "1")
    assert (
        ran.exit_code,
        "rownorm was not measured: 160 cases" in " ".join(ran.output.split()),
    ) == (1, True)


def test_seeds_are_fresh_unless_they_are_named(tmp_path):
    assert len({draw.seed_for(tmp_path, None) for _ in range(3)}) == 3
    assert draw.seed_for(tmp_path, 7) == 7
    ran = invoke(*TINY, "--provider", "rownorm", "--seed", "7", "--limit-s", "1", "--out", "made")
    assert ran.exit_code in (0, 3), ran.output
    assert "The seed of the draw is 7." in ran.output
    assert draw.read_seed(Path("made")) == 7


def test_a_folder_with_a_seed_alone_is_resumed():
    """Compiling was interrupted: what was compiled is of these widths."""
    Path("made").mkdir()
    draw.write_seed(Path("made"), 7)
    ran = invoke(*TINY, "--provider", "rownorm", "--limit-s", "1", "--out", "made")
    assert ran.exit_code in (0, 3), ran.output
    assert "The seed of the draw is 7." in ran.output


def test_bad_input(monkeypatch):
    assert "add --part draw" in refused("bars", "measure", "--seed", "7", "--out", "made")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = refused("bars", "measure", "--part", "draw", "--out", "made")
    assert "--tiny tries it on the CPU" in words
    assert not Path("made").exists()


def test_runs_of_two_seeds_are_judged_and_published():
    first, second = write_drawn("first", 7), write_drawn("second", 8)
    ran = invoke("bars", "judge", first, second, "--part", "draw")
    assert ran.exit_code == 0, ran.output
    assert "2 of 2 bars hold in every run" in ran.output
    assert "160 of 160" in ran.output  # forward cases of both runs
    ran = invoke("bars", "publish", first, second, "--part", "draw", "--out", "docs")
    assert ran.exit_code == 0, ran.output
    assert [file.name for file in Path("docs").iterdir()] == ["draw.md"]
    page = Path("docs/draw.md").read_text()
    for number, seed in ((1, 7), (2, 8)):
        assert f"## Run {number}, seed {seed}\n\n### RMSNorm forward\n" in page
    assert "falls short" not in page
    for seed in (7, 8):
        for case in draw.cases(seed):
            assert f"| {case.rows}x{case.cols} |" in page


def test_one_case_of_one_seed_falls_short():
    slow = draw.cases(8)[0]
    folders = [write_drawn("first", 7), write_drawn("second", 8, {slow.key: 0.8})]
    ran = invoke("bars", "judge", *folders, "--part", "draw")
    assert ran.exit_code == 1
    assert f"draw: {slow.title}, seed 8: 0.8889, must be" in " ".join(ran.output.split())
    assert "1 of 2 bars hold in every run" in ran.output
    assert invoke("bars", "publish", *folders, "--part", "draw", "--out", "docs").exit_code == 0
    page = Path("docs/draw.md").read_text()
    assert f"- {slow.title}, seed 8: 0.8889 of the fastest peer, not at least 0.97" in page
    (finding,) = [
        one for one in judge.judge_part(judge.read_run(Path("second")), bars.DRAW) if not one.holds
    ]
    assert finding.figure == pytest.approx(0.8 / 0.9)


def test_a_run_without_a_draw():
    with_draw = write_drawn("first", 7)
    without = write_run(Path("second"), good_records(HOST), [])
    ran = invoke("bars", "judge", with_draw, without, "--part", "draw")
    assert ran.exit_code == 1
    assert "run 2, draw: nothing was drawn; rownorm bars measure --part draw" in ran.output
    ran = invoke("bars", "judge", without, "--runs", "1", "--part", "draw")
    assert ran.exit_code == 1
    ran = invoke("bars", "publish", without, "--part", "draw", "--out", "docs")
    assert ran.exit_code == 2
    assert "no run has measured drawn widths" in ran.output
    assert not Path("docs").exists()

    index = Path("docs/README.md")
    assert invoke("bars", "publish", without, "--out", "docs").exit_code == 0
    assert "Widths drawn by a seed: not measured." in index.read_text()
    assert "| draw |" not in index.read_text()
    assert invoke("bars", "publish", with_draw, "--out", "docs").exit_code == 0
    assert "Widths drawn by a seed: [draw](draw.md)." in index.read_text()
    assert "| draw | at least 0.97 of the fastest peer, forward |" in index.read_text()
