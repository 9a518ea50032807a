"""Every Solution of a dataset against its Definition's reference, on every workload.

An element passes if

    fp16, fp32   |got - expected| < 1e-3 |expected|, the rule of the exercise that asks for these Solutions
    bf16         |got - expected| is at most one step of bf16

where |expected| counts as at least the smallest normal number, because the steps of fp16 do not shrink below it, and in
LayerNorm as at least the root mean square of its row, because values near zero are differences of larger ones. For
bf16 steps the latter holds for both norms, as in ``rownorm check``. FlashInfer-Bench has a looser rule: an element
fails only if its error is above 1e-2 and its relative error is too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from flashinfer_bench import BenchmarkConfig, Definition, Solution, Trace, Workload
from flashinfer_bench.bench.evaluators.utils import allocate_outputs, normalize_result
from flashinfer_bench.bench.utils import compute_error_stats, gen_inputs, load_safetensors
from flashinfer_bench.compile import BuilderRegistry, BuildError
from torch import Tensor

from ..data.texts import count
from ..measure.accuracy import spacing
from .dataset import Dataset, Problem, first_reason
from .definition import Norm
from .recognize import NotServed, recognize

MAX_RELATIVE_ERROR = 1e-3
MAX_ULP = 1.0
Status = Literal["ok", "wrong", "failed"]


class Checked(NamedTuple):
    """One Solution on one workload, or a Solution that could not be built (no rows then)."""

    solution: Solution
    rows: int | None
    status: Status
    why: str = ""
    max_relative_error: float | None = None  # of the rule above
    max_ulp: float | None = None
    upstream: str = ""  # the verdict by FlashInfer-Bench's rule

    def __str__(self) -> str:
        """``rownorm_rmsnorm_d4096, 8 rows: ok, relative error 0, 0 ulp; FlashInfer-Bench: PASSED``."""
        where = self.solution.name + ("" if self.rows is None else f", {count(self.rows, 'row')}")
        if self.max_relative_error is None:
            return f"{where}: {self.status}: {self.why}"
        errors = f"relative error {self.max_relative_error:.2g}, {self.max_ulp:.2g} ulp"
        why = f" ({self.why})" if self.why else ""
        return f"{where}: {self.status}{why}, {errors}; FlashInfer-Bench: {self.upstream}"


def check(dataset: Dataset, device: str) -> Iterator[Checked | Problem]:
    """A result for every Solution and workload; a problem for a Definition that rownorm does not serve."""
    content = dataset.content
    for name, definition in content.definitions.items():
        try:
            norm = recognize(definition)
        except NotServed as reason:
            yield Problem(f"Definition {name}", f"skipped: {reason}")
            continue
        workloads, solutions = content.workloads.get(name, []), content.solutions.get(name, [])
        if not workloads or not solutions:
            yield Problem(f"Definition {name}", "it has no workload or no Solution")
        for solution in solutions:
            try:
                runnable = BuilderRegistry.get_instance().build(definition, solution)
            except BuildError as error:
                yield Checked(solution, None, "failed", f"not built: {first_reason(error)}")
                continue
            for trace in workloads:
                yield _check_one(definition, norm, solution, runnable, trace, content.root, device)


def _check_one(
    definition: Definition,
    norm: Norm,
    solution: Solution,
    runnable: Any,
    trace: Trace,
    root: Any,
    device: str,
) -> Checked:
    workload: Workload = trace.workload
    rows = workload.axes[norm.rows_axis]
    try:
        norm.eps_of(workload)  # raises if it would be random
        has_files = any(one.type == "safetensors" for one in workload.inputs.values())
        stored = load_safetensors(definition, workload, root) if has_files else {}
        torch.manual_seed(0)
        inputs = gen_inputs(definition, workload, device, stored)
        with torch.no_grad():
            reference = BuilderRegistry.get_instance().build_reference(definition)
            expected = normalize_result(definition, reference(*inputs), device)
            got = _outputs(definition, solution, runnable, inputs, device)
    except Exception as error:
        return Checked(solution, rows, "failed", first_reason(error))
    if form := _wrong_form(got, expected):
        return Checked(solution, rows, "wrong", form, upstream="INCORRECT")
    errors = [_error(g, e, norm) for g, e in zip(got, expected, strict=True)]
    relative, ulp = (max(values) for values in zip(*errors, strict=True))
    rule = BenchmarkConfig()
    exceeds = any(compute_error_stats(g, e, rule)[2] for g, e in zip(got, expected, strict=True))
    is_bf16 = norm.dtype == "bf16"
    good = ulp <= MAX_ULP if is_bf16 else relative < MAX_RELATIVE_ERROR
    limit = f"{MAX_ULP:g} ulp" if is_bf16 else f"{MAX_RELATIVE_ERROR:g}"
    return Checked(
        solution,
        rows,
        "ok" if good else "wrong",
        "" if good else f"an error is not below {limit}",
        relative,
        ulp,
        "INCORRECT_NUMERICAL" if exceeds else "PASSED",
    )


def _outputs(
    definition: Definition, solution: Solution, runnable: Any, inputs: list[Any], device: str
) -> list[Tensor]:
    """What the Solution computes; memory that it does not write is NaN."""
    # Not that of ``runnable``: the registry knows a Solution by its sources, and may return one that it built before.
    if not solution.spec.destination_passing_style:
        return list(normalize_result(definition, runnable(*inputs), device))
    outputs = [t.fill_(torch.nan) for t in allocate_outputs(definition, inputs, device)]
    runnable(*inputs, *outputs)
    return outputs


def _wrong_form(got: list[Tensor], expected: list[Tensor]) -> str:
    for one, other in zip(got, expected, strict=True):
        if one.shape != other.shape:
            return f"the shape is {tuple(one.shape)}, not {tuple(other.shape)}"
        if one.dtype != other.dtype:
            return f"the dtype is {one.dtype}, not {other.dtype}"
        if not one.isfinite().all():
            return "there are values that are not finite"
    return ""


def _error(got: Tensor, expected: Tensor, norm: Norm) -> tuple[float, float]:
    """The largest relative error and the largest error in steps, by the rule at the top."""
    wide = expected.double()
    error, size = (got.double() - wide).abs(), wide.abs()
    row = wide.square().mean(-1, keepdim=True).sqrt()
    least = row if norm.centers else torch.full_like(row, torch.finfo(expected.dtype).tiny)
    relative = error / torch.maximum(size, least)
    ulp = error / spacing(torch.maximum(size, row), expected.dtype)
    return relative.max().item(), ulp.max().item()
