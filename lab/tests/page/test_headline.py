"""The verdict at the top: against the fastest other provider, with the rule for a level case."""

import msgspec
import pytest

from lab_support.lab_records import failed_records, gpu_records, record
from rownorm_lab.data.case import Case
from rownorm_lab.data.measurements import Results, fastest_other, results_of
from rownorm_lab.data.statistics import Ratio
from rownorm_lab.page import headline
from rownorm_lab.page.failures import causes, failures_of, problems
from rownorm_lab.page.fastest import standing_of, standings, with_baselines

CASE = Case(operation="rms_norm", rows=1000, cols=1000, dtype="fp32")


def timed(provider: str, seconds, case: Case = CASE, **changes):
    return record(case, provider, seconds=list(seconds), **changes)


def only(results: list[Results]) -> Results:
    assert len(results) == 1
    return results[0]


def of_three_cases() -> Results:
    """Faster by half, equal, slower by half: one case each."""
    records = []
    for rows, factor in ((10, 0.5), (20, 1.0), (30, 2.0)):
        shape = msgspec.structs.replace(CASE, rows=rows)
        rounds = [1e-6, 2e-6, 3e-6, 1e-6, 2e-6, 3e-6]
        records += [
            timed("rownorm", [factor * t for t in rounds], shape),
            timed("torch", rounds, shape),
            timed("liger", [9e-6] * 6, shape),
        ]
    return only(results_of(records))


@pytest.mark.parametrize(
    ("speedup", "rounds", "standing"),
    [
        (Ratio(1.2, 1.1, 1.3), 10, "fastest"),
        (Ratio(0.8, 0.7, 0.9), 10, "slower"),
        (Ratio(1.009, 1.008, 1.010), 10, "level"),  # less than 1%
        (Ratio(0.992, 0.991, 0.993), 10, "level"),
        (Ratio(1.02, 0.999, 1.03), 10, "level"),  # the interval includes 1
        (Ratio(1.02, 1.015, 1.03), 10, "fastest"),
        (Ratio(1.02, 0.98, 1.04), 10, "unclear"),  # the interval includes 1 and is wide
        (Ratio(2.0, 2.0, 2.0), 5, "unclear"),  # too few rounds
    ],
)
def test_the_standing_of_a_speedup(speedup, rounds, standing):
    assert standing_of(speedup, rounds) == standing


def test_the_fastest_other_provider_is_that_of_the_case():
    results = only(results_of(gpu_records()))
    for row in results.of("rownorm"):
        others = {
            one.provider: one.time.median
            for one in results.measured
            if one.record.case == row.record.case and one.provider not in ("rownorm", "ceiling")
        }
        assert others[fastest_other(row)] <= 1.02 * min(others.values())
    assert fastest_other(only(results_of([timed("rownorm", [1e-6])])).rows[0]) is None


def test_all_rows_of_a_case_have_one_baseline():
    results = only(results_of(gpu_records()))
    found = {}
    for row, baseline in with_baselines(results):
        assert found.setdefault(row.record.case.key, baseline) == baseline
        assert baseline not in ("rownorm", "ceiling", None)
    assert len(found) == len(results.of("rownorm"))


def test_standings_count_cases():
    device = of_three_cases()
    assert standings(device.of("rownorm")) == (1, 1, 1, 0)
    assert headline.sentence(device) == (
        "rownorm is fastest or level in 2 of 3 cases, slower in 1. Its median speed-up is 1.00x over the fastest "
        "other provider of each case and 1.00x over eager PyTorch."
    )


def test_with_one_other_provider_it_is_named():
    device = only(results_of([timed("rownorm", [1e-6] * 6), timed("torch", [2e-6] * 6)]))
    said = headline.sentence(device)
    assert "Its median speed-up over eager PyTorch, the only other provider, is 2.00x." in said


def test_noise_is_not_a_tie():
    noisy = [1e-6, 9e-6, 2e-6, 8e-6, 3e-6, 4e-6]
    device = only(results_of([timed("rownorm", noisy), timed("torch", noisy[::-1])]))
    assert standings(device.of("rownorm")).unclear == 1
    assert "too noisy to decide in 1" in headline.sentence(device)


def test_many_suspect_measurements_give_a_warning():
    sure, suspect = timed("rownorm", [1e-6]), timed("torch", [1e-6], suspect=["spread of 40%"])
    assert headline.suspect_warning(only(results_of([sure]))) == ""
    assert headline.suspect_warning(only(results_of([sure, suspect]))).startswith(
        "1 of 2 measurements"
    )


def test_reasons_that_differ_only_in_numbers_are_merged():
    shapes = [msgspec.structs.replace(CASE, rows=rows) for rows in (10, 20, 30)]
    records = [
        timed("rownorm", [1e-6], shape, suspect=[f"spread of {spread}% up to the 80th"])
        for shape, spread in zip(shapes, (9, 110.5, 38), strict=True)
    ]
    records.append(record(CASE, "torch", status="failed", why="error 7"))
    failed, suspect = failures_of(only(results_of(records)))
    assert (failed.kind, failed.provider, failed.why) == ("failed", "torch", "error 7")
    assert suspect.why == "spread of 9 to 110.5% up to the 80th"
    assert len(suspect.rows) == 3


def test_numbers_with_an_exponent_are_merged_whole():
    records = [
        record(
            msgspec.structs.replace(CASE, rows=rows),
            "torch",
            status="wrong",
            why=f"{error} is accepted",
        )
        for rows, error in ((1, "3.74e-05"), (2, "5.2e-05"))
    ]
    (failure,) = failures_of(only(results_of(records)))
    assert failure.why == "3.74e-05 to 5.2e-05 is accepted"


def test_sentences_when_little_was_measured():
    assert headline.sentence(only(results_of(failed_records()))) == (
        "Nothing was measured on NVIDIA H200: 1 failed, 1 refused and 1 missing."
    )
    alone = headline.sentence(only(results_of([timed("rownorm", [1e-6])])))
    assert "measured in 1 case, without another provider" in alone
    without = headline.sentence(only(results_of([timed("torch", [1e-6])])))
    assert without.startswith("rownorm was not measured here. torch")
    wrong = record(msgspec.structs.replace(CASE, rows=7), "rownorm", status="wrong", why="off")
    assert "In addition it has 1 wrong." in headline.sentence(
        only(results_of([timed("rownorm", [1e-6]), wrong]))
    )


def test_a_failed_run_gives_its_causes():
    text = causes(only(results_of(failed_records())))
    assert "CUDA error: out of memory" in text
    assert text.index("failed") < text.index("refused") < text.index("missing")
    assert causes(only(results_of(gpu_records()))) == ""


def test_equal_causes_are_given_once():
    records = [
        record(CASE, name, status="failed", why="no memory") for name in ("rownorm", "torch")
    ]
    text = causes(only(results_of(records)))
    assert text.count("no memory") == 1
    assert "rownorm (1 case) and torch (1 case)" in text


def test_errors_beside_results_are_counted():
    assert problems(only(results_of(gpu_records()))).startswith(
        "plain_block was wrong in 1 case and plain_block failed in 2 cases"
    )
    assert problems(only(results_of([timed("rownorm", [1e-6])]))) == ""
