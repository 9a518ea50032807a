"""Judging: runs that hold, fall short or are incomplete."""

from pathlib import Path

import msgspec
import pytest

from lab_support.bars_records import good_first_calls, good_records, only, record, write_run
from lab_support.lab_commands import invoke, without_torch
from rownorm_lab.commands.bars import bars, figures, judge
from rownorm_lab.data.case import Case
from rownorm_lab.data.suites import SUITES


def findings(folder):
    """The findings that do not hold: (what, figure, words)."""
    found = judge.findings_of(judge.read_run(Path(folder)), bars.PARTS, bars.FIRST_CALL)
    return [(one.what, one.figure, one.words) for one in found if not one.holds]


def test_the_parts_are_the_whole_suite():
    """But for the calls of forms, which the bars measure in a setting: beside the plain norm."""
    alone = [part for part in bars.PARTS if not part.has_settings]
    whole, forms = (
        {case.key for case in SUITES[name].cases()} for name in ("speed-all", "host-forms")
    )
    assert {case.key for part in alone for case in part.cases} == whole - forms
    for part in (*bars.PARTS, bars.CPU):
        assert all(bar.figure in figures.FIGURES for bar in part.bars)
        for case in part.cases:
            assert any(bar.applies(case) for bar in part.bars), case.key


def test_everything_holds(tmp_path):
    folder = write_run(tmp_path / "a", good_records())
    ran = invoke("bars", "judge", folder, folder)
    assert ran.exit_code == 0, ran.output
    assert ran.output.splitlines()[-1] == "63 of 63 bars hold in every run"
    assert max(map(len, ran.output.splitlines())) <= 100
    assert "SHORT" not in ran.output
    assert "MISSING" not in ran.output


def test_judging_needs_no_torch(tmp_path):
    folder = write_run(tmp_path / "a", good_records())
    ran = without_torch("bars", "judge", folder, folder)
    assert ran.returncode == 0, ran.stderr


def test_one_run_is_enough_only_with_runs_1(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "a", good_records(only(monkeypatch, "host")))
    ran = invoke("bars", "judge", folder)
    assert ran.exit_code == 1
    assert ran.output.splitlines()[-1] == "2 runs are required, 1 given; --runs 1 accepts fewer."
    assert "2 of 2 bars hold in every run" in ran.output
    assert invoke("bars", "judge", folder, "--runs", "1").exit_code == 0
    assert invoke("bars", "judge", folder, folder, "--runs", "1").exit_code == 0


def test_short_in_one_run_of_two(tmp_path, monkeypatch):
    part = only(monkeypatch, "bf16")
    good = good_records(part)
    slow = Case(operation="rms_norm", direction="backward", rows=1024, cols=262144)
    bad = [record(one.case, "rownorm", 0.5) if _is(one, slow) else one for one in good]
    assert sum(old != new for old, new in zip(good, bad, strict=True)) == 1
    folders = [write_run(tmp_path / "a", good), write_run(tmp_path / "b", bad)]
    assert invoke("bars", "judge", folders[0], "--runs", "1").exit_code == 0

    ran = invoke("bars", "judge", *folders)
    assert ran.exit_code == 1
    lines = ran.output.splitlines()
    text = " ".join(ran.output.split())
    case = "bf16: rms_norm backward bf16 1024x262144: "
    assert (
        f"{case}0.9500, 0.5000, must be at least 0.7 of the ceiling, backward, 16385 columns and more"
        in text
    )
    assert f"{case}1.0556, 0.5556, must be at least 1 of the fastest peer, backward" in text
    (place,) = (i for i, line in enumerate(lines) if "SHORT" in line and "1024x262144" in line)
    for cell in ("2000", "4000", "quack 3600", "0.556", "0.500"):
        assert cell in lines[place]
    assert "      0.5000 of the ceiling, not at least 0.7" in lines[place + 1 : place + 3]
    assert max(map(len, lines)) <= 100
    assert lines[-1] == "4 of 6 bars hold in every run"


def _is(one, case):
    return one.provider == "rownorm" and one.case.key == case.key


