"""The top of the page in a real browser: the verdict, its baseline, and what it is about."""

import pytest

from lab_support.lab_records import gpu_records
from lab_support.report_page import change, choose, lines, marks, measured, show, top


def test_the_baseline_is_the_fastest_other_provider(shared):
    page = shared("gpu")
    assert page.locator("#baseline").input_value() == "fastest other"
    expected = "Speed-up of rownorm over the fastest other provider"
    assert page.locator("#speedup h2").inner_text() == expected
    assert page.locator("#over").inner_text() == "speed-up over fastest other"
    of_case = {}
    for case, shape, provider, _, speedup, *_ in lines(page):
        of_case.setdefault((case, shape), {})[provider] = speedup
    for speedups in of_case.values():
        assert list(speedups.values()).count("baseline") == 1
        assert speedups["rownorm"].split("x")[0] >= "0.9"
        assert "baseline" not in (speedups["rownorm"], speedups["ceiling"])


def test_another_baseline_can_be_chosen(reports, visit):
    page = visit(reports("gpu"))
    first = [line[4] for line in lines(page)]
    choose(page, "baseline", "quack")
    assert page.locator("#speedup h2").inner_text() == "Speed-up of rownorm over quack"
    assert page.locator("#over").inner_text() == "speed-up over quack"
    assert "median speed-up over quack" in top(page)[1][1]
    second = {line[2]: line[4] for line in lines(page)}
    assert second["quack"] == "baseline"
    assert second["torch"].startswith("0.")
    assert [line[4] for line in lines(page)] != first
    choose(page, "subject", "liger")
    ran = measured(gpu_records())
    assert marks(page)["speedup"] == sum(r.provider == "liger" for r in ran)
    assert page.locator(".device:visible .filtered").inner_text().endswith("of liger in this run.")
    assert "cases: fastest or level" in top(page)[1][0]


@pytest.mark.parametrize("name", ("gpu", "cpu"))
def test_the_verdict_needs_no_script(reports, shared, visit, name):
    plain = visit(reports(name), java_script_enabled=False)
    assert top(shared(name))[0] == top(plain)[0]


def test_the_figures(shared):
    found = top(shared("gpu"))[1]
    labels = [text.splitlines()[0] for text in found]
    assert labels == [
        "cases: fastest or level",
        "median speed-up over the fastest other provider",
        "median speed-up over eager PyTorch",
        "of the measured ceiling, median",
        "host time of a forward call, median",
        "largest error against fp64",
    ]


def test_the_figures_agree_with_the_verdict(shared):
    verdict, (counted, over_fastest, over_eager, *_) = top(shared("gpu"))
    share = counted.splitlines()[1]
    assert f"fastest or level in {share} cases" in verdict
    ratios = [text.splitlines()[1] for text in (over_fastest, over_eager)]
    assert f"{ratios[0]} over the fastest other provider" in verdict
    assert f"{ratios[1]} over eager PyTorch" in verdict


def test_the_figures_follow_the_filters(reports, visit):
    page = visit(reports("gpu"))
    scope = page.locator(".device:visible .filtered")
    everything = top(page)
    assert scope.inner_text() == "All 16 cases of rownorm in this run."
    assert not page.locator("#reset").is_visible()
    choose(page, "dtype", "fp16")
    assert top(page)[1][0].splitlines()[:2] == ["cases: fastest or level", "4 of 4"]
    assert top(page)[0] == everything[0]  # the verdict is about the whole run
    assert scope.inner_text() == "Only fp16: 4 of 16 cases."
    show(page, "quack", False)
    assert scope.inner_text() == "Only fp16: 4 of 16 cases, without quack."
    assert all("quack" not in line for line in lines(page))
    change(page, lambda: page.locator("#reset").click())
    assert top(page) == everything


def test_a_large_run_says_what_is_preselected(reports, visit, tmp_path):
    text = reports("gpu").read_text()
    assert "const LARGE = 3000;" in text
    small = tmp_path / "report.html"
    small.write_text(text.replace("const LARGE = 3000;", "const LARGE = 100;"))
    page = visit(small)
    assert "Only rms_norm, forward, bf16: 4 of 16 cases; preselected" in page.inner_text(
        ".filtered"
    )
    change(page, lambda: page.locator("#reset").click())
    assert page.inner_text(".filtered") == "All 16 cases of rownorm in this run."


@pytest.mark.parametrize("name", ("failed", "failed on a CPU"))
def test_a_failed_run_opens_with_its_causes(shared, name):
    page = shared(name)
    assert page.locator(".verdict").first.inner_text().startswith("Nothing was measured on ")
    causes = page.locator(".causes")
    assert "memory" in causes.inner_text()
    assert causes.bounding_box()["y"] < 250
    assert "These are CPU timings" not in page.inner_text("body")
    assert not page.locator("#bandwidth").count()
    assert not page.locator(".filters").count()


def test_without_a_gpu_the_shipped_results_are_at_the_end_and_folded(shared):
    page = shared("cpu")
    assert "On this CPU" in page.locator(".verdict").first.inner_text()
    fold, shipped = page.locator("details.shipped"), page.locator("#shipped")
    assert not shipped.is_visible()
    assert "Not from this machine: results of an NVIDIA H200" in fold.inner_text()
    assert fold.bounding_box()["y"] > page.locator("#results").bounding_box()["y"]
    fold.locator("summary").first.click()
    marks = "#shipped .mark-symbol.role-mark path"
    page.wait_for_function(f"document.querySelectorAll('{marks}').length > 100")
    assert shipped.locator(".panel .plot").count() == 2
    assert shipped.locator(".panel .plot").first.bounding_box()["width"] > 200
    fold.locator("summary").first.click()


def test_cpu_times_are_not_called_device_times(shared):
    assert "device times" not in shared("cpu").inner_text("#method")
    assert "Times are device times" in shared("gpu").inner_text("#method")
