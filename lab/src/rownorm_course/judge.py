"""Run a learner's function on a case of the lab and compare it with fp64: what came, what was expected, and where."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from rownorm_lab.data.case import Case, Dtype, torch_dtype
from rownorm_lab.interpreter.findings import Finding, Kind
from rownorm_lab.measure.accuracy import exact_values, judge, one_rounding
from rownorm_lab.providers.data import Tensors, output_names, rotation

from .alternatives import Alternatives, Rows
from .calls import Call
from .grades import Failure
from .learner import Learner, LearnerError
from .protocol import GUARD, Seen, Watch, unwritten

# An access out of bounds explains a race at the end of a row, and a race a result that depends on the order.
WORST_FIRST: tuple[Kind, ...] = ("bounds", "int32", "write-write", "read-write", "lanes", "order")
APART = 1024  # columns: a block of exercise 3
MOST_OFF = 0.05  # of the elements: those next to the middle of two 16-bit values may go either way
# Which findings belong to a step; the second argument is the role of the tensor, see ``Launched``.
Counts = Callable[[Finding, str], bool]


def all_count(_finding: Finding, _role: str) -> bool:
    """Every finding belongs to the step."""
    return True


class TriedCase(NamedTuple):
    """A case with the kind of its values and the layout of its rows.

    layout: "plain"; "strided": rows of a wider tensor, with NaN between them; "transposed": the first two of three
    dimensions lie in memory the other way round; "expanded dy": dy is a single value, as that of y.sum();
    "transposed dy": as "transposed", of dy; "frozen": x needs no gradient.
    shape: of x as the function gets it, (rows, cols) by default. habit: a key of ``CONTRASTS``, the reason if the trial
    fails and its contrast passes.
    orders: of the programs, in the interpreter, beside the usual one.
    """

    case: Case
    data: str = "normal"
    layout: str = "plain"
    habit: str = ""
    scale: float = 1.0  # x is multiplied by it,
    shift: float = 0.0  # and this is added
    weight_scale: float = 1.0
    weight_dtype: Dtype | None = None  # if it is not that of the rows
    outliers: float = 0.0  # the first, the middle and the last element of each row, unless 0
    steps: float = 0.0  # row r has r times this added
    apart: float = 0.0  # the first 1024 elements of each row are this, unless 0, and all others 0
    dy_like_x: bool = False  # dy is about as large as x, and along it
    shape: tuple[int, ...] = ()
    orders: int = 1

    def of_case(self, **fields: Any) -> TriedCase:
        """The trial of a case with other fields."""
        return self._replace(case=msgspec.structs.replace(self.case, **fields))

    def __str__(self) -> str:
        words = [f"{self.data} values"] if self.data != "normal" else []
        words += ["rows of a wider tensor"] if self.layout == "strided" else []
        words += [f"x of shape {self.shape}"] if self.shape else []
        words += [f"values about {self.scale:g}"] if self.scale != 1 else []
        words += ["negative weights"] if self.weight_scale < 0 else []
        words += [f"a mean of {self.shift:g}"] if self.shift else []
        words += [f"means in steps of {self.steps:g}"] if self.steps else []
        words += ["x transposed"] if self.layout == "transposed" else []
        words += ["dy transposed"] if self.layout == "transposed dy" else []
        words += ["x needs no gradient"] if self.layout == "frozen" else []
        words += ["dy of y.sum()"] if self.layout == "expanded dy" else []
        words += ["dy along x"] if self.dy_like_x else []
        words += [f"a weight in {self.weight_dtype}"] if self.weight_dtype else []
        words += [f"{self.outliers:g} first, in the middle and last"] if self.outliers else []
        words += (
            [f"the first {APART} columns are {self.apart:g}, the others 0"] if self.apart else []
        )
        return self.case.title + (f" ({', '.join(words)})" if words else "")


def try_all(
    learner: Learner,
    call: Call,
    trials: Sequence[TriedCase],
    alternatives: Alternatives | None = None,
    most_launches: int = 0,
    counts: Counts = all_count,
) -> None:
    """Run every trial; Failure at the first that is wrong.

    most_launches: 0 is any number of kernels; counts: which findings of the interpreter belong to this step.
    """
    tried = []
    for trial in trials:
        ran = _tried(_Trying(learner, call), trial, alternatives or {}, counts)
        seen = ran.seen
        tried.append((trial, ran))
        if 0 < most_launches < len(seen.launches):
            names = ", ".join(one.kernel for one in seen.launches)
            raise Failure(f"{trial}: {len(seen.launches)} kernels ran: {names}", "not-fused")
    for trial, ran in tried:  # last: a worse mistake has a worse sign
        _rounded_once(trial, ran)


# By habit: the same trial without the difficulty. If it passes, the difficulty is the reason.
CONTRASTS: Mapping[str, Callable[[TriedCase], TriedCase]] = {
    "low-precision": lambda trial: trial.of_case(dtype="fp32")._replace(scale=1.0),
    "weight-overflow": lambda trial: trial.of_case(dtype="fp32")._replace(scale=1.0),
    "cancellation": lambda trial: trial._replace(data="normal"),
    # In whole blocks.
    "welford-weights": lambda trial: trial.of_case(cols=max(1024, trial.case.cols // 1024 * 1024)),
    "many-rows": lambda trial: trial.of_case(rows=7),
    "wide-rows": lambda trial: trial.of_case(cols=2500),
    "own-shift": lambda trial: trial._replace(steps=0.0),
    "any-shape": lambda trial: trial._replace(shape=()),
    "any-layout": lambda trial: trial._replace(layout="plain"),
    "any-dy": lambda trial: trial._replace(layout="plain"),
    "rstd-ignored": lambda trial: trial.of_case(eps=1e-6)._replace(data="normal"),
    "weight-dtype": lambda trial: trial._replace(weight_dtype=None),
    "shift-outlier": lambda trial: trial._replace(outliers=0.0),
    "shift-block": lambda trial: trial._replace(apart=0.0),
}
IN_16_BITS = ("low-precision", "weight-overflow")  # of values, not of a result's dtype
# The difficulty may as well make the function raise.
MAY_RAISE = ("many-rows", "wide-rows", "any-shape", "any-layout", "any-dy")


class _Ran(NamedTuple):
    """A trial's inputs, what the function returned, and what was seen."""

    tensors: Tensors
    outputs: list[Tensor]
    seen: Seen
    why: str  # it is wrong; empty if it is right


