"""The progress display of bench."""

import io

import pytest
from rich.console import Console

from lab_support.lab_records import record
from rownorm_lab.command_line.progress import Display
from rownorm_lab.data.case import Case
from rownorm_lab.measure.bench import Step

CASES = [
    Case(operation="rms_norm", rows=rows, cols=4096, name="a long name " * 9) for rows in (1, 2)
]


@pytest.mark.parametrize("terminal", [True, False])
def test_the_time_left_is_visible_for_long_case_names(terminal):
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=80, color_system=None)
    with Display(len(CASES), console) as display:
        for case in CASES:
            display.step(Step(0, 4, case, "rownorm", "checking"))
            display.case_done([record(case, "rownorm"), record(case, "torch")])
    text = shown.getvalue()
    if terminal:
        lines = text.replace("\r", "\n").splitlines()
        assert any("0/2 -:--:-- left checking rownorm: rms" in line for line in lines)
        assert any("2/2 0:00:00 left checking rownorm: rms" in line for line in lines)
    else:
        assert "[1/2, 0:00 left] rms_norm forward bf16 1x4096" in text
        assert "[2/2, 0:00 left] rms_norm forward bf16 2x4096" in text
        assert "torch" in text
