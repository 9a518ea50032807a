"""The tuned table: its order, and updating it."""

import collections
import json

import msgspec
import pytest

from lab_support.tuning import HERE
from rownorm.launch.planning.files import shipped_file
from rownorm.launch.planning.table import parse
from rownorm_lab.commands.tune.table import kind_of, read_base, read_rows, updated, write_table

ROWS = read_rows(shipped_file("sm_90"))


def test_the_table_is_in_the_order_that_the_tuner_writes():
    assert sorted(ROWS, key=kind_of) == ROWS


def test_only_a_looped_row_has_a_second_row_of_its_kind():
    """The first is for widths that fill the chunks, the second for the other widths."""
    regimes_of = collections.defaultdict(list)
    for row in ROWS:
        regimes_of[*kind_of(row), row.get("triton")].append(row["settings"]["regime"])
    several = [regimes for regimes in regimes_of.values() if len(regimes) > 1]
    assert several
    for first, *others in several:
        assert first == "looped"
        assert len(others) == 1
        assert others != ["looped"]


def test_a_written_table_is_read_back(tmp_path):
    file = tmp_path / "sm_90.json"
    write_table(file, HERE, ROWS)
    table = json.loads(file.read_text())
    assert (table["device"], table["torch"], table["triton"]) == ("NVIDIA H200", "2.11.0", "3.6.0")
    assert parse(table, "sm_90.json", "sm_90").entries
    assert read_base(file, HERE) == ROWS
    assert read_rows(file) == ROWS


def test_an_update_keeps_other_rows_and_unknown_keys():
    """A key such as ``experiment`` is written by hand; tuning the row again must not lose it."""
    old = [row | {"experiment": f"XX-{i}"} for i, row in enumerate(ROWS)]
    at = next(i for i, row in enumerate(ROWS) if row["settings"]["regime"] == "tile")
    again = {key: value for key, value in ROWS[at].items() if key != "measured_cols"}
    again |= {"gb_per_s": 1, "settings": {"regime": "resident"}}
    rows = updated(old, [again])
    assert rows[at] == again | {"experiment": f"XX-{at}"}
    assert rows[:at] + rows[at + 1 :] == old[:at] + old[at + 1 :]


def test_an_update_replaces_both_rows_of_a_kind():
    at = next(i for i in range(len(ROWS) - 1) if kind_of(ROWS[i]) == kind_of(ROWS[i + 1]))
    resident = ROWS[at + 1] | {"gb_per_s": 1}
    rows = updated(ROWS, [resident])
    assert len(rows) == len(ROWS) - 1
    assert rows[at] == resident


def test_a_table_that_the_planner_would_refuse_is_not_written(tmp_path):
    file = tmp_path / "sm_90.json"
    with pytest.raises(ValueError, match="entry 0"):
        write_table(file, HERE, [ROWS[0] | {"gb_per_s": 0}])
    assert not file.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": "gfx942"}, "is for sm_90, not for gfx942"),
        ({"triton": "3.9.0"}, "one table has one"),
    ],
)
def test_a_table_of_another_gpu_or_compiler_is_not_updated(tmp_path, changes, message):
    write_table(tmp_path / "base.json", HERE, ROWS)
    with pytest.raises(ValueError, match=message):
        read_base(tmp_path / "base.json", msgspec.structs.replace(HERE, **changes))


def test_a_damaged_table_is_not_updated(tmp_path):
    (tmp_path / "base.json").write_text("{")
    with pytest.raises(ValueError, match="is not a table"):
        read_base(tmp_path / "base.json", HERE)


def test_an_update_keeps_rows_for_other_versions_of_triton():
    named = {**ROWS[0], "triton": ">=3.9", "gb_per_s": 7}
    measured = {**ROWS[0], "gb_per_s": 8}
    rows = updated([ROWS[0], named, ROWS[1]], [measured])
    assert [row["gb_per_s"] for row in rows[:2]] == [8, 7]
    assert rows[1]["triton"] == ">=3.9"
    assert "triton" not in rows[0]
