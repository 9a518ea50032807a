"""Fixtures of the lab's tests."""

import os
import shutil

import pytest

from lab_support.report_page import open_page
from rownorm_lab import providers

os.environ["ROWNORM_LEARN_WARM_S"] = "0"  # no process stays behind; test_warm.py lets one stay


@pytest.fixture
def command_line(tmp_path, monkeypatch, without_interpreter):
    """Commands run in an empty folder, on the CPU path, with short rounds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr("rownorm_lab.measure.timing.CPU_ROUND", 2e-4)


@pytest.fixture
def short_rounds(monkeypatch):
    """Rounds of one or two calls."""
    monkeypatch.setattr("rownorm_lab.measure.timing.CPU_ROUND", 2e-5)


@pytest.fixture
def add_provider(monkeypatch, without_interpreter):
    """A function that adds or replaces a provider for this test: ``add_provider(name, make, **options)``."""
    providers.all_providers()
    monkeypatch.setattr(providers, "_registry", dict(providers._registry))

    def add(name, make, **options):
        providers.provider(name, about="of a test", **options)(make)

    return add


@pytest.fixture
def full_disk():
    """A function after which ``whole_file`` finds no space to write a file: its temporary file is /dev/full."""
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")

    def fill(path):
        path.with_name(f".{path.name}.{os.getpid()}.part").symlink_to("/dev/full")

    return fill


@pytest.fixture(scope="session")
def browser():
    """Chromium; tests that use it are skipped without it."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs the program chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Pages share a process where they may: to start one takes as long as to draw a small report.
        one_process = ("--renderer-process-limit=1", "--process-per-site")
        browser = playwright.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", *one_process, "--disable-site-isolation-trials"],
        )
        yield browser
        browser.close()


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
