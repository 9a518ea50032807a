"""What tests do with a report in a browser: open it, change it, and read what it shows."""

CHARTS = ("bandwidth", "speedup", "latency", "host", "accuracy", "roofline")
MARKS = ".plot svg .mark-symbol.role-mark path, .plot svg .mark-rect.role-mark path"


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
