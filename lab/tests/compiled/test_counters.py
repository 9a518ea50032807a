"""Predicted sectors beside those that ncu counted on an H200 (lab/tests/commands/profile/captured)."""

from pathlib import Path

import pytest

from rownorm_lab.profilers import ncu_csv
from support.compiled import json_of

CAPTURED = Path(__file__).parents[1] / "commands" / "profile" / "captured" / "h200" / "ncu.csv"
_ANALYZE = """
import json
from rownorm_lab.compiled.analysis import analyze
from rownorm_lab.compiled.compile import compile_case, target_of
from rownorm_lab.data.case import Case

found = {}
for direction in ("forward", "backward"):
    case = Case(operation="rms_norm", direction=direction, rows=8192, cols=4096)
    for kernel in analyze(compile_case(case, target_of("sm_90"))).kernels:
        for kind, names in (("ld", ("load", "copy")), ("st", ("store",))):
            sectors = sum(one.sectors for one in kernel.tensors if one.kind in names)
            found[kernel.kernel + " " + kind] = sectors
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def predicted(triton_cache):
    return json_of(["-c", _ANALYZE], triton_cache)


@pytest.mark.parametrize(
    ("access", "difference"),
    # Not the stores of forward: in the captured training step it also stores rstd.
    [
        ("forward_resident ld", 0),
        ("backward_resident ld", 0.001),  # Triton 3.6, captured, copies rstd for a row at a time
        ("backward_resident st", 0),
        ("column_sums ld", 0),
    ],
)
def test_sectors_are_those_that_were_counted(predicted, access, difference):
    kernel, kind = access.split()
    [record] = [one for one in ncu_csv.parse(CAPTURED.read_text()) if one.kernel == kernel]
    counted = record.metrics[ncu_csv.SECTORS.format(kind)]
    assert predicted[access] == pytest.approx(counted, rel=difference, abs=0)
