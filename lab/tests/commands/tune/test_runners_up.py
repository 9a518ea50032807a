"""``tools/runners_up.py``: which settings it takes, and what it writes from a journal. Measuring needs a GPU."""

import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rownorm.inside import TARGETS, tables

TOOL = Path(__file__).parents[4] / "tools" / "runners_up.py"
H200 = TARGETS["sm_90"].device


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("runners_up", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def used(tool):
    return tool.used_rows(tables.shipped_file("sm_90"), H200)


def test_every_entry_that_planning_uses_is_taken_once(tool, used):
    names = [tool.identity(row) for row, _ in used]
    assert len(names) == len(set(names)) > 300
    assert {row["option"] for row, _ in used[:100]} == {""}


def test_neighbors_differ_least(tool, used):
    row, study = next((row, study) for row, study in used if study.n_cols == 5120)
    near = tool.neighbors(study, row["settings"], H200)
    assert len(near) == tool.NEIGHBORS
    assert all(tool.distance(one, row["settings"]) == 1 for one in near)


def test_another_regime_is_further_than_any_one_setting(tool):
    one = {"regime": "tile", "block_rows": 4, "block_cols": 512, "num_warps": 4}
    assert tool.distance(one, one) == 0
    assert tool.distance(one, one | {"num_warps": 8}) == 1
    assert tool.distance(one, one | {"regime": "resident"}) == 1 + tool.ANOTHER_REGIME


def test_short_rows_are_as_many_as_the_entry_was_measured_with(used):
    rows = {
        (row["direction"], row["center"], study.n_cols): study.n_rows for row, study in used[:60]
    }
    assert rows["forward", False, 32] == (1 << 28) // 32
    assert rows["forward", False, 4096] == 32768


def test_write_stores_the_fastest_neighbor_and_names_faster_ones(tool, used, tmp_path):
    shipped = tables.shipped_file("sm_90")
    table = tmp_path / "sm_90.json"
    table.write_text(shipped.read_text())
    row, study = used[0]
    slow, fast = tool.neighbors(study, row["settings"], H200)[:2]
    line = {"entry": tool.identity(row), "settings": [row["settings"], slow, fast]}
    journal = json.dumps(line | {"seconds": [1.0, 2.0, 0.5]})
    (tmp_path / tool.JOURNAL).write_text(f'{journal}\n{{"entry": "cut o')
    result = CliRunner().invoke(tool.main, ["write", str(tmp_path), "--table", str(table)])
    assert result.exit_code == 0, result.output
    assert f"{tool.identity(row)}: 0.500 with" in result.output
    written, before = json.loads(table.read_text()), json.loads(shipped.read_text())
    [changed] = [a for a, b in zip(written["plans"], before["plans"], strict=True) if a != b]
    assert changed["runner_up"] == {"settings": fast, "gb_per_s": 2 * row["gb_per_s"]}
    assert changed | {"runner_up": row["runner_up"]} == row