def test_a_bar_is_met_exactly_at_its_bound(tmp_path, monkeypatch):
    part = only(monkeypatch, "fp32")
    for name, share, n_short in (("exact", 0.70, 0), ("below", 0.699, 8)):
        records = [
            record(case, provider, share if provider == "rownorm" else None)
            for case, names in bars.jobs_of([part])
            for provider in names
            if case.direction == "backward" and case.cols > 16384
        ]
        short = [one for one in findings(write_run(tmp_path / name, records)) if one[1] is not None]
        assert sum("of the ceiling" in words for *_, words in short) == n_short


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, "rownorm was not measured"),
        ({"status": "wrong", "why": "y is off by 9 ulp"}, "rownorm wrong: y is off by 9 ulp"),
    ],
)
def test_a_case_that_was_not_measured_is_missing(tmp_path, monkeypatch, change, words):
    part = only(monkeypatch, "few-rows")
    gone = part.cases[2]
    records = [
        record(case, name, **(change or {}))
        if name == "rownorm" and case == gone
        else record(case, name)
        for case, names in bars.jobs_of([part])
        for name in names
        if change or case != gone
    ]
    folder = write_run(tmp_path / "a", records)
    ran = invoke("bars", "judge", folder, "--runs", "1")
    assert ran.exit_code == 1
    assert words in ran.output
    assert findings(folder) == [(gone.title, None, words)] * 2  # the peers, and the microseconds


def test_a_peer_that_refuses_a_case_does_not_count_and_an_absent_one_is_missing(
    tmp_path, monkeypatch
):
    """A peer that fails everywhere counts as absent."""
    part = only(monkeypatch, "few-rows")
    first, everything = part.cases[:1], part.cases
    for status, cases, is_missing in (
        ("refused", first, False),
        ("refused", everything, False),
        ("failed", first, False),
        ("failed", everything, True),
        ("wrong", everything, True),
        ("missing", everything, True),
    ):
        records = [
            record(case, name, status=status if name == "quack" and case in cases else "ok")
            for case, names in bars.jobs_of([part])
            for name in names
        ]
        found = findings(write_run(tmp_path / f"{status} {len(cases)}", records))
        expected = ["not measured: quack"] if is_missing else []
        assert [words for *_, words in found] == expected * len(cases)


def test_options_are_compared_with_the_plain_norm_of_the_same_run(tmp_path, monkeypatch):
    part = only(monkeypatch, "options")
    jobs = bars.jobs_of([part])
    plain = [case for case, _ in jobs if not case.pre_bias and not case.activation]
    assert len(plain) == len(part.cases) // 3

    def folder(name, share, kept):
        return write_run(
            tmp_path / name,
            [
                record(case, provider, share if case in plain and provider == "rownorm" else None)
                for case, names in jobs
                for provider in names
                if case in kept or case not in plain
            ],
        )

    assert findings(folder("same", 0.95 / 0.975, plain)) == []
    short = findings(folder("faster", 0.95 / 0.965, plain))
    assert len(short) == len(part.cases)
    assert short[0][2] == "0.9650 of the plain norm, not at least 0.97"
    missing = findings(folder("gone", None, plain[1:]))
    assert {words for *_, words in missing} == {"the plain norm was not measured"}
    assert len(missing) == 3


def test_a_fourth_of_the_elements_is_compared_with_all_of_them(tmp_path, monkeypatch):
    part = only(monkeypatch, "sizes")
    jobs = bars.jobs_of([part])
    assert {case.rows * case.cols for case in part.cases} == {1 << 24, 1 << 26, 1 << 28}

    def folder(name, share, kept=lambda case: True):
        """At 2^26 elements rownorm has this share of its speed elsewhere."""
        return write_run(
            tmp_path / name,
            [
                record(case, provider, 0.95 * (share if is_fourth(case, provider) else 1))
                if provider == "rownorm"
                else record(case, provider)
                for case, names in jobs
                for provider in names
                if kept(case)
            ],
        )

    def is_fourth(case, provider):
        return (provider, case.rows * case.cols) == ("rownorm", 1 << 26)

    assert findings(folder("near", 0.975)) == []
    short = findings(folder("far", 0.965))
    fourths = {case.title for case in part.cases if is_fourth(case, "rownorm")}
    assert {what for what, *_ in short} == fourths
    assert len(fourths) == 4 * 8
    assert {words for *_, words in short} == {
        "0.9650 of the share with 2^28 elements, not at least 0.97"
    }
    missing = findings(folder("gone", 1, lambda case: case.rows * case.cols < 1 << 28))
    assert "2^28 elements were not measured" in {words for *_, words in missing}


