"""The tuned table: its order, and updating it."""

import collections
import json

from rownorm.lab.tune.table import kind_of, read_rows, shipped_table, updated, write_table

ROWS = read_rows(shipped_table("sm_90"))


def test_the_table_is_in_the_order_that_the_tuner_writes():
    assert sorted(ROWS, key=kind_of) == ROWS


def test_only_a_looped_row_has_a_second_row_of_its_kind():
    """The first is for widths that fill the chunks, the second for the other widths."""
    regimes_of = collections.defaultdict(list)
    for row in ROWS:
        regimes_of[kind_of(row)].append(row["settings"]["regime"])
    several = [regimes for regimes in regimes_of.values() if len(regimes) > 1]
    assert several
    for first, *others in several:
        assert first == "looped"
        assert len(others) == 1
        assert others != ["looped"]


def test_a_written_table_is_read_back(tmp_path):
    file = tmp_path / "sm_90.json"
    write_table(file, "NVIDIA H200", "2.11.0", "3.6.0", ROWS)
    table = json.loads(file.read_text())
    assert (table["device"], table["torch"], table["triton"]) == ("NVIDIA H200", "2.11.0", "3.6.0")
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
