"""The layout of the page in a real browser: what fits where, and what can be read."""

import pytest

from lab_support.lab_records import gpu_records
from lab_support.report_page import legend, measured

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


def test_charts_of_a_cpu_are_legible_on_a_phone(reports, visit):
    page = visit(reports("cpu"), viewport={"width": 480, "height": 900})
    assert page.evaluate(COLLISIONS) == []


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