class _Trying(NamedTuple):
    """A function to try."""

    learner: Learner
    call: Call

    def run(self, trial: TriedCase, outside: float = torch.nan, masked: float = torch.nan) -> _Ran:
        """Run one trial. outside: what memory behind and between the rows holds; masked: see ``observed``."""
        case = trial.case
        tensors = tensors_of(trial, self.learner, outside)
        if trial.layout == "expanded dy":
            tensors = tensors._replace(dy=torch.ones_like(tensors.x[:1, :1]).expand_as(tensors.x))
        given = tensors._replace(x=tensors.x.view(trial.shape)) if trial.shape else tensors
        if trial.layout == "transposed":
            given = given._replace(x=given.x.transpose(0, 1).contiguous().transpose(0, 1))
        if trial.layout == "transposed dy":
            assert tensors.dy is not None
            dy = tensors.dy.view(given.x.shape).transpose(0, 1).contiguous().transpose(0, 1)
            given = given._replace(dy=dy)
        if trial.layout == "frozen":
            given = given._replace(x=given.x.detach())
        with self.learner.observed(Watch(masked=masked, orders=trial.orders)) as seen:
            returned = self.call(case, given)
        outputs = [returned] if isinstance(returned, Tensor) else list(returned or ())
        if not outputs:
            names = ", ".join(output_names(case))
            raise Failure(f"{trial}: the function returned None; it must return {names}")
        _watch_operators(trial, seen)
        if seen.changed:
            raise Failure(
                f"{trial}: argument {seen.changed[0] + 1} of your function was changed; write to an output instead"
            )
        if case.direction == "both":
            outputs = _with_gradients(trial, outputs)
            if trial.layout == "frozen":
                outputs[1] = exact_results(case, tensors)["dx"].to(tensors.x.dtype)
        if trial.shape:
            if outputs[0].shape != trial.shape:
                raise Failure(f"{trial}: y has shape {tuple(outputs[0].shape)}", "any-shape")
            outputs[0] = outputs[0].reshape(case.rows, case.cols)
        plain = [one.detach() if isinstance(one, Tensor) else one for one in outputs]
        judgement = judge(case, tensors, plain, strict=False)
        return _Ran(tensors, outputs, seen, "" if judgement.ok else judgement.why)

    def is_right(self, trial: TriedCase, masked: float = torch.nan) -> bool:
        """Whether a trial passes."""
        try:
            return not self.run(trial, masked=masked).why
        except Exception:
            return False

    def reads_outside(self, trial: TriedCase, ran: _Ran) -> bool:
        """Whether the outputs depend on memory that does not belong to the inputs."""
        try:
            other = self.run(trial, outside=0.0)
        except Exception:
            return False
        return not all(
            torch.allclose(one.detach(), two.detach(), equal_nan=True)
            for one, two in zip(ran.outputs, other.outputs, strict=True)
        )


