"""Of several records of one case and provider the newest is used, and a sentence says so."""

import pytest

from rownorm.lab.cases.case import Case
from rownorm.lab.results.latest import Unused, latest, mixed_text, unused_text
from rownorm.lab.results.rows import results_of
from support.lab_records import record

MONDAY = {"run": "monday", "time": "2026-11-16T09:00:00+00:00"}
TUESDAY = {"run": "tuesday", "time": "2026-11-17T09:00:00+00:00"}


def of(provider="rownorm", rows=8, **fields):
    return record(Case(operation="rms_norm", rows=rows, cols=4096), provider, **fields)


def notes(*records) -> list[str]:
    (results,) = results_of(records)
    return results.notes


def test_the_newest_record_is_used_in_either_order():
    old, new = of(**MONDAY), of(**TUESDAY)
    for order in ([old, new], [new, old]):
        used, unused = latest((one.key, one) for one in order)
        assert list(used.values()) == [new]
        assert unused == [Unused("monday", "tuesday", False, 1)]


def test_a_missing_provider_replaces_no_measurement():
    measured, missing = of(**MONDAY), of(status="missing", why="gone", **TUESDAY)
    used, unused = latest((one.key, one) for one in (measured, missing))
    assert list(used.values()) == [measured]
    assert unused == [Unused("tuesday", "monday", True, 1)]


@pytest.mark.parametrize(
    ("unused", "text"),
    (
        (
            Unused("monday", "tuesday", False, 294),
            "294 records of run monday are not used, because run tuesday has a newer one of the same case and "
            "provider.",
        ),
        (
            Unused("monday", "monday", False, 1),
            "1 record of run monday is not used, because that run has a newer one of the same case and provider.",
        ),
        (
            Unused("tuesday", "monday", True, 2),
            "2 records of run tuesday are not used, because the provider was missing there, and run monday "
            "measured it.",
        ),
        (
            Unused("", "monday", False, 2),
            "2 records of a run without a name are not used, because run monday has a newer one of the same case "
            "and provider.",
        ),
    ),
)
def test_what_is_not_used_in_words(unused, text):
    assert unused_text(unused) == text


def test_cases_that_mix_runs_are_counted():
    assert mixed_text([[of(), of("torch")]]) == ""
    assert mixed_text([[of(**MONDAY), of("torch", **TUESDAY)]]).startswith(
        "1 case has measurements of several runs."
    )


def test_two_runs_of_the_same_cases():
    both = [of(name, **run) for run in (MONDAY, TUESDAY) for name in ("rownorm", "torch")]
    (note,) = notes(*both)
    assert note.startswith("2 records of run monday are not used, because run tuesday")


def test_a_provider_that_was_measured_again_alone():
    """As in a resumed run whose first record was damaged or had failed."""
    first = [of(status="failed", why="out of memory", **MONDAY), of("torch", **MONDAY)]
    replaced, mixed = notes(*first, of(**TUESDAY))
    assert replaced.startswith("1 record of run monday is not used")
    assert mixed.startswith("1 case has measurements of several runs")


def test_one_run_has_no_notes():
    assert notes(of(), of("torch"), of(rows=16)) == []
