"""Reports in a real browser."""

import pytest

from lab_support.lab_records import CPU, cpu_records, failed_records, gpu_records, record
from lab_support.report_page import open_page
from rownorm_lab.data.case import Case
from rownorm_lab.page.write import write_report


@pytest.fixture(scope="session")
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
        "single times": [
            record(case, name, seconds=[seconds], host_seconds=[])
            for case in (Case(operation="rms_norm", rows=8, cols=64),)
            for name, seconds in (("rownorm", 1e-5), ("torch", 2e-5))
        ],
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


@pytest.fixture(scope="session")
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