def try_one(
    learner: Learner,
    call: Call,
    trial: TriedCase,
    alternatives: Alternatives,
) -> Seen:
    """Run one trial and return what was seen; Failure if something is wrong."""
    return _tried(_Trying(learner, call), trial, alternatives).seen


def _tried(
    trying: _Trying,
    trial: TriedCase,
    alternatives: Alternatives,
    counts: Counts = all_count,
) -> _Ran:
    try:
        ran = trying.run(trial)
    except LearnerError as error:
        if (
            not error.habit
            and trial.habit in MAY_RAISE
            and trying.is_right(CONTRASTS[trial.habit](trial))
        ):
            raise Failure(str(error), trial.habit) from None
        raise
    if ran.why:
        raise _failure(trying, trial, ran, alternatives)
    refuse_findings(str(trial), ran.seen, counts)
    if ran.seen.overrun:
        raise Failure(f"{trial}: something was stored outside of the output", "mask-store")
    refuse_foreign(str(trial), ran.seen)
    return ran


def refuse_foreign(title: str, seen: Seen) -> None:
    """Failure if a result has values that no kernel computed."""
    if seen.foreign:
        raise Failure(
            f"{title}: {seen.foreign} values were not stored by your kernels but computed or copied beside them, or a "
            "kernel was given such values",
            "torch-norm",
        )


def refuse_findings(title: str, seen: Seen, counts: Counts = all_count) -> None:
    """Failure if the interpreter has seen a race, an access out of bounds, or a result that depends on the order."""
    roles = [launch.roles for launch in seen.launches]
    found = [one for one in seen.findings if counts(one, roles[one.launch].get(one.tensor, ""))]
    if found:
        worst = min(found, key=lambda one: WORST_FIRST.index(one.kind))
        raise Failure(f"{title}: {worst}{_lines_of(worst)}", habit_of(worst))


def habit_of(finding: Finding) -> str:
    """The habit behind a finding of the interpreter."""
    if finding.kind == "bounds":
        return "mask-load" if finding.sites[0].access == "load" else "mask-store"
    return {"write-write": "shared-write", "read-write": "same-launch"}.get(
        finding.kind, finding.kind
    )


def _lines_of(finding: Finding) -> str:
    sites = dict.fromkeys((site.file, site.line) for site in finding.sites)
    return "".join(
        f"\n    {Path(file).name}, line {line}: {linecache.getline(file, line).strip()}"
        for file, line in sites
    )


