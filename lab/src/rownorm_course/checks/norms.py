"""Steps that several exercises share: trials of a norm, far rows, what compiled kernels do, and how fast they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rownorm_lab.data.analyses import TensorTraffic
from rownorm_lab.data.case import Case, Dtype, Operation
from rownorm_lab.providers.data import Tensors

from ..alternatives import RMS_NORM, Alternatives
from ..calls import Call, compile_call, share_of_ceiling, untouched
from ..grade import Task
from ..grades import Failure
from ..judge import Counts, TriedCase, all_count, refuse_findings, tensors_of, try_all
from ..learner import Learner
from ..protocol import TARGET, Compiled, CompiledCall, Watch
from .shares import passes

REACHED = 0.99  # of the rows: of a launch this large, some of the last programs and turns run
MOST_PROGRAMS = 65535  # of the second and the third dimension of a grid
# Elements: an int32 offset wraps around once, so that it is outside of its tensor.
FAR = (1 << 31) + (1 << 22)


def norm_case(
    rows: int,
    cols: int,
    dtype: Dtype = "fp32",
    operation: Operation = "rms_norm",
    eps: float = 1e-6,
    **fields: Any,
) -> Case:
    """A case: of RMSNorm, unless the operation is another."""
    return Case(operation=operation, rows=rows, cols=cols, dtype=dtype, eps=eps, **fields)


class Norm(NamedTuple):
    """A function of the learner that computes a norm. arguments: what it gets; known: wrong formulas.

    answer: see ``Request``; most_launches: see ``try_all``.
    """

    file: str
    name: str = "rms_norm"
    arguments: Callable[[Case, Tensors], Sequence[Any]] = lambda case, t: (t.x, t.weight, case.eps)
    known: Alternatives = RMS_NORM
    answer: int = -1
    most_launches: int = 0

    def call(self, learner: Learner) -> Call:
        """The function, for the tensors of a case."""
        function = learner.function(self.file, self.name, self.answer)
        return lambda case, t: function(*self.arguments(case, t))

    def try_all(self, learner: Learner, *trials: TriedCase) -> None:
        """Run every trial."""
        try_all(learner, self.call(learner), trials, self.known, self.most_launches)

    def trying(self, *trials: TriedCase) -> Callable[[Learner], None]:
        """A step that does it."""
        return lambda learner: self.try_all(learner, *trials)

    def far(self, part: str, *cases: Case) -> Task:
        """A step with rows more than 2^31 elements away, of x and y."""

        def check(learner: Learner) -> None:
            for case in cases:
                far_rows(learner, self.call(learner), case)

        return Task(part, "row offsets beyond 2^31", check, ("interpret",))

    def fast(self, least: Mapping[Case, float], habit: str = "") -> Task:
        """A step with shares of the ceiling by case."""

        def check(learner: Learner) -> None:
            for case, expected in least.items():
                share = share_of_ceiling(learner, self.call(learner), case)
                if share < expected:
                    raise Failure(
                        f"{case.rows}x{case.cols} {case.dtype} runs at {share:.0%} of the ceiling, expected "
                        f"{expected:.0%}",
                        habit,
                    )

        return Task("speed", "share of the ceiling", check, ("gpu",))

    def compiled(self, learner: Learner, case: Case) -> CompiledCall:
        """Its kernels for a case, compiled and analyzed."""
        return compile_call(learner, self.call(learner), case)

    def passes(self, learner: Learner, trial: TriedCase) -> float:
        """How many times it loads each row of a trial, as the interpreter has recorded it."""
        t = tensors_of(trial, learner)
        with learner.observed(Watch(everything=True, orders=0)) as seen:
            self.call(learner)(trial.case, t)
        return passes(seen, trial.case.rows, trial.case.cols)


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


# ---- compiled kernels ----


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


def accesses_of_rows(compiled: CompiledCall) -> Iterator[tuple[str, TensorTraffic]]:
    """(kernel, access) of x and y."""
    for one in compiled.analyses:
        for access in one.tensors:
            if access.tensor in ("x", "y"):
                yield one.kernel, access


def wide_accesses(compiled: CompiledCall, where: str = "") -> None:
    """16 bytes for each thread. where: after the kernel's name."""
    for kernel, access in accesses_of_rows(compiled):
        if access.bytes_per_thread < 16:
            raise Failure(
                f"{kernel}{where}: a thread accesses {access.bytes_per_thread} bytes of {access.tensor} at once, "
                "expected 16",
                "narrow",
            )


def share_of_limit(compiled: CompiledCall, case: Case) -> float:
    """The time of the compulsory bytes at the limit of an H200, over the predicted time."""
    from rownorm.inside import TARGETS
    from rownorm_lab.compiled.roofline import ceiling_of, limits_of

    ceiling = ceiling_of(limits_of(TARGETS[TARGET]), case).bytes_per_second
    return case.compulsory_bytes / ceiling / compiled.predicted_seconds
