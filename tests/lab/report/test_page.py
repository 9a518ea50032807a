"""The page in a real browser: it draws, its filters and its table work, and it loads nothing from the network."""

import csv
import shutil

import msgspec
import pytest

from rownorm.lab.cases.case import Case
from rownorm.lab.report.write import write_report
from support.lab_records import CPU, H200, cpu_records, failed_records, gpu_records, record

CHROMIUM = shutil.which("chromium")
CHARTS = ("bandwidth", "speedup", "latency", "host", "accuracy", "roofline")
MARKS = ".plot svg .mark-symbol.role-mark path, .plot svg .mark-rect.role-mark path"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs the program chromium")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Pages by name, each written once."""
    folder = tmp_path_factory.mktemp("reports")
    sets = {
        "gpu": gpu_records(),
        "cpu": cpu_records(),
        "both": gpu_records() + cpu_records(),
        "one": gpu_records()[:1],
        "empty": [],
        "failed": failed_records(),
        "failed on a CPU": [
            record(case, name, CPU, status="failed", why="not enough memory")
            for case in (Case(operation="rms_norm", rows=8, cols=64),)
            for name in ("rownorm", "torch")
        ],
    }
    written = {}

    def report(name: str):
        if name not in written:
            written[name] = write_report(sets[name], folder / name, plots=False)[0]
        return written[name]

    return report


