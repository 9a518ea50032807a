"""Steps that several exercises share: far rows, and what compiled kernels do."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rownorm_lab.data.case import Case

from ..calls import Call, untouched
from ..grades import Failure
from ..judge import Counts, all_count, refuse_findings
from ..learner import Learner
from ..protocol import Compiled, CompiledCall

REACHED = 0.99  # of the rows: of a launch this large, some of the last programs and turns run
ROWS = 96  # of the case that is compiled
MOST_PROGRAMS = 65535  # of the second and the third dimension of a grid
FAR = (1 << 31) + (
    1 << 22
)  # elements: an int32 offset wraps around once, so that it is outside of its tensor


def far_rows(learner: Learner, call: Call, case: Case, counts: Counts = all_count) -> None:
    """Rows beyond 2^31 elements, of every tensor: in the interpreter, on tensors that have addresses only."""
    case = msgspec.structs.replace(case, rows=FAR // case.cols)
    with learner.observed() as seen:
        call(case, untouched(case))
    if not seen.launches:
        raise Failure(f"{case.title}: the function returned without a kernel", "no-kernel")
    refuse_findings(case.title, seen, counts)
    for launch in seen.launches:
        if max(launch.grid[1:], default=1) > MOST_PROGRAMS:
            size = " x ".join(map(str, launch.grid))
            raise Failure(f"{case.title}: a GPU refuses the grid {size} of {launch.kernel}", "grid")
    reached = [one for launch in seen.recorded for one in launch.reached]
    whole = [one for one in reached if one.elements >= case.rows * case.cols]
    end = max((one.end / one.elements for one in whole), default=0.0)
    if end < REACHED:
        raise Failure(
            f"{case.title}: rows from {int(end * case.rows):,} on are never stored", "rows-beyond"
        )


def passes_over_rows(compiled: CompiledCall, expected: float, what: str) -> None:
    """How many times the rows are loaded, in the machine code. Fewer is better."""
    found = sum(one.passes for one in compiled.analyses)
    if found > expected + 0.05:
        raise Failure(
            f"{what} loads each row {found:.2g} times, expected at most {expected:g}", "passes"
        )


def no_spills(kernels: Sequence[Compiled]) -> None:
    """No registers in memory."""
    for one in kernels:
        if spilled := one.spills:
            raise Failure(f"{one.name} spills {spilled} bytes for each thread", "spills")
