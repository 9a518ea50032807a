"""What limits a case is judged by the best ceiling of the device, not only by the ceiling of the same size."""

import dataclasses

import msgspec
import pytest

from lab_support.lab_records import CPU, H200, record
from rownorm_lab.data.case import Case
from rownorm_lab.data.measurements import results_of
from rownorm_lab.page.bounds import Bounds, by_limit

SMALL = Case(operation="rms_norm", rows=512, cols=4096, dtype="fp16")  # 8.4 MB
LARGE = Case(operation="rms_norm", rows=32768, cols=4096, dtype="fp16")  # 537 MB
# Of an H200: at 8.4 MB the ceiling is launch-bound too, at 537 MB it is saturated.
CEILINGS = {SMALL: 3.6, LARGE: 127.0}


def results(times, ceilings=CEILINGS, environment=H200):
    """rownorm and the ceiling, with times in µs by case."""
    made = [
        record(case, provider, environment, seconds=[us * 1e-6] * 3)
        for provider, of_provider in (("rownorm", times), ("ceiling", ceilings))
        for case, us in of_provider.items()
    ]
    return results_of(made)[0]


def limit_of(case, us, **others) -> str:
    found = results({case: us}, **others)
    (row,) = found.of("rownorm")
    return Bounds(found).of(row).limit


@pytest.mark.parametrize("ceilings", (CEILINGS, {SMALL: 3.6}), ids=("best ceiling", "peak"))
def test_a_launch_bound_ceiling_does_not_make_a_case_memory_bound(ceilings):
    """512 x 4096 at 48% of peak and at 100% of the ceiling of its size."""
    found = results({SMALL: 3.65}, ceilings)
    (row,) = found.of("rownorm")
    assert round(row.of_peak, 2) == 0.48
    assert row.of_ceiling > 0.98
    assert Bounds(found).of(row).limit != "memory"
    assert limit_of(SMALL, 3.65) == "launch"


@pytest.mark.parametrize(
    ("case", "us", "limit"),
    (
        (LARGE, 127, "memory"),
        (LARGE, 155, "memory"),
        (LARGE, 170, "mostly memory"),
        (LARGE, 400, "latency"),
        (SMALL, 3.4, "launch"),
        (SMALL, 8.0, "latency"),
    ),
)
def test_limits(case, us, limit):
    assert limit_of(case, us) == limit


def test_the_figures_add_up():
    found = results({SMALL: 8.0, LARGE: 127.0})
    bounds = Bounds(found)
    small, large = found.of("rownorm")
    # 8.4 MB at 537 MB / 127 µs = 4,230 GB/s take 1.99 µs.
    assert bounds.of(small).why == "8.00 µs: moving 1.99 µs, launch 1.61 µs, latency 4.40 µs"
    assert bounds.of(large).why == "4,230 GB/s, 100% of the best ceiling"


def test_a_case_faster_than_its_ceiling_has_no_latency():
    found = results({SMALL: 3.4})
    (row,) = found.of("rownorm")
    assert Bounds(found).of(row).why == "3.40 µs: moving 1.99 µs, launch 1.41 µs"


def test_without_a_ceiling_of_the_case():
    assert limit_of(SMALL, 3.65, ceilings={LARGE: 127.0}) == "launch or latency"
    assert limit_of(LARGE, 140, ceilings={}) == "memory"  # by the peak
    assert limit_of(LARGE, 140, ceilings={}, environment=CPU) == "unknown"
    assert limit_of(LARGE, 240, ceilings={SMALL: 3.6}, environment=CPU) == "memory"  # a smaller one


def test_a_fast_cache_does_not_hide_that_large_cases_are_memory_bound():
    ceilings = {SMALL: 100.0, LARGE: 25_000.0}  # on a CPU: 84 GB/s in a cache, 21 GB/s beyond it
    assert limit_of(LARGE, 26_000, ceilings=ceilings, environment=CPU) == "memory"
    assert limit_of(SMALL, 110, ceilings=ceilings, environment=CPU) == "memory"
    assert limit_of(SMALL, 400, ceilings=ceilings, environment=CPU) == "overhead"


def test_a_high_intensity_is_compute_bound(monkeypatch):
    found = results({LARGE: 127.0})
    monkeypatch.setattr("rownorm_lab.page.bounds.peak_flops", lambda _: 1e12)
    (row,) = found.of("rownorm")
    assert Bounds(found).of(row).limit == "compute"


def test_rows_of_each_limit_are_ordered_by_size():
    wider = msgspec.structs.replace(LARGE, cols=8192)
    found = results({wider: 254.0, SMALL: 3.65, LARGE: 127.0}, {**CEILINGS, wider: 254.0})
    cases = {
        limit: [row.record.case for row in rows]
        for limit, rows in by_limit(Bounds(found), found.of("rownorm")).items()
    }
    assert cases == {"memory": [LARGE, wider], "launch": [SMALL]}


def test_a_cpu_has_no_launch():
    found = results({SMALL: 8.0})
    (row,) = found.of("rownorm")
    on_cpu = dataclasses.replace(found, kind="cpu")
    assert Bounds(found).of(row).limit == "latency"
    assert Bounds(on_cpu).of(row) == ("overhead", "8.00 µs: moving 1.99 µs, overhead 6.01 µs")
