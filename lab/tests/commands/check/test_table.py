"""The table of ``rownorm check``."""

import pytest

from rownorm_lab.commands.check.table import check_table, legend, outcome
from rownorm_lab.measure.check import CheckResult


def result(**fields):
    values = {
        **{"provider": "torch", "operation": "layer_norm", "direction": "backward"},
        **{"dtype": "fp16", "data": "offset", "max_error": 0.74, "mean_error": 0.19},
        **{"max_ulp": 0.5, "allowance_used": 0.0, "closest_ulp": 0.1, "accepted_ulp": 0.5},
    }
    return CheckResult(**(values | fields))


def test_large_errors_have_columns_of_their_own():
    row = result(status="over", why="off " * 40, max_ulp=900.0, closest_ulp=190.0, accepted_ulp=30)
    *_, line, why, more = check_table([row])
    assert line.split() == ["fp16", "offset", "0.74", "0.19", "190", "30", "TOO", "LARGE"]
    assert why.startswith("         off off")
    assert max(len(why), len(more)) <= 100


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "correctly rounded"),
        ({"allowance_used": 0.1}, "correctly rounded"),
        ({"max_ulp": 0.83, "closest_ulp": 0.61, "accepted_ulp": 0.68}, "within 1 ulp"),
        ({"max_ulp": 1.0, "truncated": True}, "truncated once, by the interpreter"),
        ({"max_ulp": 7.0, "closest_ulp": 3.0, "accepted_ulp": 30.0}, "10% of what is accepted"),
        ({"status": "over", "why": "off"}, "TOO LARGE"),
        ({"status": "failed", "why": "RuntimeError: boom"}, "FAILED"),
    ],
)
def test_the_result_in_words(fields, words):
    assert outcome(result(**fields)) == words


def test_an_error_of_the_best_possible_size_has_no_limit_beside_it():
    *_, line = check_table([result()])
    assert line.split() == ["fp16", "offset", "0.74", "0.19", "0.50", "correctly", "rounded"]


def test_the_worst_of_each_dtype_if_brief():
    rows = [
        result(dtype=dtype, data=data, max_ulp=ulp, allowance_used=used)
        for dtype in ("bf16", "fp32")
        for data, ulp, used in (("normal", 0.5, 0.0), ("offset", 3.0, 0.4), ("outliers", 2.0, 0.1))
    ]
    *_, heading, first, second = check_table(rows, brief=True)
    assert heading == "torch layer_norm backward"
    assert [line.split()[:2] for line in (first, second)] == [
        ["bf16", "offset"],
        ["fp32", "offset"],
    ]


def test_a_missing_provider_is_one_line_for_all_operations():
    rows = [
        result(provider="liger", operation=operation, status="missing", why="no", max_error=None)
        for operation in ("layer_norm", "rms_norm")
    ]
    assert list(check_table(rows))[2:] == ["liger: missing: no"]


def test_the_legend_explains_what_may_surprise():
    assert len(list(legend([result(ours=True)]))) == 2
    surprising = list(legend([result(operation="add_rms_norm")]))
    assert any("stored h" in line for line in surprising)
    assert any("other providers" in line for line in surprising)
    assert max(map(len, surprising)) <= 100
