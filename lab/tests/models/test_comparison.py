"""The comparison of stages: the same losses, every step timed, speed-ups beside the first stage."""

import pytest

from rownorm_lab.models import STAGES, tasks
from rownorm_lab.models.comparison import StageResult, compare_stages, table


def test_stages_side_by_side(monkeypatch, without_interpreter):
    monkeypatch.setitem(tasks.TASKS["llama"].budgets, "tiny", tasks.Budget(2, 3e-3))
    results = compare_stages("llama", "tiny", 2)
    assert [one.stage for one in results] == list(STAGES)
    for one in results:
        assert one.losses == pytest.approx(results[0].losses, rel=1e-5)
        assert len(one.seconds) == 2


def test_table():
    results = [
        StageResult("baseline", [4.0, 2.0], [0.003, 0.001, 0.002]),
        StageResult("rownorm", [4.0, 1.5], [0.001]),
    ]
    lines = [line.split() for line in table(results).splitlines()]
    assert lines[1] == ["baseline", "4.0000", "2.0000", "2.00", "1.00x"]
    assert lines[2] == ["rownorm", "4.0000", "1.5000", "1.00", "2.00x"]
