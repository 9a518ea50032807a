"""Records become rows: known times give known medians, bandwidths, shares and speed-ups."""

import msgspec
import pytest

from lab_support.lab_records import CPU, H200, cpu_records, gpu_records, record
from rownorm_lab.data import texts
from rownorm_lab.data.case import Case
from rownorm_lab.data.measurements import Results, fastest_other, results_of

CASE = Case(operation="rms_norm", rows=1000, cols=1000, dtype="fp32")  # 8,004,000 bytes


def timed(provider: str, seconds, case: Case = CASE, **changes):
    return record(case, provider, seconds=list(seconds), **changes)


def only(results: list[Results]) -> Results:
    assert len(results) == 1
    return results[0]


def test_bandwidth_and_shares_of_known_times():
    device = only(
        results_of([timed("rownorm", [3e-6, 4e-6, 5e-6]), timed("ceiling", [2e-6, 2e-6, 2e-6])])
    )
    row, _ = device.rows
    assert row.time.median == 4e-6
    assert row.bandwidth == pytest.approx(8_004_000 / 4e-6)
    assert row.of_ceiling == pytest.approx(0.5)
    assert row.of_peak == pytest.approx(8_004_000 / 4e-6 / 4.8e12)
    assert device.ceiling == pytest.approx(8_004_000 / 2e-6)
    assert device.peak == 4.8e12


def test_speedup_is_paired_within_a_run():
    # Medians say 1.5; every single round says 2.
    ours, theirs = [1e-6, 2e-6, 8e-6], [2e-6, 4e-6, 16e-6]
    device = only(results_of([timed("rownorm", ours), timed("torch", theirs)]))
    mine, torch = device.rows
    assert mine.speedups["torch"] == (2, 2, 2)
    assert torch.speedups["rownorm"] == (0.5, 0.5, 0.5)


def test_ratios_are_those_of_the_shown_times_however_much_the_rounds_spread():
    # Most rounds disturbed rownorm: by round it is slower, by the medians faster.
    ours, theirs = [1e-6, 1e-6, 1e-6, 9e-6, 9e-6], [0.9e-6, 5e-6, 5e-6, 5e-6, 5e-6]
    mine, torch, ceiling = only(
        results_of(
            [timed("rownorm", ours), timed("torch", theirs), timed("ceiling", [5e-7] * 4 + [9e-6])]
        )
    ).rows
    speedup = mine.speedups["torch"]
    assert speedup.ratio == pytest.approx(torch.time.median / mine.time.median)
    assert speedup.low < 1 < speedup.ratio <= speedup.high
    assert mine.of_ceiling == pytest.approx(ceiling.time.median / mine.time.median)
    assert mine.of_ceiling == pytest.approx(mine.bandwidth / ceiling.bandwidth)


@pytest.mark.parametrize("changes", ({"run": "another"}, {"seconds": [2e-6, 2e-6]}))
def test_speedup_of_different_runs_is_of_medians(changes):
    other = {"seconds": [2e-6, 2e-6, 2e-6]} | changes
    device = only(
        results_of([timed("rownorm", [1e-6, 4e-6, 8e-6]), record(CASE, "torch", **other)])
    )
    assert device.rows[0].speedups["torch"].ratio == pytest.approx(0.5)


def test_the_ceiling_has_no_speedups():
    device = only(results_of([timed("rownorm", [2e-6]), timed("ceiling", [1e-6])]))
    assert all(row.speedups == {} for row in device.rows)
    assert device.subject == "rownorm"
    assert device.baseline is None


def test_the_last_record_counts_but_missing_replaces_nothing():
    first = timed("rownorm", [1e-6], time="2026-11-15T10:00:00Z")
    second = timed("rownorm", [2e-6], time="2026-11-15T11:00:00Z")
    gone = record(CASE, "rownorm", status="missing", why="gone", time="2026-11-15T12:00:00Z")
    device = only(results_of([second, gone, first]))
    assert [row.time.median for row in device.rows] == [2e-6]
    assert sum(one.records for one in device.unused) == 2


def test_eps_does_not_make_a_second_point():
    other = msgspec.structs.replace(CASE, eps=1e-3)
    device = only(results_of([timed("rownorm", [1e-6]), timed("rownorm", [2e-6], other)]))
    assert len(device.rows) == 1


@pytest.mark.parametrize("seconds", ([], [0.0, 1e-6], [float("nan")], [float("inf")]))
def test_invalid_times_are_not_used(seconds):
    device = only(results_of([timed("rownorm", seconds)]))
    assert device.measured == []


def test_wrong_results_have_no_time():
    device = only(results_of(gpu_records()))
    wrong = [row for row in device.rows if row.record.status == "wrong"]
    assert wrong
    assert all(row.time is None and row.record.accuracy for row in wrong)


def test_tallest_and_scaling():
    def of(rows, cols):
        return record(Case(operation="rms_norm", rows=rows, cols=cols), "rownorm")

    device = only(results_of([of(8, 64), of(2, 64), of(4, 64), of(16, 128), of(3, 256)]))
    tallest = {(r.record.case.rows, r.record.case.cols) for r in device.rows if r.tallest}
    assert tallest == {(8, 64), (16, 128), (3, 256)}
    assert {r.record.case.cols for r in device.rows if r.scaling} == {64}
    assert not any(r.scaling for r in only(results_of([of(8, 64), of(8, 128)])).rows)


def test_devices_are_separate_and_gpus_come_first():
    gpu, cpu = results_of(cpu_records() + gpu_records())
    assert (gpu.device, cpu.device) == (H200.device, CPU.device)
    assert {row.record.environment.device for row in gpu.rows} == {H200.device}
    assert len(cpu.rows) == len(cpu_records())


def test_the_fastest_other_provider():
    device = only(
        results_of(
            [
                timed("rownorm", [2e-6]),
                timed("torch", [3e-6]),
                timed("liger", [1e-6]),
                timed("ceiling", [5e-7]),
            ]
        )
    )
    assert {row.provider: fastest_other(row) for row in device.rows} == {
        "rownorm": "liger",
        "torch": "liger",
        "liger": "rownorm",
        "ceiling": None,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    (
        (texts.duration(8.5e-7), "850 ns"),
        (texts.duration(1.23456e-5), "12.3 µs"),
        (texts.duration(9.996e-6), "10.0 µs"),
        (texts.duration(9.997e-7), "1.00 µs"),
        (texts.duration(2.5), "2.50 s"),
        (texts.number(3.0), "3"),
        (texts.number(8.5), "8.50"),
        (texts.number(4198.2), "4,198"),
        (texts.gigabytes_per_second(4.8e12), "4,800 GB/s"),
        (texts.memory(0), "0 B"),
        (texts.memory(16), "16 B"),
        (texts.memory(268435456), "268 MB"),
        (texts.percent(0.934), "93%"),
        (texts.percent(0.0412), "4.1%"),
        (texts.percent(1.0), "100%"),
        (texts.times(0.8712), "0.871x"),
        (texts.count(1, "case"), "1 case"),
        (texts.count(1200, "case"), "1,200 cases"),
        (texts.listed([]), ""),
        (texts.listed(["a", "b", "c"]), "a, b and c"),
        (texts.slug("add_rms_norm (fp32 residual)/x"), "add_rms_norm-fp32-residual-x"),
        (texts.slug("../.."), "unnamed"),
    ),
)
def test_texts(text, expected):
    assert text == expected
