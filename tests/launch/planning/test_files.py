"""Where tables come from: a user's own table comes before the shipped one, or is ignored as a whole."""

import json
import warnings

import pytest
import torch

import rownorm
from rownorm import launch
from rownorm.launch.planning import files, table
from support.planning import planner, problem

ROW = {
    "direction": "forward",
    "center": False,
    "itemsize": 2,
    "residual": 0,
    "option": "",
    "max_cols": 4096,
    "settings": {"regime": "resident", "block_rows": 1, "block_cols": 4096, "num_warps": 2},
    "gb_per_s": 4000,
    "runner_up": {
        "settings": {"regime": "resident", "block_rows": 1, "block_cols": 2048, "num_warps": 4},
        "gb_per_s": 3900,
    },
    "reason": "fastest of 40 settings",
}
HEAD = (
    dict.fromkeys(table.TEXTS, "")
    | {"arch": "sm_90", "device": "My H200"}
    | {
        "triton": "3.7.1",
        "date": "2026-01-31",
    }
)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A function that writes the user's table of sm_90 and has all tables read again."""
    monkeypatch.setenv(files.VARIABLE, str(tmp_path))

    def write(content):
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "sm_90.json").write_text(text)
        files.table_of.cache_clear()
        return tmp_path / "sm_90.json"

    yield write
    monkeypatch.undo()
    files.table_of.cache_clear()


def with_rows(*rows):
    return {**HEAD, "plans": list(rows)}


def asked(n_cols, **changes):
    return problem(n_cols=n_cols, center=False, dtype=torch.bfloat16, **changes)


SHIPPED = {n: launch.plan(asked(n)) for n in (2048, 2049, 3072, 4000, 4096, 8192)}


def test_an_entry_replaces_the_shipped_one_of_its_width_and_no_other(own):
    file = own(with_rows(ROW))
    plan = launch.plan(asked(4096))
    assert (plan.num_warps, plan.block_cols) == (2, 4096)
    assert plan.source == f"table for My H200 in {file}"
    assert "Triton 3.7.1; fastest of 40 settings" in plan.reason
    assert "tuned for 3073 to 4096 columns" in plan.reason  # the shipped table has 3072
    assert launch.plan(asked(4000)).source == plan.source
    for n_cols in (2048, 2049, 3072, 8192):
        assert launch.plan(asked(n_cols)) == SHIPPED[n_cols]


def test_an_entry_may_have_a_width_of_its_own(own):
    own(with_rows({**ROW, "max_cols": 4000}))
    assert launch.plan(asked(4000)).num_warps == 2
    assert launch.plan(asked(4096)) == SHIPPED[4096]


def test_an_architecture_without_a_shipped_table_takes_the_users(own, tmp_path):
    (tmp_path / "sm_100.json").write_text(json.dumps({**with_rows(ROW), "arch": "sm_100"}))
    files.table_of.cache_clear()
    assert [len(one.entries) for one in files.table_of("sm_100").sources] == [1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must have the keys"),
        ({**HEAD, "plans": [], "speed": 1}, "must have the keys"),
        ({**with_rows(ROW), "arch": "gfx942"}, "is for gfx942, not for sm_90"),
        ({**with_rows(ROW), "triton": "new"}, "triton must be a version"),
        ({**with_rows(ROW), "device": 3}, "device must be a text"),
        ({**HEAD, "plans": {}}, "plans must be a list"),
        (with_rows(ROW, 7), "entry 1, 7: an entry must be an object"),
        (with_rows({**ROW, "settings": []}), "settings must be an object"),
        (with_rows({**ROW, "runner_up": {"gb_per_s": 1}}), "settings must be given"),
        (with_rows(ROW, {**ROW, "max_cols": 8192, "gb_per_s": -1}), "entry 1.*gb_per_s"),
        (
            with_rows({**ROW, "settings": {**ROW["settings"], "num_warps": 64}}),
            "num_warps must be at most 32",
        ),
        (
            with_rows({**ROW, "settings": {**ROW["settings"], "regime": "grid"}}),
            "grid is a regime of backward",
        ),
    ],
)
def test_a_damaged_or_foreign_table_is_ignored_as_a_whole_with_a_warning(own, content, message):
    file = own(content)
    with pytest.warns(RuntimeWarning, match=message) as warned:
        assert launch.plan(asked(4096)) == SHIPPED[4096]
    assert str(file) in str(warned[0].message)
    assert "ROWNORM_TABLES=" in str(warned[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert launch.plan(asked(8192)) == SHIPPED[8192]  # it warns once


def test_a_table_that_cannot_be_opened_is_ignored(own, tmp_path):
    (tmp_path / "sm_90.json").mkdir()
    files.table_of.cache_clear()
    with pytest.warns(RuntimeWarning, match="cannot be read"):
        assert launch.plan(asked(4096)) == SHIPPED[4096]


def test_the_folder_is_that_of_the_variable_else_that_of_the_configuration(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv(files.VARIABLE)
    assert files.own_file("sm_80") == tmp_path / ".config/rownorm/tables/sm_80.json"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "etc"))
    assert files.own_file("sm_80") == tmp_path / "etc/rownorm/tables/sm_80.json"
    monkeypatch.setenv(files.VARIABLE, str(tmp_path / "mine"))
    assert files.own_file("sm_80") == tmp_path / "mine/sm_80.json"
    monkeypatch.setenv(files.VARIABLE, "")
    assert files.own_file("sm_80") is None


def test_explain_shows_the_precedence(own):
    x, weight = (torch.empty(*n, dtype=torch.bfloat16, device="meta") for n in ((8, 4096), (4096,)))
    shipped = str(rownorm.explain(rownorm.rms_norm, x, weight, device="sm_90"))
    assert "plans     rownorm's table (tuned on NVIDIA H200 with Triton 3.6.0, 2" in shipped
    assert ", then rules\n" in shipped
    assert "plans     rules" in str(rownorm.explain(rownorm.rms_norm, x, weight, device="sm_80"))
    file = own(with_rows(ROW))
    mine = str(rownorm.explain(rownorm.rms_norm, x, weight, device="sm_90"))
    assert (
        f"plans     {file} (tuned on My H200 with Triton 3.7.1, 2026-01-31), then rownorm's table"
        in mine
    )
    assert f"(table for My H200 in {file})" in mine
    assert "fastest of 40 settings" in mine


def test_the_planner_reads_tables_from_files():
    assert planner.table_of is files.table_of
