"""The four questions are answered with figures of the records, or with the command that measures them."""

import re

import msgspec
import pytest
from click.testing import CliRunner

from lab_support.lab_records import H200, cpu_records, failed_records, gpu_records, record
from rownorm_lab.data.case import Case
from rownorm_lab.data.measurements import results_of
from rownorm_lab.main import cli
from rownorm_lab.page import scaling
from rownorm_lab.page.analysis import analysis
from rownorm_lab.page.fastest import LEVEL_TEXT

QUESTIONS = (
    "1. What is the arithmetic intensity?",
    "2. Is it bound by memory, by the launch, by latency, or by compute?",
    "3. What percentage of peak bandwidth does it reach?",
    "4. How does it scale with the batch?",
)


def batches(times: dict[int, float]) -> list:
    """rownorm on 4096 columns in fp16: times in µs by row count."""
    return [
        record(
            Case(operation="rms_norm", rows=rows, cols=4096, dtype="fp16"),
            "rownorm",
            seconds=[us * 1e-6] * 3,
        )
        for rows, us in times.items()
    ]


def row_of(text: str, *starts: str) -> str:
    pattern = r"\| " + r" \| ".join(map(re.escape, starts)) + r" \|"
    return next(line for line in text.splitlines() if re.match(pattern, line))


def test_every_question_has_figures():
    text = analysis(results_of(gpu_records()))
    assert all(f"### {question}" in text for question in QUESTIONS)
    # fp16, 512 x 4096: 4 flop an element; x and y once, 2 bytes each, and 4096 weights. 1 x 4096: 6 bytes.
    assert row_of(text, "rms_norm forward fp16", "1 x 4096 to 512 x 4096").endswith(
        "| 4 | 6 to 4 | 0.667 to 0.999 |"
    )
    assert "**14 flop/byte**. All cases are below it, the nearest at 1.75" in text
    assert (
        "**The limit is: memory in 11, mostly memory in 1 and launch in 4**, of 16 cases." in text
    )
    assert re.search(r"4,0\d0 GB/s .*\| 84% \| 96% \|", text)
    assert "### Not measured or suspect" in text
    assert "pip install flashinfer-python" in text


def test_the_fastest_alternative_is_named():
    case = Case(operation="rms_norm", rows=4096, cols=4096)
    times = {"rownorm": 2e-5, "torch": 8e-5, "liger": 3e-5, "quack": 1e-5, "ceiling": 1e-5}
    wider = Case(operation="rms_norm", rows=4096, cols=8192)
    records = [record(case, name, seconds=[time] * 7) for name, time in times.items()]
    records += [record(wider, name, seconds=[times[name]] * 7) for name in ("rownorm", "liger")]
    text = analysis(results_of(records))
    assert row_of(text, "rms_norm forward bf16", "2", "1", "0", "1", "0", "1.00x") == (
        "| rms_norm forward bf16 | 2 | 1 | 0 | 1 | 0 | 1.00x | 0.500x at 4096 x 4096 (quack) | quack 1, liger 1 |"
    )
    line = row_of(text, "rms_norm forward bf16", "4096 x 4096", "rownorm")
    assert line.endswith("| 0.500x, quack |")


@pytest.mark.parametrize(
    ("times", "saturated", "flat"),
    (
        # Flat, then growing with the rows; growing from the start; flat all the way.
        ({1: 1, 8: 1.1, 64: 1.2, 512: 5, 4096: 30, 32768: 235}, 4096, 64),
        ({1: 1, 2: 2, 4: 4, 8: 8}, 1, None),
        ({1: 1, 8: 1, 64: 1, 512: 1}, None, 512),
    ),
)
def test_scaling_with_the_batch(times, saturated, flat):
    tall = scaling.by_rows(results_of(batches(times))[0].rows)
    assert [row.record.case.rows for row in tall] == sorted(times)
    assert scaling.saturation(tall) == saturated
    assert scaling.launch_bound_rows(tall) == flat


