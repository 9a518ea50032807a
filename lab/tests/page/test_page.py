"""The page in a real browser: it draws, its filters and its table work, and it loads nothing from the network."""

import csv
import re

import msgspec
import pytest

from lab_support.lab_records import CPU, H200, cpu_records, gpu_records, record
from lab_support.report_page import CHARTS, change, choose, lines, marks, measured, show, widths
from rownorm_lab.data.case import Case
from rownorm_lab.page.write import write_report


def test_it_draws_every_chart_and_shows_the_verdict(shared):
    page = shared("gpu")
    found = measured(gpu_records())
    counted = marks(page)
    assert all(counted.values()), counted
    # One symbol a measurement that is not the ceiling's; one cell a case that both providers ran.
    assert counted["roofline"] == sum(r.provider != "ceiling" for r in found)
    assert counted["speedup"] == sum(r.provider == "rownorm" for r in found)
    assert page.locator("#bandwidth .panel").count() == 4
    assert page.locator("#latency .panel").count() == 1
    assert "peak 4,800 GB/s" in page.locator("#bandwidth svg").first.text_content()
    labels = widths(page, "rms_norm forward bf16")
    assert labels == ["256", "4096", "16k", "64k"]  # all that were measured
    assert page.locator(".verdict").inner_text().startswith("rownorm is fastest or level in ")
    assert len(lines(page)) == len(found)
    assert not page.locator(".empty:visible").count()


def test_a_ratio_of_single_times_has_no_interval(shared):
    """FlashInfer-Bench's traces have one latency for each workload."""
    speedups = [line[4] for line in lines(shared("single times"))]
    assert sorted(speedups) == ["2.00x", "baseline"]


def test_filters_act_on_charts_and_table(reports, visit):
    page = visit(reports("gpu"))
    everything = marks(page)
    choose(page, "operation", "rms_norm")
    some = marks(page)
    assert all(some[name] < everything[name] for name in CHARTS if name != "latency")
    choose(page, "pass", "forward")
    choose(page, "dtype", "fp16")
    wanted = {"operation": "rms_norm", "direction": "forward", "dtype": "fp16"}
    shown = lines(page)
    assert len(shown) == len(measured(gpu_records(), **wanted))
    assert {line[0] for line in shown} == {"rms_norm forward fp16"}
    assert page.locator("#bandwidth .panel").count() == 1
    assert f"{len(shown)} of {len(measured(gpu_records()))}" in page.locator("#count").inner_text()

    before = marks(page)
    assert page.locator("#latency .role-legend-label", has_text="liger").count()
    show(page, "liger", False)
    assert not page.locator("#latency .role-legend-label", has_text="liger").count()
    assert all(line[2] != "liger" for line in lines(page))
    assert marks(page)["latency"] == before["latency"] - 4  # its four batches
    assert marks(page)["speedup"] == before["speedup"]

    choose(page, "pass", "backward")  # nothing was measured backward in fp16
    assert not any(marks(page).values())
    assert lines(page) == []
    assert page.locator(".empty:visible").count() == len(CHARTS)


def test_the_table_sorts_both_ways_with_blanks_last(reports, visit):
    page = visit(reports("gpu"))
    head = page.locator("#results th", has_text="GB/s")

    def bandwidths() -> list[float]:
        cells = page.locator("#results tbody tr td:nth-child(7)")
        return cells.evaluate_all("cells => cells.map(c => Number(c.dataset.v))")

    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert bandwidths() == sorted(bandwidths())
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert bandwidths() == sorted(bandwidths(), reverse=True)
    page.locator("#results th", has_text="speed-up").get_by_role("button").click()
    column = [line[4] for line in lines(page)]
    assert column[0]
    assert column[-1] == ""