def open_page(browser, path, failures: list[str], **options):
    """Open a file and wait until it is drawn. Errors, warnings and requests are appended to ``failures``."""
    page = browser.new_context(**options).new_page()
    page.on("console", lambda message: failures.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on(
        "request",
        lambda request: (
            request.url.startswith(("file:", "data:", "blob:"))
            or failures.append(f"request: {request.url}")
        ),
    )
    page.goto(path.as_uri())
    if options.get("java_script_enabled", True):
        drawn(page)
    return page


@pytest.fixture
def visit(browser):
    """Open a file; at the end check that there were no errors and no requests."""
    pages, failures = [], []

    def visit(path, **options):
        pages.append(open_page(browser, path, failures, **options))
        return pages[-1]

    yield visit
    for page in pages:
        page.context.close()
    assert failures == []


@pytest.fixture(scope="module")
def shared(browser, reports):
    """Pages by name, 1280 pixels wide, for tests that change nothing."""
    pages, failures = {}, []

    def shared(name: str):
        if name not in pages:
            size = {"width": 1280, "height": 900}
            pages[name] = open_page(browser, reports(name), failures, viewport=size)
        return pages[name]

    yield shared
    assert failures == []


def drawn(page, after: int = 0) -> int:
    """Wait for the drawing that follows number ``after``."""
    page.wait_for_function(
        "after => Number(document.body.dataset.drawn) > after || !document.querySelector('.filters')",
        arg=after,
    )
    return int(page.evaluate("document.body.dataset.drawn ?? 0"))


def change(page, act) -> None:
    before = int(page.evaluate("document.body.dataset.drawn"))
    act()
    drawn(page, before)


def marks(page) -> dict[str, int]:
    return {name: page.locator(f"#{name} :is({MARKS})").count() for name in CHARTS}


def widths(page, panel: str) -> list[str]:
    """The visible labels of the horizontal axis."""
    found = page.locator("#bandwidth .panel", has_text=panel).locator(".role-axis-label").first
    texts = found.locator("text").evaluate_all(
        "all => all.filter(one => one.getAttribute('opacity') !== '0').map(one => one.textContent)"
    )
    return [text for text in texts if text]


def lines(page) -> list[list[str]]:
    """The cells of the visible lines of the table."""
    return page.evaluate(
        "[...document.querySelectorAll('#results tbody tr')].filter(r => !r.hidden)"
        ".map(r => [...r.cells].map(c => c.innerText.trim()))"
    )


def choose(page, name: str, value: str) -> None:
    change(page, lambda: page.locator(f"#{name}").select_option(value))


def show(page, provider: str, shown: bool) -> None:
    """Show or hide a provider through the menu."""
    if page.locator("details.menu").get_attribute("open") is None:
        page.locator("details.menu summary").click()
    box = page.locator(f"#providers input[value='{provider}']")
    change(page, lambda: box.set_checked(shown))


def top(page) -> tuple[str, list[str]]:
    """The verdict of this machine, and the texts of its figures."""
    return (
        page.locator(".device:visible .verdict").inner_text(),
        page.locator(".device:visible .figures > div").all_inner_texts(),
    )


def legend(panel) -> list[str]:
    return panel.locator(".role-legend-label text").all_text_contents()


def measured(records, **wanted) -> list:
    return [
        r
        for r in records
        if r.status == "ok" and all(getattr(r.case, k) == v for k, v in wanted.items())
    ]


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
    assert "over quack and " in top(page)[0]
    second = {line[2]: line[4] for line in lines(page)}
    assert second["quack"] == "baseline"
    assert second["torch"].startswith("0.")
    assert [line[4] for line in lines(page)] != first
    choose(page, "subject", "liger")
    ran = measured(gpu_records())
    assert marks(page)["speedup"] == sum(r.provider == "liger" for r in ran)
    assert top(page)[0].startswith("liger is fastest or level in ")


@pytest.mark.parametrize("name", ("gpu", "cpu"))
def test_the_script_writes_the_same_headline_as_the_report(reports, shared, visit, name):
    plain = visit(reports(name), java_script_enabled=False)
    assert top(shared(name)) == top(plain)


def test_the_headline_follows_the_filters(reports, visit):
    page = visit(reports("gpu"))
    scope = page.locator(".device:visible .filtered")
    everything = top(page)
    assert scope.inner_text() == "All 16 cases of rownorm in this run."
    assert not page.locator("#reset").is_visible()
    choose(page, "dtype", "fp16")
    assert "in 4 of 4 cases" in top(page)[0]
    assert scope.inner_text() == "Only fp16: 4 of 16 cases."
    show(page, "quack", False)
    assert scope.inner_text() == "Only fp16: 4 of 16 cases, without quack."
    assert all("quack" not in line for line in lines(page))
    change(page, lambda: page.locator("#reset").click())
    assert top(page) == everything


def test_a_large_run_says_what_is_preselected(reports, visit, tmp_path):
    text = reports("gpu").read_text()
    assert "const LARGE = 5000;" in text
    small = tmp_path / "report.html"
    small.write_text(text.replace("const LARGE = 5000;", "const LARGE = 100;"))
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


def test_without_a_gpu_the_shipped_results_come_first(shared):
    page = shared("cpu")
    shipped = page.locator("#shipped")
    assert shipped.locator(".panel .plot").count() == 2
    assert shipped.locator(".mark-symbol.role-mark path").count() > 100
    assert "On an NVIDIA H200" in page.locator(".verdict").first.inner_text()
    here = page.locator("h2", has_text="This machine: AMD EPYC 9654")
    assert shipped.bounding_box()["y"] < here.bounding_box()["y"]
    assert page.locator(".banner").bounding_box()["y"] > here.bounding_box()["y"]


def test_cpu_times_are_not_called_device_times(shared):
    assert "device times" not in shared("cpu").inner_text("#method")
    assert "Times are device times" in shared("gpu").inner_text("#method")


COLLISIONS = """() => [...document.querySelectorAll(".panel")].flatMap(panel => {
  const boxes = list => [...list].filter(t => t.textContent && t.getAttribute("opacity") !== "0")
    .map(t => [t.textContent, t.getBoundingClientRect()]);
  const inside = (a, b) => a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom;
  const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom;
  const found = boxes(panel.querySelectorAll("svg text"))
    .filter(([, box]) => !inside(box, panel.getBoundingClientRect())).map(([text]) => `${text} leaves its panel`);
  for (const axis of panel.querySelectorAll(".role-axis-label, .role-legend")) {
    const texts = boxes(axis.querySelectorAll("text"));
    texts.forEach(([a, x], i) => texts.slice(i + 1).forEach(([b, y]) => {
      if (overlap(x, y)) found.push(`${a} overlaps ${b}`);
    }));
  }
  return found;
})"""


@pytest.mark.parametrize("width", (480, 1400))
def test_charts_are_legible(reports, visit, width):
    """Labels and legends do not overlap, and nothing leaves its panel; 1400 pixels have three panels side by side."""
    page = visit(reports("gpu"), viewport={"width": width, "height": 900})
    assert page.evaluate(COLLISIONS) == []
    for name in ("bandwidth", "latency", "roofline"):
        providers = {r.provider for r in measured(gpu_records())}
        found = legend(page.locator(f"#{name} .panel").first)
        assert set(found) == (providers - {"ceiling"} if name == "roofline" else providers)


def test_the_markers_of_a_legend_are_those_of_the_chart(shared):
    panel = shared("gpu").locator("#bandwidth .panel").first
    symbols = panel.locator(".role-legend-symbol path")
    found = symbols.evaluate_all("all => all.map(one => one.getAttribute('d'))")
    assert len(set(found)) == len(found) == len(legend(panel))


def test_one_width_is_drawn_as_labeled_bars(shared):
    page = shared("gpu")
    panel = page.locator("#bandwidth .panel", has_text="rms_norm forward fp16, 512 x 4096")
    ran = {r.provider for r in measured(gpu_records(), dtype="fp16")}
    assert panel.locator(".mark-rect.role-mark path").count() == len(ran)
    labels = panel.locator(".mark-text.role-mark text", has_text="GB/s")
    assert labels.count() == len(ran) + 1  # and the peak
    speedups = page.locator("#speedup .panel", has_text="4096 columns").locator(".mark-text text")
    assert speedups.filter(has_text="x over ").count() == 4


def test_the_table_fits_and_says_where_it_scrolls(reports, shared, visit):
    def visible_columns(page) -> int:
        right = page.evaluate(
            "document.querySelector('#results .scroll').getBoundingClientRect().right"
        )
        heads = page.locator("#results th")
        return sum(
            box["x"] + box["width"] <= right + 1 for box in (h.bounding_box() for h in heads.all())
        )

    wide = shared("gpu")
    assert visible_columns(wide) == wide.locator("#results th").count() == 11
    assert not wide.locator(".scroll-hint").is_visible()
    phone = visit(reports("gpu"), viewport={"width": 480, "height": 900})
    assert visible_columns(phone) >= 6  # case, shape, provider, time, speed-up, error
    assert phone.locator(".scroll-hint").is_visible()


def test_columns_without_values_are_dropped(shared):
    heads = shared("cpu").locator("#results th").all_inner_texts()
    assert "host" not in heads  # a CPU has no host times and no peak
    assert "of peak" not in heads
    assert "of ceiling" in heads


@pytest.mark.parametrize("name", ("gpu", "cpu", "failed"))
def test_contents_lead_to_sections_that_are_shown(shared, name):
    page = shared(name)
    links = page.locator(".contents a:visible")
    assert links.count() >= 3
    for link in links.all():
        assert page.locator(link.get_attribute("href")).is_visible()
    assert page.locator(".bar").bounding_box()["height"] < 80


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


def test_dark_and_narrow(reports, visit):
    def paper(page) -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = visit(reports("cpu"), color_scheme="light")
    dark = visit(reports("cpu"), color_scheme="dark", viewport={"width": 360, "height": 800})
    assert paper(light) == "rgb(255, 255, 255)"
    assert paper(dark) != paper(light)
    label = "getComputedStyle(document.querySelector('#bandwidth .plot svg .role-axis-label text')).fill"
    assert light.evaluate(label) != dark.evaluate(label)
    assert dark.evaluate("document.documentElement.scrollWidth <= innerWidth")


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
