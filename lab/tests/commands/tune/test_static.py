"""What compiled code says about candidates. Kernels are compiled, in a process of their own; no GPU is needed."""

import json

import pytest

from rownorm.launch.planning.files import shipped_file
from rownorm_lab.commands.tune.table import read_rows
from support.compiled import json_of

ROWS = read_rows(shipped_file("sm_90"))
PLAIN = {"center": False, "itemsize": 2, "residual": 0, "option": ""}
RESIDENT = {"regime": "resident", "block_rows": 1}
_LOOK = """
import json, sys
from rownorm.launch.resources import TARGETS
from rownorm_lab.commands.tune.static import compiled
from rownorm_lab.commands.tune.table import study_of
rows = json.loads(sys.argv[1])
print(json.dumps([compiled(study_of(row), row["settings"], TARGETS["sm_90"])._asdict() for row in rows]))
"""


def looked_at(rows, cache):
    return json_of(["-c", _LOOK, json.dumps(rows)], cache)


@pytest.fixture(scope="module")
def found(triton_cache):
    rows = {
        "good": ("forward", {**RESIDENT, "block_cols": 4096, "num_warps": 8}),
        "spilling": ("forward", {**RESIDENT, "block_cols": 8192, "num_warps": 1}),
        "crowding": (
            "backward",
            {**RESIDENT, "block_cols": 4096, "num_warps": 4, "programs_per_sm": 4, "num_stages": 3},
        ),
        "waiting": ("forward", {**RESIDENT, "block_cols": 32, "num_warps": 32}),
        "senseless": ("forward", {**RESIDENT, "block_cols": 24, "num_warps": 4}),
    }
    widths = {"spilling": 8192, "waiting": 32}
    asked = [
        {**PLAIN, "direction": direction, "max_cols": widths.get(name, 4096), "settings": settings}
        for name, (direction, settings) in rows.items()
    ]
    return dict(zip(rows, looked_at(asked, triton_cache), strict=True))


def test_registers_spills_and_occupancy_are_those_of_the_compiler(found):
    good = found["good"]
    assert (good["cause"], good["why"], good["spills"]) == ("", "", 0)
    assert 20 <= good["registers"] <= 64
    assert good["occupancy"] == good["programs"] * 8 / 64


def test_each_cause_is_found(found):
    assert found["spilling"]["cause"] == "spills"
    assert f"spills {found['spilling']['spills']} bytes" in found["spilling"]["why"]
    assert found["crowding"]["cause"] == "crowds"
    assert found["crowding"]["why"] == "4 programs per multiprocessor, of which 3 fit"
    assert found["waiting"]["cause"] == "waits"
    assert "bytes in flight per multiprocessor" in found["waiting"]["why"]
    assert found["senseless"]["cause"] == "does not compile"


def test_rows_of_the_shipped_table_are_not_left_out(triton_cache):
    """One of every regime; all of them in the exhaustive test."""
    rows = {row["settings"]["regime"]: row for row in ROWS if not row["option"]}
    found = looked_at(list(rows.values()), triton_cache)
    assert [one["cause"] for one in found] == [""] * len(rows)


@pytest.mark.exhaustive
def test_no_row_of_the_shipped_table_is_left_out(triton_cache):
    """Backward with a pre_bias is for the table's own version of Triton alone, see ``planning/compiler.py``."""
    rows = [row for row in ROWS if (row["direction"], row["option"]) != ("backward", "pre_bias")]
    found = looked_at(rows, triton_cache)
    left_out = [(row, one["why"]) for row, one in zip(rows, found, strict=True) if one["cause"]]
    assert not left_out