def _rounded_once(trial: TriedCase, ran: _Ran) -> None:
    """16-bit results are fp32 values, rounded once: nearly all of them are the nearest value to the exact one."""
    case = trial.case
    if case.dtype not in ("fp16", "bf16") or case.direction == "both":
        return
    exact = exact_results(case, ran.tensors)
    for name, output in zip(output_names(case), ran.outputs, strict=True):
        got, truth = output.detach(), exact[name]
        if got.dtype not in (torch.float16, torch.bfloat16):
            continue
        off = (truth.reshape(got.shape).to(got.dtype) != got).double().mean().item()
        if off > MOST_OFF:
            raise Failure(
                f"{trial}: {off:.0%} of the elements of {name} are not the nearest {got.dtype} to the exact value, "
                f"expected less than {MOST_OFF:.0%}",
                "two-roundings",
            )


def tensors_of(trial: TriedCase, learner: Learner, outside: float = torch.nan) -> Tensors:
    """The case's tensors, each with ``outside`` behind its end, and between its rows if the layout is strided."""
    made = rotation(trial.case, 1, learner.device, data=trial.data, seed=learner.seed)[0]

    def guarded(tensor: Tensor | None, scale: float = 1.0, shift: float = 0.0) -> Tensor | None:
        if tensor is None:
            return None
        values = tensor.detach() * scale + shift
        wider = 24 if trial.layout == "strided" and tensor.dim() == 2 else 0
        shape = (*tensor.shape[:-1], tensor.shape[-1] + wider)
        size = torch.Size(shape).numel()
        memory = torch.full((size + GUARD,), outside, dtype=tensor.dtype, device=tensor.device)
        inside = memory[:size].view(shape)[..., : tensor.shape[-1]]
        return inside.copy_(values).requires_grad_(tensor.requires_grad)

    x = guarded(made.x, trial.scale, trial.shift)
    rest = {name: guarded(tensor) for name, tensor in list(made._asdict().items())[1:]}
    weight_dtype = torch_dtype(trial.weight_dtype or trial.case.dtype)
    # A factor that leaves digits for which the dtype of the rows has no bits.
    factor = 1.3 if trial.weight_dtype else 1.0
    weight = guarded(made.weight.detach().to(weight_dtype) * factor, trial.weight_scale)
    if made.bias is not None and trial.weight_dtype:
        rest["bias"] = guarded(made.bias.detach().to(weight_dtype) * factor)
    assert x is not None
    assert weight is not None
    rest["weight"] = weight.requires_grad_(made.weight.requires_grad)
    if trial.outliers:
        x.detach()[..., [0, trial.case.cols // 2, -1]] = trial.outliers
    if trial.apart:
        x.detach()[..., :APART] = trial.apart
        x.detach()[..., APART:] = 0.0
    if trial.dy_like_x:
        assert made.dy is not None
        rest["dy"] = guarded(made.x.detach() + 0.3 * made.dy)
    if trial.steps:
        x.detach().add_(trial.steps * torch.arange(trial.case.rows, device=x.device)[:, None])
    return Tensors(x, **rest)  # type: ignore[arg-type]


def _with_gradients(trial: TriedCase, outputs: list[Any]) -> list[Tensor]:
    """The output and the gradients of ``Learner.train``. A parameter without one is a Failure."""
    y, needs_gradient, gradients = outputs
    if not needs_gradient:
        raise Failure(f"{trial}: the output does not require a gradient", "no-autograd")
    for name, gradient in zip(output_names(trial.case)[1:], gradients or (), strict=False):
        if gradient is None:
            raise Failure(f"{trial}: autograd found no {name}", "none-gradient")
    return [y, *(gradients or ())]


def exact_results(case: Case, tensors: Tensors) -> dict[str, Tensor]:
    """All results in fp64, by name."""
    found: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for _, some in exact_values(case, tensors):
            for name, one in some.items():
                found.setdefault(name, []).append(one.values)
    return {name: torch.cat(values) for name, values in found.items()}


def _watch_operators(trial: TriedCase, seen: Seen) -> None:
    if seen.operators:
        what = ", ".join(f"torch's {name}" for name in sorted(set(seen.operators)))
        raise Failure(f"{trial}: {what} ran inside your function", "torch-norm")
    if not seen.launches:
        raise Failure(f"{trial}: the function returned without a kernel", "no-kernel")


def _failure(trying: _Trying, trial: TriedCase, ran: _Ran, alternatives: Alternatives) -> Failure:
    """The worst element, and the reason if something proves one."""
    case, names = trial.case, output_names(trial.case)
    shaped = dict(zip(names, ran.outputs, strict=False)) if len(ran.outputs) == len(names) else {}
    worst = _worst(case, ran.tensors, shaped) if _comparable(shaped, ran.why) else None
    text = f"{trial}: {ran.why}"
    if worst is not None:
        text = f"{trial}: {worst.text}"
        if worst.missing:
            text += f"; {worst.missing} were never written, or come from memory that was not"
    if trial.habit in IN_16_BITS and not _comparable(shaped, ran.why):
        return Failure(text, "output-dtype")
    if trial.habit in CONTRASTS and trying.is_right(CONTRASTS[trial.habit](trial)):
        return Failure(text, trial.habit)
    if worst is None:
        return Failure(text)
    strided = trial.layout == "strided"
    if worst.missing:
        return Failure(text, "output-stride" if strided else "not-written")
    got = shaped[worst.name].detach().double()
    rows = Rows(case, ran.tensors)
    for habit, compute in alternatives.items():
        found = compute(rows)
        for one in [found] if isinstance(found, Tensor) else found:
            if _explains(one, got, worst.truth):
                return Failure(text, habit)
    if ran.seen.unfilled and trying.is_right(trial, masked=0.0):
        places = "; ".join(ran.seen.unfilled)
        return Failure(f"{text}. Masked lanes without other: {places}", "mask-other")
    if trying.reads_outside(trial, ran):
        return Failure(text, "stride" if strided else "mask-load")
    if ran.seen.findings:
        first = ran.seen.findings[0]
        habit = "stride" if strided and first.kind == "bounds" else habit_of(first)
        return Failure(f"{text}. {first}{_lines_of(first)}", habit)
    return Failure(text)


class _Worst(NamedTuple):
    name: str
    text: str  # where it is, what came and what was expected
    missing: int  # elements that were never written
    truth: Tensor


def _comparable(shaped: Mapping[str, Tensor], why: str) -> bool:
    return bool(shaped) and not any(
        word in why for word in ("has shape", "expected a tensor", ", expected")
    )


def _worst(case: Case, t: Tensors, outputs: Mapping[str, Tensor]) -> _Worst | None:
    """The element that is furthest beyond its limit, of the first output that is wrong."""
    with torch.no_grad():
        for _, exact in exact_values(case, t):  # cases here are small: all rows at once
            for name, output in outputs.items():
                if name not in exact:
                    continue
                truth, got = exact[name].values, output.detach().double()
                limit = one_rounding(truth, output.dtype) + exact[name].peer_noise
                error = (got - truth).abs().nan_to_num(torch.inf, torch.inf)
                bad = error > limit
                if not bad.any():
                    continue
                flat = int((error / limit).flatten().argmax())
                place = [int(i) for i in torch.unravel_index(torch.tensor(flat), truth.shape)]
                text = (
                    f"{name}{place} is {got.flatten()[flat].item():.6g}, expected {truth.flatten()[flat].item():.6g}. "
                    f"{int(bad.sum())} of {truth.numel()} elements are wrong"
                )
                return _Worst(name, text, unwritten(output), truth)
    return None


def _explains(alternative: Tensor, got: Tensor, truth: Tensor) -> bool:
    """Whether an alternative formula gives what came, and the right one does not."""
    if alternative.shape != got.shape or not bool(alternative.isfinite().all()):
        return False
    size = alternative.square().mean().sqrt().clamp(min=1e-30)
    error, distance = (got - alternative).abs(), (got - truth).abs()
    if not bool(error.isfinite().all()):
        return False
    return bool(error.max() < 0.02 * size.clamp(min=alternative.abs().max() * 0.05)) and bool(
        error.mean() < 0.05 * distance.mean()
    )
