"""Many records: the time of a report grows linearly, and the page shows as many as a browser can draw."""

import sys

import pytest

from lab_support.lab_records import cpu_records, gpu_records
from lab_support.many_records import many_records
from rownorm_lab.data.measurements import cases_of, results_of
from rownorm_lab.page.analysis import analysis
from rownorm_lab.page.excerpt import excerpt
from rownorm_lab.page.page import page
from rownorm_lab.page.write import write_report


def calls_for(records) -> int:
    """The number of Python calls that a report makes. Unlike time, it does not depend on the machine."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        results = results_of(records)
        analysis(results)
        page(excerpt(results)[0])
    finally:
        sys.setprofile(None)
    return calls


def test_a_report_takes_linear_time(monkeypatch):
    """Twice the records: twice the additional calls. If they grew with the square, it would be four times."""
    monkeypatch.setattr("rownorm_lab.page.page.specs", lambda providers: {})  # constant and slow
    records = many_records(1008)
    one, two, four = (calls_for(records[:n]) for n in (252, 504, 1008))
    assert (four - two) / (two - one) < 2.4


def test_a_page_of_usual_size_shows_everything():
    results = results_of(gpu_records() + cpu_records())
    assert excerpt(results) == (results, "")


@pytest.mark.parametrize("most", (60, 300, 1000))
def test_an_excerpt_keeps_whole_cases_of_every_group(most):
    results = results_of(many_records(2016) + cpu_records())
    shown, said = excerpt(results, most)
    groups = sum(len(one.groups) for one in results)
    # One case of each group is the least, and each group rounds its share.
    assert sum(len(one.rows) for one in shown) <= most + 7 * groups
    for before, after in zip(results, shown, strict=True):
        assert after.groups == before.groups
        assert [row for row in before.rows if row in after.rows] == after.rows
        assert all(len(case) == len(before.providers) for case in cases_of(after.rows))
    counts = [sum(len(cases_of(one.rows)) for one in some) for some in (shown, results)]
    assert f"show {counts[0]} of {counts[1]} cases" in said
    assert "analysis.md covers all cases" in said


def test_an_excerpt_keeps_what_line_charts_draw_and_failures_first():
    (results,) = results_of(gpu_records())
    ((shown,), _) = excerpt([results], len(results.rows) * 3 // 4)
    assert any(row.record.status == "failed" for row in shown.rows)
    assert any(row.record.status == "wrong" for row in shown.rows)
    assert {row.record.case.cols for row in shown.rows if row.scaling} == {4096}


def test_the_page_and_the_terminal_say_what_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("rownorm_lab.page.excerpt.excerpt.__defaults__", (20,))
    steps = []
    write_report(gpu_records(), tmp_path, plots=False, on_step=steps.append)
    said = "This page and the plots show 4 of 16 cases"
    assert any(step.startswith(said) for step in steps)
    assert said in (tmp_path / "report.html").read_text()
    assert said not in (tmp_path / "analysis.md").read_text()
