"""Of several records of one case and provider the newest is used, and a sentence says so."""

import pytest

from lab_support.lab_records import record
from rownorm_lab.data.case import Case
from rownorm_lab.data.latest import Unused, latest, mixed_text, unused_texts
from rownorm_lab.data.measurements import results_of

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
    ("unused", "texts"),
    (
        ([], []),
        (
            [Unused("monday", "tuesday", False, 294), Unused("monday", "wednesday", False, 1000)],
            [
                "1,294 records are not used, because there is a newer one of the same case and provider: 1,294 of run "
                "monday (used: run tuesday and run wednesday)."
            ],
        ),
        (
            [Unused("", "monday", False, 1), Unused("tuesday", "monday", True, 2)],
            [
                "1 record is not used, because there is a newer one of the same case and provider: 1 of a run without "
                "a name (used: run monday).",
                "2 records of run tuesday are not used, because the provider was missing in that run and was measured "
                "in an older one, run monday.",
            ],
        ),
    ),
)
def test_what_is_not_used_in_words(unused, texts):
    assert unused_texts(unused) == texts


def test_cases_that_mix_runs_are_counted():
    assert mixed_text([[of(), of("torch")]]) == ""
    assert mixed_text([[of(**MONDAY), of("torch", **TUESDAY)]]).startswith(
        "1 case has measurements of several runs."
    )


def test_two_runs_of_the_same_cases():
    both = [of(name, **run) for run in (MONDAY, TUESDAY) for name in ("rownorm", "torch")]
    (note,) = notes(*both)
    assert note.endswith("2 of run monday (used: run tuesday).")


def test_a_provider_that_was_measured_again_alone():
    """As in a resumed run whose first record was damaged or had failed."""
    first = [of(status="failed", why="out of memory", **MONDAY), of("torch", **MONDAY)]
    replaced, mixed = notes(*first, of(**TUESDAY))
    assert replaced.endswith("1 of run monday (used: run tuesday).")
    assert mixed.startswith("1 case has measurements of several runs")


def test_one_run_has_no_notes():
    assert notes(of(), of("torch"), of(rows=16)) == []


def test_copies_of_a_record_are_used_once_without_a_note():
    assert notes(of(**MONDAY), of(**MONDAY)) == []
