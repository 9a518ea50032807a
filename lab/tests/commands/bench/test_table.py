"""The table of ``rownorm bench``, on records with known answers."""

import msgspec
import pytest

from lab_support.lab_records import CPU, H200, record, record_of_missing
from rownorm_lab.commands.bench.table import bench_table, not_in_the_table
from rownorm_lab.data.case import Case
from rownorm_lab.data.measurements import case_line, cases_of, results_of

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


def test_figures_of_a_case(one_case):
    (results,) = results_of(one_case)
    (rows,) = cases_of(results.measured)
    line = case_line(rows, "rownorm", PEERS)
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
    above, below, *lines = table([*one_case, *wide, *back])
    assert above.split() == ["rownorm", "of", "of", "over", "over", "the", "host", "over"]
    assert below.split() == [
        "time",
        "GB/s",
        "ceiling",
        "peak",
        "torch",
        "fastest",
        "peer",
        "time",
        "torch's",
    ]
    assert lines[0] == "rms_norm forward fp16"
    figures = "1000x1024 2.04 µs 2,010 75% 42% 3.00x 1.50x torch.compile 10.2 µs 1.50x"
    assert lines[1].split() == figures.split()
    assert lines[2].split()[:3] == ["1000x8192", "16.3", "µs"]
    assert lines[3] == "rms_norm backward fp16"
    assert lines[4].split()[:4] == ["1000x1024", "GPT-2", "10.2", "µs"]
    assert lines[5] == "1.20x: 1.2 times as fast"


def test_columns_without_figures_are_left_out():
    above, below, *_ = table([timed("rownorm", 1e-3, environment=CPU)])
    assert above == "rownorm"
    assert below.split() == ["time", "GB/s"]


def test_without_rownorm_the_table_shows_another_provider():
    records = [timed("liger", 2e-6), timed("torch", 4e-6)]
    heading, _, _, line, *_ = table(records)
    assert heading.startswith("liger")
    assert "2.00x torch" in line


def test_suspect_measurements_are_marked():
    suspect = msgspec.structs.replace(timed("rownorm", 1e-6), suspect=["spread of 40%"])
    *_, line, _, last = table([suspect])
    assert line.endswith("?")
    assert last.startswith("? suspect")


def test_small_bandwidths_keep_their_digits():
    *_, line, _ = table([timed("rownorm", 0.3, cols=8, environment=CPU)])
    assert line.split() == ["1000x8", "306", "ms", "0.000105"]


def test_lines_fit_a_terminal():
    """With every column, the longest name of a provider, speed-ups of three digits and long case names."""
    options = {"name": "a model with a long name " * 9, "direction": "backward"}
    records = [
        timed("rownorm", 2.5e-3, 1048576, 1e-5, **options),
        timed("torch", 5.1e-1, 1048576, 2e-3, **options),
        timed("torch.compile", 3.1e-1, 1048576, 2e-3, **options),
        timed("ceiling", 1.5e-3, 1048576, 5e-6, **options),
    ]
    records[0] = msgspec.structs.replace(records[0], suspect=["spread of 40%"])
    lines = table(records)
    assert max(map(len, lines)) <= 100
    line = next(line for line in lines if line.startswith("  1000x1048576 a"))
    assert "…" in line
    assert line.split()[-6:] == ["124x", "torch.compile", "10.2", "µs", "200x", "?"]


def test_missing_providers_are_one_line():
    case = Case(operation="rms_norm", rows=2, cols=8)
    names = ("fla", "flashinfer", "liger", "quack")
    records = [record(case, "torch", status="refused", why="too wide " * 20)]
    records += [record_of_missing(case, name, "pip install it") for name in names]
    *refused, missing = not_in_the_table(records)
    assert missing == "Missing: fla, flashinfer, liger, quack. rownorm info says why."
    assert refused[0].startswith("torch refused, 1 case: too wide")
    assert max(map(len, refused)) <= 100
