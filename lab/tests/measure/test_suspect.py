"""Reasons to distrust a measurement."""

import pytest

from rownorm_lab.data.case import Case
from rownorm_lab.data.records import Clocks, Method
from rownorm_lab.measure.suspect import suspect_reasons, typical_clocks

CASE = Case(operation="rms_norm", rows=1024, cols=1024, dtype="bf16")  # 4 MiB and a bit
METHOD = Method(timer="cuda_graph", rotation=40, calls=1000, rounds=6, cold=True)
STEADY = [1e-6 * (1 + 0.01 * i) for i in range(6)]
COOL = Clocks(sm_mhz=1980, memory_mhz=3201, temperature_c=40, power_w=300.0)


def of(seconds=STEADY, clocks=(COOL, COOL), method=METHOD, peak=1e13, **more):
    return suspect_reasons(CASE, method, seconds, clocks, peak=peak, **more)


def test_no_reason():
    assert of() == []
    assert of(clocks=(), peak=None) == []


def test_faster_than_the_peak():
    (one,) = of(peak=3.5e12)
    assert one.startswith("faster than the peak: 117%")


def test_spread():
    (one,) = of([1e-6, 1e-6, 1e-6, 1.3e-6, 1.3e-6, 1.3e-6])
    assert one == "spread of 26% between the 20th and the 80th percentile"
    assert of([1e-6, 1e-6, 1e-6, 1e-6, 1.04e-6, 9e-6]) == []  # one outlier is not a spread
    assert of([1e-6, 2e-6]) == []  # two figures have none


@pytest.mark.parametrize("timer", ["cuda_graph", "device_events", "cpu_clock"])
def test_too_short_to_be_timed(timer):
    method = Method(timer=timer, rotation=2, calls=2, rounds=6, cold=True)
    (one,) = of(method=method)
    assert "near the resolution of the timer" in one


def test_throttling():
    hot = Clocks(sm_mhz=1980, throttled=["power cap", "hardware slowdown"])
    assert of(clocks=[COOL, hot, hot]) == ["the device throttled: hardware slowdown, power cap"]


def test_moving_clock():
    slow = Clocks(sm_mhz=1500)
    assert of(clocks=[COOL, slow]) == ["the clock moved between 1500 and 1980 MHz"]
    assert of(clocks=[COOL, Clocks(sm_mhz=1950)]) == []


def test_interpreter():
    (one,) = of(interpreted=True)
    assert "interpreter" in one


def test_one_value_for_the_clocks_of_a_case():
    assert typical_clocks([]) is None
    made = typical_clocks([COOL, Clocks(sm_mhz=1900, throttled=["power cap"]), COOL])
    assert made == Clocks(
        sm_mhz=1980, memory_mhz=3201, temperature_c=40, power_w=300.0, throttled=["power cap"]
    )
