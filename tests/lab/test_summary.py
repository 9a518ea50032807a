"""The tables of the terminal, on records whose answers are known."""

import msgspec
import pytest
from records_for_tests import CPU, H200, record

from rownorm.lab.cases import Case
from rownorm.lab.check import Row
from rownorm.lab.compare import Comparison
from rownorm.lab.results import cases_of, results_of
from rownorm.lab.statistics import Ratio
from rownorm.lab.summary import bench_table, check_table, line_of, measure_of

PEERS = ("torch", "torch.compile", "liger")


def timed(provider, seconds, cols=1024, host=0.0, environment=H200, **options):
    case = Case(operation="rms_norm", rows=1000, cols=cols, dtype="fp16", **options)
    times = [seconds * (1 + i / 100) for i in range(5)]
    hosts = [host * (1 + i / 100) for i in range(5)] if host else []
    return msgspec.structs.replace(
        record(case, provider, environment), seconds=times, host_seconds=hosts, run="one"
    )


def table(records):
    (results,) = results_of(records)
    return list(bench_table(results, PEERS))


@pytest.fixture
def one_case():
    return [
        timed("rownorm", 2e-6, host=10e-6),
        timed("torch", 6e-6, host=15e-6),
        timed("torch.compile", 3e-6, host=40e-6),
        timed("plain_block", 2.5e-6, host=30e-6),
        timed("ceiling", 1.5e-6, host=5e-6),
    ]


def test_what_was_compared_is_told():
    one = Comparison(
        Case(operation="rms_norm", rows=1, cols=1), "rownorm", Ratio(1.0, 1.0, 1.0), "same", True
    )
    other = one._replace(by_ceiling=False)
    assert measure_of([one]) == "times relative to the ceiling of their round"
    assert measure_of([other]) == "times"
    assert measure_of([one, other]).endswith("of their round, 1 by times")


def test_large_errors_have_columns_of_their_own():
    row = Row(
        **{"provider": "torch", "operation": "layer_norm", "direction": "backward"},
        **{"dtype": "fp16", "data": "offset", "status": "over", "why": "off"},
        **{"max_error": 0.74, "mean_error": 0.19, "max_ulp": 190.0, "budget_used": 130.0},
    )
    *_, line = check_table([row])
    assert line.split()[2:6] == ["0.74", "0.19", "1.9e+02", "130x"]


def test_figures_of_a_case(one_case):
    (results,) = results_of(one_case)
    (rows,) = cases_of(results.measured)
    line = line_of(rows, "rownorm", PEERS)
    assert line.row.time.median == pytest.approx(2.04e-6)
    assert line.row.bandwidth == pytest.approx((2 * 1000 + 1) * 1024 * 2 / 2.04e-6)
    assert line.row.of_peak == pytest.approx(line.row.bandwidth / 4.8e12)
    assert line.row.of_ceiling == pytest.approx(0.75)
    assert line.over_eager == pytest.approx(3)
    assert (line.over_fastest, line.fastest) == (pytest.approx(1.5), "torch.compile")
    assert line.row.host.median == pytest.approx(10.2e-6)
    assert line.host_over_eager == pytest.approx(1.5)


def test_a_line_for_each_case_under_its_kind(one_case):
    wide = [timed(one.provider, 8 * one.seconds[0], cols=8192) for one in one_case]
    back = [timed("rownorm", 1e-5, direction="backward", name="GPT-2")]
    heading, *lines = table([*one_case, *wide, *back])
    words = (
        "rownorm time GB/s of ceiling of peak over torch over the fastest peer host over torch's"
    )
    assert heading.split() == words.split()
    assert lines[0] == "rms_norm forward fp16"
    figures = "1000x1024 2.04 µs 2,008.8 75 % 42 % 3.00x 1.50x torch.compile 10.2 µs 1.50x"
    assert lines[1].split() == figures.split()
    assert lines[2].split()[:3] == ["1000x8192", "16.3", "µs"]
    assert lines[3] == "rms_norm backward fp16"
    assert lines[4].split()[:4] == ["1000x1024", "GPT-2", "10.2", "µs"]
    assert "1.20x over somebody" in lines[5]


def test_columns_without_figures_are_left_out():
    (heading, *_) = table([timed("rownorm", 1e-3, environment=CPU)])
    assert heading.split() == ["rownorm", "time", "GB/s"]


def test_without_rownorm_it_is_about_the_first():
    made = [timed("liger", 2e-6), timed("torch", 4e-6)]
    heading, _, line, *_ = table(made)
    assert heading.startswith("liger")
    assert "2.00x torch" in line


def test_doubt_is_shown():
    doubtful = msgspec.structs.replace(timed("rownorm", 1e-6), suspicions=["spread of 40 %"])
    *_, line, _, last = table([doubtful])
    assert line.endswith("?")
    assert last.startswith("? doubtful")
