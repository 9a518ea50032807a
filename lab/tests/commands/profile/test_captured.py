"""Profiles that were captured on GPUs: ``captured/README.md`` says how. The tools must agree with each other."""

from pathlib import Path

import pytest

from rownorm_lab.commands.profile.summary import summarize
from rownorm_lab.profilers import ncu, ncu_csv
from rownorm_lab.profilers.request import read_collected, read_request

CAPTURED = sorted(file.parent for file in Path(__file__).parent.glob("captured/*/request.json"))
pytestmark = pytest.mark.skipif(
    not CAPTURED, reason="no profile of a GPU has been captured: captured/README.md says how"
)
BF16 = 2


@pytest.fixture(params=CAPTURED, ids=lambda folder: folder.name)
def folder(request):
    return request.param


@pytest.fixture
def profile(folder):
    before = read_collected(folder)
    return summarize(read_request(folder), folder, before.tools, before.environment)


def counters(file):
    """The launches of rownorm's forward kernel in a CSV of ncu."""
    records = ncu_csv.parse(file.read_text())
    return [one for one in records if one.kernel.startswith("forward_")]


def test_every_tool_was_read(profile):
    assert [(one.tool, one.status) for one in profile.tools] == [
        ("chrome", "ok"),
        ("proton", "ok"),
        ("ncu", "ok"),
    ]
    assert profile.bottleneck.startswith(("memory bandwidth", "latency", "launch overhead"))


@pytest.mark.parametrize("subject", ["rownorm", "torch"])
def test_proton_and_the_chrome_trace_agree(profile, subject):
    time, again = (
        profile.figure(name, subject).value
        for name in ("kernel time of a call", "kernel time of a call, Proton")
    )
    assert again == pytest.approx(time, rel=0.15)


def test_bandwidth_is_possible(profile):
    assert 0.3 < profile.figure("share of peak bandwidth", "rownorm").value < 1


def test_the_forward_kernel_reads_x_once(folder):
    case = read_request(folder).case
    [wide] = counters(folder / "ncu.csv")
    assert wide.metrics[ncu.READ] == pytest.approx(case.rows * case.cols * BF16, rel=0.05)
    assert wide.units[ncu.READ] == "byte"
    assert 0 < wide.metrics[ncu.OCCUPANCY] <= wide.metrics[ncu.THEORETICAL] <= 100
    assert 4 <= wide.sectors_per_request("ld") <= 16
    assert 1e-6 < wide.seconds < 1e-3


def test_the_long_layout_has_the_same_launches(folder):
    wide, long = (
        ncu_csv.parse((folder / name).read_text()) for name in ("ncu.csv", "ncu-long.csv")
    )
    assert [one.kernel for one in long] == [one.kernel for one in wide]
    for metric in ("launch__registers_per_thread", ncu.READ):
        expected = [one.metrics[metric] for one in wide]
        assert [one.metrics[metric] for one in long] == pytest.approx(expected, rel=0.05)


def test_counters_are_in_the_summary(profile):
    names = {one.name for one in profile.figures if one.subject.startswith("rownorm: forward_")}
    assert {"achieved occupancy", "sectors per load request", "memory traffic"} <= names
