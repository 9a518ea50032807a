"""The plans of a call and the reasons for them, without running it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from . import ops
from .ops.batch_invariance import is_on, state
from .ops.checks import check
from .ops.groups import in_groups
from .program import INPUTS, Inputs, Program

if TYPE_CHECKING:
    from .launch import Plan, Problem

CURE = "see rownorm.batch_invariant"
FUNCTIONS = (ops.layer_norm, ops.rms_norm, ops.add_layer_norm, ops.add_rms_norm)


class Explanation(NamedTuple):
    """The problems of a call, forward and backward, and their plans. Printing it shows the plans and their reasons.

    batch: what the bits of a row depend on beside the row. tables: where plans for this device are looked for, first
    place first. triton: the version here, and the one that the table was measured with. note: what differs here.
    """

    name: str
    forward_problem: Problem
    forward: Plan
    backward_problem: Problem
    backward: Plan
    batch: str
    tables: str
    triton: str
    note: str = ""

    def __str__(self) -> str:
        problem = self.forward_problem
        device = problem.device
        dtype = str(problem.dtype).removeprefix("torch.")
        lines = [
            f"{self.name}, {problem.n_rows} x {problem.n_cols} {dtype} on {device.name} ({device.arch})",
            *_lines("forward", self.forward),
            *_lines("backward", self.backward),
            f"  batch     {self.batch}",
            f"  plans     {self.tables}",
            f"  triton    {self.triton}",
        ]
        return "\n".join(lines + ([f"  note      {self.note}"] if self.note else []))


def _lines(direction: str, plan: Plan) -> list[str]:
    """A plan, why it has these settings, and for one of a table what was second."""
    lines = [f"  {direction:8}  {plan}", f"            reason: {plan.reason}"]
    return lines + ([f"            second: {plan.second}"] if plan.second else [])


def _batch(*problems: Problem) -> str:
    """What the bits of a row depend on beside the row."""
    from .launch.planning import depends_on_rows

    dependent = [problem.direction for problem in problems if depends_on_rows(problem)]
    if dependent:
        which = " and ".join(dependent)
        return (
            f"the number of rows, alignment and strides change the order of sums in {which}: {CURE}"
        )
    if problems[0].batch_invariant:
        return (
            "the same bits of a row in any batch: its sums have one order for these columns, dtypes and options, and "
            "tensors with another alignment or other strides are copied"
        )
    return f"the same bits of a row for any number of rows; alignment and strides may change them: {CURE}"


def explain(
    function: Callable[..., Any], /, *args: Any, device: str | None = None, **kwargs: Any
) -> Explanation:
    """The plans of ``function(*args, **kwargs)``, forward and with a gradient for every tensor.

    function: ``rownorm.layer_norm``, ``rms_norm``, ``add_layer_norm`` or ``add_rms_norm``; then its own arguments.
    Only shapes, strides and dtypes matter: tensors may be on the ``meta`` device. ``device`` names an architecture
    ("sm_90", "gfx942"), which this machine need not have; without it, the plan is for the device of the tensors.
    """
    # The launch layer imports Triton where it is installed, which importing rownorm must not.
    from .launch import plan
    from .launch.device import DEVICES
    from .launch.planning.files import compiled_by, precedence
    from .launch.problem import backward_problem, forward_problem, without_values
    from .launch.triton_version import INSTALLED, VERSION

    if function not in FUNCTIONS:
        known = ", ".join(f"rownorm.{each.__name__}" for each in FUNCTIONS)
        raise TypeError(f"rownorm.explain: function must be one of {known}; got {function!r}")
    if device is not None and device not in DEVICES:
        known = ", ".join(DEVICES)
        raise ValueError(f"rownorm.explain: device must be one of {known}, or None; got {device!r}")
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = bound.arguments
    program = Program(
        center="layer_norm" in function.__name__,
        **{name: arguments[name] for name in Program._fields if name in arguments},
        batch_invariant=state.is_active and is_on(),
    )
    inputs = Inputs(*(arguments.get(name) for name in INPUTS))  # type: ignore[arg-type]
    if arguments["group_cols"] is not None:
        inputs, program = in_groups(inputs, program, arguments["group_cols"])
    x = inputs.x
    check(inputs, program)
    if device is None and not ops.execute.takes_kernels(x):
        raise ValueError(
            f"rownorm.explain: a call on {x.device} has no plan, which is for kernels: "
            f"{ops.cpu.computed_by(inputs, program)}. For the plan on a GPU pass device={'sm_90'!r}, or another of "
            f"{', '.join(DEVICES)}."
        )
    target = None if device is None else DEVICES[device]
    first = forward_problem(inputs, program, target)
    second = backward_problem(
        without_values(inputs, program),
        program.for_backward(x.dtype),
        has_residual=inputs.residual is not None,
        wanted=tuple(t is not None for t in inputs),
        device=target,
    )
    arch = first.device.arch
    tables = (precedence(arch), compiled_by(arch))
    assumed = (
        f"Triton is not installed here; the plans are those for Triton {VERSION[0]}.{VERSION[1]}"
    )
    note = "" if INSTALLED else assumed
    plans = first, plan(first), second, plan(second)
    return Explanation(function.__name__, *plans, _batch(first, second), *tables, note)