def test_saturation_in_words():
    rising = analysis(results_of(batches({1: 1.0, 512: 3.6, 2048: 12.0})))
    assert "still rises at 2,048 rows" in rising
    reached = analysis(results_of(batches({1: 1.0, 2048: 10.0, 8192: 35.0, 32768: 135.0})))
    assert "2,048 times the rows take 12.0 times the time." in rising
    assert "saturates at **8,192 rows**" in reached
    saturated = analysis(results_of(batches({1: 1.0, 512: 3.6, 32768: 127.0})))
    assert "saturates between 512 and 32,768 rows" in saturated
    flat = analysis(results_of(batches({4096: 16.0, 8192: 32.0})))
    assert "already saturated at 4,096 rows, the fewest measured" in flat


def test_extrapolated_row_count():
    # start 2 µs, limit 4e12: 90% of it takes 9 x 2 µs x 4e12 = 72e6 bytes, 16384 a row: 4395 rows, in one digit.
    times = {rows: 2 + (rows * 16384 + 8192) / 4e6 for rows in (128, 512)}
    tall = scaling.by_rows(results_of(batches(times))[0].rows)
    assert scaling.extrapolated(tall) == 4000


def test_an_open_question_names_the_command():
    case = Case(operation="rms_norm", rows=8, cols=4096)
    text = analysis(results_of([record(case, "rownorm")]))
    assert "Not measured for 1 kind of case with a single row count" in text
    assert "`rownorm bench --op rms_norm --pass forward --dtype bf16 --shape 1..32768x4096`" in text
    assert "with the provider `ceiling`" in text


@pytest.mark.parametrize(
    "case",
    [
        Case(operation="layer_norm", direction="backward", dtype="fp32", rows=8, cols=640),
        Case(operation="add_rms_norm", residual_dtype="fp32", rows=8, cols=640, bias=True),
        Case(operation="rms_norm", pre_bias=True, activation="silu", rows=8, cols=640),
    ],
)
def test_the_command_measures_that_case_with_more_rows(case):
    ran = CliRunner().invoke(cli, [*scaling.command(case).split()[1:], "--list"])
    assert ran.exit_code == 0, ran.output
    assert f"{case.kind} 1x640" in ran.output
    assert f"{case.kind} 32768x640" in ran.output
    assert scaling.command(case) in analysis(results_of([record(case, "rownorm")]))


def test_cpu_timings_are_labeled():
    text = analysis(results_of(cpu_records()))
    assert "**These are CPU timings.**" in text
    assert "peak bandwidth is not known" in text
    assert "no ridge point" in text


def test_no_times_and_no_records():
    assert "1 failed" in analysis(results_of(failed_records()))
    assert "Measure some with `rownorm bench`" in analysis([])
    assert "1 damaged line left out: line 3: not JSON" in analysis([], [(3, "not JSON")])


def test_markup_in_records_stays_text():
    case = Case(operation="rms_norm", rows=8, cols=4096)
    odd = record(case, "rownorm", status="failed", why="a|b\n<script>")
    assert "| a\\|b &lt;script> |" in analysis(results_of([odd]))
    assert H200.device in analysis(results_of([odd]))


def test_the_page_and_the_analysis_call_the_same_level():
    """By 2% faster: as fast for ``compare``, which allows 3%, and fastest on the page and here."""
    case = Case(operation="rms_norm", rows=4096, cols=4096)
    times = {"rownorm": 1.00e-5, "torch": 1.02e-5}
    found = results_of([record(case, name, seconds=[time] * 7) for name, time in times.items()])
    text = analysis(found)
    assert row_of(text, "rms_norm forward bf16", "1", "1", "0", "0", "0")
    assert LEVEL_TEXT in text
    assert "fastest or level in 1 of 1 case" in text


def test_no_cause_is_drawn_from_suspect_measurements():
    case = Case(operation="rms_norm", rows=4096, cols=4096)
    wide = Case(operation="rms_norm", rows=4096, cols=8192)
    trusted = [record(one, name) for one in (case, wide) for name in ("rownorm", "ceiling")]
    suspect = [msgspec.structs.replace(one, suspect=["spread of 90%"]) for one in trusted[:2]]
    text = analysis(results_of([*suspect, *trusted[2:]]))
    assert re.search(r"\*\*The limit is: .*\*\*, of 1 case\. 1 suspect case left out\.", text)
    text = analysis(results_of(suspect))
    assert "All measurements are suspect, so no cause is drawn from them." in text