def test_the_table_can_be_downloaded(reports, visit):
    page = visit(reports("gpu"))
    choose(page, "operation", "layer_norm")
    with page.expect_download() as waiting:
        page.locator("#csv").click()
    with open(waiting.value.path(), newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == len(measured(gpu_records(), operation="layer_norm"))
    assert {line["operation"] for line in table} == {"layer_norm"}
    first = next(line for line in table if line["provider"] == "rownorm")
    assert float(first["speedup over baseline"]) > 0.9
    assert first["baseline"] in ("torch.compile", "quack", "liger")
    assert float(table[0]["us_low"]) <= float(table[0]["us"]) <= float(table[0]["us_high"])


def test_hovering_shows_the_figure_with_its_interval(shared):
    page = shared("gpu")
    page.locator("#bandwidth .mark-symbol.role-mark path").last.hover(force=True)
    tip = page.locator("#vg-tooltip-element")
    tip.wait_for(state="visible")
    text = tip.inner_text()
    assert "rownorm" in text
    assert " to " in text
    assert "% of the measured ceiling" in text
    assert "undefined" not in text


def test_without_javascript_the_texts_and_the_table_are_shown(reports, visit):
    page = visit(reports("both"), java_script_enabled=False)
    assert page.locator(".verdict:visible").count() == 2
    ran = len(measured(gpu_records())) + len(measured(cpu_records()))
    assert page.locator("#results tbody tr:visible").count() == ran
    assert "1.0" in page.locator("#results tbody tr").first.inner_text()
    assert (
        page.get_by_text("torch 2.11.0+cu130").count() or page.get_by_text("2.11.0+cu130").count()
    )
    assert not page.locator(".filters:visible").count()


def test_devices_are_chosen_and_never_mixed(reports, visit):
    page = visit(reports("both"))
    ours = len(measured(gpu_records()))
    assert len(lines(page)) == ours
    assert page.locator(".banner:visible").count() == 0
    change(page, lambda: page.locator("#device").select_option(CPU.device))
    assert len(lines(page)) == len(cpu_records())
    assert "These are CPU timings" in page.locator(".banner:visible").inner_text()
    assert page.locator("h2:visible", has_text=H200.device).count() == 0
    assert marks(page)["host"] == 0
    assert not page.locator("#host").is_visible()
    assert "no host times" in page.locator("#undrawn").inner_text()


def test_one_record_and_none(reports, visit):
    page = visit(reports("one"))
    assert marks(page) | {"speedup": 0, "latency": 0} == marks(page)
    assert marks(page)["bandwidth"] == 1
    assert len(lines(page)) == 1
    empty = visit(reports("empty"))
    assert "no records" in empty.locator(".verdict").inner_text()
    assert "rownorm bench" in empty.inner_text("body")


def test_names_from_records_are_escaped(tmp_path, visit):
    bad = "</script ><script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'>"
    place = msgspec.structs.replace(H200, device=bad, versions={bad: bad})
    case = Case(operation="rms_norm", rows=8, cols=64, name=bad)
    records = [
        record(case, "rownorm", place),
        msgspec.structs.replace(record(case, "torch", place), provider=bad, suspect=[bad]),
        record(case, "liger", place, status="failed", why=bad),
    ]
    written = write_report(records, tmp_path, plots=False, damaged=[(1, bad)])
    page = visit(written[0])
    page.locator("#bandwidth .mark-rect.role-mark path").last.hover(force=True)
    page.locator("#vg-tooltip-element").wait_for(state="visible")
    change(page, lambda: page.locator("#subject").select_option(bad))
    assert page.evaluate("window.harmed") is None
    assert page.locator("img").count() == 0
    assert bad in page.locator("#results tbody").inner_text()


def test_a_cell_of_the_heat_map_is_the_ratio_of_the_times_in_the_table(shared):
    page = shared("gpu")
    times = {(case, shape, name): in_us(time) for case, shape, name, time, *_ in lines(page)}
    cells = page.locator("#speedup .panel", has_text="rms_norm forward bf16").first
    labels = cells.locator(".mark-rect.role-mark path").evaluate_all(
        "all => all.map(one => one.getAttribute('aria-label'))"
    )
    texts = cells.locator(".mark-text.role-mark text").all_text_contents()
    assert len(labels) > 1
    for label, text in zip(labels, texts[: len(labels)], strict=True):
        shape, other = re.search(r"shape: (.+?);.* over (\S+);", label).groups()
        case = ("rms_norm forward bf16", shape)
        peers = {key[2]: time for key, time in times.items() if key[:2] == case}
        ours = peers.pop("rownorm")
        peers.pop("ceiling", None)
        # The times and the cell are rounded.
        assert float(text.rstrip("x")) == pytest.approx(peers[other] / ours, abs=0.015)
        assert peers[other] <= 1.01 * min(peers.values())


def in_us(text: str) -> float:
    """``9.80 µs (9.73 to 9.86)`` in microseconds."""
    value, unit, *_ = text.split()
    return float(value.replace(",", "")) * {"ns": 1e-3, "µs": 1, "ms": 1e3}[unit]
