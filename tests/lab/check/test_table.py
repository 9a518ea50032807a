"""The table of ``rownorm check``."""

from rownorm.lab.check.table import check_table
from rownorm.lab.measure.check import CheckResult


def test_large_errors_have_columns_of_their_own():
    row = CheckResult(
        **{"provider": "torch", "operation": "layer_norm", "direction": "backward"},
        **{"dtype": "fp16", "data": "offset", "status": "over", "why": "off"},
        **{"max_error": 0.74, "mean_error": 0.19, "max_ulp": 190.0, "budget_used": 130.0},
    )
    *_, line = check_table([row])
    assert line.split()[2:6] == ["0.74", "0.19", "1.9e+02", "130x"]