def test_memory(tmp_path, monkeypatch):
    part = only(monkeypatch, "residual")
    records = [
        record(case, name, peak_bytes=figures.allowed_bytes(case) + (name == "rownorm"))
        for case, names in bars.jobs_of([part])
        for name in names
    ]
    short = findings(write_run(tmp_path / "a", records))
    assert len(short) == len(part.cases)
    assert all("of the memory allowed" in words for *_, words in short)


def test_allowed_memory():
    mib = 1 << 20
    forward = Case(operation="layer_norm", rows=1024, cols=1024)
    assert figures.allowed_bytes(forward) == 2 * mib + mib + 2 * 4096
    assert figures.allowed_bytes(Case(operation="rms_norm", rows=3, cols=100)) == 1024 + 512
    backward = Case(operation="rms_norm", direction="backward", rows=1024, cols=1024)
    assert figures.allowed_bytes(backward) == 2 * mib + mib + 2048 + 64 * mib + 2 * mib
    add = msgspec.structs.replace(backward, operation="add_rms_norm", residual_dtype="fp32")
    assert figures.allowed_bytes(add) == figures.allowed_bytes(backward) + 4 * mib + mib


def test_host_cost(tmp_path, monkeypatch):
    part = only(monkeypatch, "host")
    records = [
        record(case, name, host_seconds=[1.15e-5 if name == "rownorm" else 1e-5] * 3)
        for case, names in bars.jobs_of([part])
        for name in names
    ]
    short = findings(write_run(tmp_path / "a", records))
    assert [what for what, *_ in short] == [c.title for c in part.cases if c.direction == "forward"]
    assert short[0][2] == "1.1500 of torch's host cost, not at most 1.1"


def test_the_same_shape_in_two_parts_is_two_cases(tmp_path, monkeypatch):
    """Few rows and host both have 8x4096 in fp16; their eps differs."""
    parts = [one for one in bars.PARTS if one.name in ("few-rows", "host")]
    monkeypatch.setattr(bars, "PARTS", parts)
    records = [
        record(case, name, 0.1 if name == "rownorm" and case.eps == 1e-5 else None)
        for case, names in bars.jobs_of(parts)
        for name in names
    ]
    assert findings(write_run(tmp_path / "a", records)) == []


def test_the_order_of_the_parts_is_fair_to_peers():
    order = [part.name for part in bars.PARTS]
    assert order.index("few-rows") > order.index("fp16")  # fla tunes once for both
    by_key = {case.key: names for case, names in bars.jobs_of(bars.PARTS)}
    (options,) = (part for part in bars.PARTS if part.name == "options")
    for case in options.cases:
        assert by_key[figures.plain_of(case).key] == ("rownorm", *bars.PEERS_AND_CEILING)


def test_first_calls(tmp_path):
    calls = good_first_calls()
    calls[0].compiled["backward"].append("one more")
    calls[1].compiled["other rows"].append("f")
    found = findings(write_run(tmp_path / "a", good_records(), calls[:-1]))
    assert [(what, figure) for what, figure, _ in found] == [
        ("rms_norm 1000 columns", 3),
        ("rms_norm 4096 columns", 1),
        *[("layer_norm 65536 columns", None)] * 4,
    ]
    ran = invoke("bars", "judge", tmp_path / "a", "--runs", "1")
    assert ran.exit_code == 1
    lines = ran.output.splitlines()
    (row,) = (line.split() for line in lines if line.startswith("  RMSNorm 1000"))
    assert row == ["RMSNorm", "1000", "1", "1", "3", "0", "SHORT"]
    (tmp_path / "a" / judge.FIRST_CALL_FILE).write_text("[{")
    with pytest.raises(ValueError, match="cannot be read as counts"):
        judge.read_run(tmp_path / "a")
