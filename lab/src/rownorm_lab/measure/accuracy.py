"""Errors against fp64, their limits, and the check that every provider must pass before it is timed.

The exact values are those of ``rownorm.reference`` in fp64. The error budget of an element is derived, not tuned:

    |got - exact|  <=  one rounding to the output's dtype  +  the effect of k fp32 roundings before it

``k`` is 16 for the formulas plus one for each level of the two sums over a row (2 log2 cols). The gradient of a
parameter is a sum over rows and has 2 log2 rows more. A rounding is relative to the magnitudes of the terms of its
sum, as if nothing cancelled: if the mean of a row is far larger than its spread, the mean counts. The backward of
``add_*`` reads h as it was stored, which is one more rounding, to the dtype of the residual stream.

rownorm must stay within the budget. Other providers may round intermediate values to the dtype of the rows. They are
wrong if an element is off by more than ``PEER_ROUNDINGS`` such roundings in place of the k fp32 roundings, or if the
mean error is more than ``PEER_MEAN`` times the mean budget. They may accumulate sums over rows in that dtype, as
PyTorch's LayerNorm does on a CPU: sqrt(rows) / 2 roundings instead of one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rownorm.inside import INPUTS, Inputs, execute, reference

from ..data.case import Case
from ..data.records import Accuracy
from ..providers.data import Tensors, output_names, program_of

PEER_ROUNDINGS = 16
PEER_MEAN = 2.0
FP32_ROUNDING = 2.0**-24
# Gradients that are sums over rows, and over the rows of a sample.
SUMS, SAMPLE_SUMS = (
    tuple(f"d{name}" for name, described in INPUTS.items() if described.extent == extent)
    for extent in ("columns", "samples")
)
CHUNK = 1 << 22  # elements converted to fp64 at a time


class Closest(NamedTuple):
    """The element that is closest to its limit, which is one rounding plus an allowance for roundings before it."""

    allowance_used: float  # 0: all elements have one rounding only; more than 1: beyond the limit
    ulp: float  # its error
    accepted_ulp: float  # its limit


class Judgement(NamedTuple):
    """The result of a comparison. ``accuracy`` is None if a value is not finite or the outputs have a wrong form."""

    accuracy: Accuracy | None
    closest: Closest
    why: str  # empty if the result passes

    @property
    def ok(self) -> bool:
        return not self.why


class Exact(NamedTuple):
    """Exact values of an output, and the errors before its last rounding that rownorm and that peers may have."""

    values: Tensor
    noise: Tensor
    peer_noise: Tensor


def judge(case: Case, t: Tensors, outputs: Sequence[Tensor], *, strict: bool) -> Judgement:
    """Compare the outputs of a call with fp64: against rownorm's budget if ``strict``, else the limits for peers."""
    return judge_all(case, t, {"": outputs}, strict=("",) if strict else ())[""]


def judge_all(
    case: Case,
    t: Tensors,
    outputs_of: Mapping[str, Sequence[Tensor]],
    *,
    strict: Collection[str],
) -> dict[str, Judgement]:
    """The same for several providers with the same inputs; the exact values are computed once."""
    names = output_names(case)
    judged = {
        name: Judgement(None, _UNKNOWN, error)
        for name, outputs in outputs_of.items()
        if (error := _wrong_form(t, names, outputs))
    }
    tallies_of = {
        provider: {
            name: (_in_rows(output.detach()), _Tally(provider in strict, _roundings(name, case)))
            for name, output in zip(names, outputs, strict=True)
        }
        for provider, outputs in outputs_of.items()
        if provider not in judged
    }
    with torch.no_grad():
        for rows, exact in exact_values(case, t) if tallies_of else ():
            for name in exact.keys() & set(names):
                limits = None  # the same for all providers: outputs of one name have one dtype
                for tallies in tallies_of.values():
                    output, tally = tallies[name]
                    limits = limits or _limits(exact[name], output.dtype)
                    tally.add(output[rows], exact[name].values, limits)
    for provider, tallies in tallies_of.items():
        judged[provider] = _judgement(
            {name: tally.figures() for name, (_, tally) in tallies.items()}
        )
    return judged


def _judgement(figures: dict[str, _Figures]) -> Judgement:
    why = "; ".join(f"{name} {each.complaint}" for name, each in figures.items() if each.complaint)
    if any(not math.isfinite(each.max_error) for each in figures.values()):
        return Judgement(None, _UNKNOWN, why)
    worst = max(figures, key=lambda name: figures[name].max_ulp)
    accuracy = Accuracy(
        max_error=max(each.max_error for each in figures.values()),
        mean_error=max(each.mean_error for each in figures.values()),
        max_ulp=figures[worst].max_ulp,
        worst=worst,
    )
    return Judgement(accuracy, max(each.closest for each in figures.values()), why)


def one_rounding(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest change of each value by a store to ``dtype``: half a step, or a whole step if bf16 is truncated.

    Triton's interpreter truncates fp32 to bf16; a GPU rounds.
    """
    truncated = dtype == torch.bfloat16 and execute.INTERPRETING and not values.is_cuda
    return spacing(values, dtype) * (1.0 if truncated else 0.5)


def spacing(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between adjacent numbers of ``dtype`` at each value."""
    limits = torch.finfo(dtype)
    _, exponent = torch.frexp(values.abs().clamp(min=limits.tiny))
    return limits.eps * torch.exp2((exponent - 1).double())


def exact_values(case: Case, t: Tensors) -> Iterator[tuple[slice, dict[str, Exact]]]:
    """(rows, exact outputs and gradients by name), some rows at a time; at the end, the gradients of the parameters."""
    at_once = max(1, CHUNK // case.cols)
    if case.sample_rows:  # whole samples
        at_once = max(1, at_once // case.sample_rows) * case.sample_rows
    # k roundings relative to their terms: in fp32, and in the dtype of the rows.
    fp32 = (16 + 2 * _levels(case.cols)) * FP32_ROUNDING
    narrow = max(fp32, PEER_ROUNDINGS * torch.finfo(case.torch_dtype).eps / 2)
    totals: dict[str, Exact] = {}
    for first in range(0, case.rows, at_once):
        rows = slice(first, min(first + at_once, case.rows))
        row = _Row(case, t, rows)
        values, noise, peer_noise = row.values(), row.noise(fp32), row.noise(narrow)
        parts = {name: Exact(values[name], noise[name], peer_noise[name]) for name in values}
        summed = {name: parts.pop(name) for name in SUMS if name in parts}
        of_samples = {name: parts.pop(name) for name in SAMPLE_SUMS if name in parts}
        yield rows, parts
        if of_samples:
            yield slice(rows.start // case.sample_rows, rows.stop // case.sample_rows), of_samples
        for name, part in summed.items():
            known = totals.get(name)
            totals[name] = part if known is None else Exact(*map(torch.add, known, part))
    if totals:
        yield slice(None), totals


class _Row:
    """Some rows of a case in fp64: the exact results, and how far roundings before the store can move each of them."""

    def __init__(self, case: Case, t: Tensors, rows: slice) -> None:
        def in_fp64(tensor: Tensor | None, extent: str) -> Tensor | None:
            """What these rows have of a tensor; what is of samples, for every row."""
            if tensor is None:
                return None
            values = tensor.detach()
            if extent == "columns":
                return values.double()
            if extent == "rows":
                return _in_rows(values)[rows].double()
            samples = slice(rows.start // case.sample_rows, rows.stop // case.sample_rows)
            return _in_rows(values)[samples].double().repeat_interleave(case.sample_rows, 0)

        self.case, self.program = case, program_of(case)
        given = zip(t.inputs, INPUTS.values(), strict=True)
        self.inputs = Inputs(*(in_fp64(one, described.extent) for one, described in given))  # type: ignore[arg-type]
        self.dy, self.dh = in_fp64(t.dy, "rows"), in_fp64(t.dh, "rows")
        self.outputs = reference.forward(*self.inputs, self.program)
        self.rstd = self.outputs.rstd.unsqueeze(-1)
        exact = self.inputs
        self.h = reference.prologue(exact.x, exact.residual, exact.pre_bias, exact.residual_gate)
        first, last = reference.gate_factors(self.inputs.gate, self.program, torch.float64)
        self.first, self.last = (
            torch.ones_like(self.inputs.x[:1]) if one is None else one for one in (first, last)
        )
        mu = 0 if self.outputs.mu is None else self.outputs.mu.unsqueeze(-1)
        self.x_hat = (self.h * self.first - mu) * self.rstd

    def values(self) -> dict[str, Tensor]:
        """Outputs and gradients by name; gradients of parameters are sums over these rows."""
        values: dict[str, Any] = {"y": self.outputs.y, "h": self.outputs.h}
        if self.dy is not None:
            saved = reference.backward_inputs(self.dy, self.dh, self.inputs, self.outputs)
            wanted = tuple(tensor is not None for tensor in self.inputs)
            gradients = reference.backward(saved, self.program, self.case.adds, wanted)
            values |= {f"d{name}": each for name, each in gradients._asdict().items()}
            values |= {name: self._of_samples(values[name]) for name in self._sample_sums()}
        return {name: value for name, value in values.items() if value is not None}

    def noise(self, a: float) -> dict[str, Tensor]:
        """How far each value can be off if every step has a relative error ``a``.

        Scale and shift are taken as a weight and a bias of their own for every row.
        """
        t = self.inputs
        one, zero = torch.ones_like(t.x[0]), torch.zeros_like(t.x[0])
        of_norm = one if t.weight is None else t.weight.abs()
        bias_of_norm = zero if t.bias is None else t.bias.abs()
        scale = one if t.scale is None else (t.scale + self.program.scale_shift).abs()
        weight = of_norm * scale
        bias = bias_of_norm * scale + (zero if t.shift is None else t.shift.abs())
        first, last = self.first.abs(), self.last.abs()
        residual_gate = one if t.residual_gate is None else t.residual_gate.abs()
        update = t.x.abs() + (zero if t.pre_bias is None else t.pre_bias.abs())
        terms = update * residual_gate
        terms = terms if t.residual is None else terms + t.residual.abs()
        # 1 where nothing cancels
        ill = ((terms * first).amax(-1, keepdim=True) * self.rstd).clamp(min=1.0)
        noise = {"y": a * (ill * weight + bias) * last, "h": a * terms}
        if self.dy is None:
            return noise
        h_noise = one_rounding(self.h, self.case.torch_residual_dtype) if self.case.adds else zero
        hat = a * ill + self.rstd * first * h_noise
        x_hat = self.x_hat.abs() + hat
        z, z_noise = x_hat * weight + bias, hat * weight + a * bias
        dy = self.dy.abs() * last
        dz = dy * self._slope_noise(hat * weight + a * z, a)
        g, g_noise = dy * weight, dz * weight + a * dy * weight

        def mean(row: Tensor) -> Tensor:
            return row.mean(-1, keepdim=True)

        means = x_hat * mean(g_noise * x_hat + g * hat + a * g * x_hat) + hat * mean(g * x_hat)
        means = means + mean(g_noise) if self.case.centers else means
        du = self.rstd * (g + x_hat * mean(g * x_hat) + (mean(g) if self.case.centers else 0))
        du_noise = self.rstd * (g_noise + means) + a * ill * du
        dstream, dstream_noise = du * first, du_noise * first
        if self.dh is not None:
            dstream, dstream_noise = dstream + self.dh.abs(), dstream_noise + a * self.dh.abs()
        dx = dstream_noise * residual_gate
        of_sum = a + 2 * _levels(self.case.rows) * FP32_ROUNDING
        noise |= {
            "dx": dx,
            "dresidual": dstream_noise,
            "dpre_bias": (dx + of_sum * dstream * residual_gate).sum(0),
            "dweight": ((dz * x_hat + dy * hat + of_sum * dy * x_hat) * scale).sum(0),
            "dbias": ((dz + of_sum * dy) * scale).sum(0),
        }
        if t.gate is not None:
            slope = _gate_slope(t.gate, self.program.gate_activation)
            of_first = du_noise * terms + du * (h_noise + a * terms)
            of_last = self.dy.abs() * (1.2 * z_noise + a * z)  # no activation is steeper
            noise["dgate"] = slope * (of_first if self.program.gate_first else of_last)
        if self._sample_sums():
            of_z, of_z_noise = x_hat * of_norm + bias_of_norm, hat * of_norm + a * bias_of_norm
            noise["dscale"] = self._of_samples(dz * of_z + dy * of_z_noise + of_sum * dy * of_z)
            noise["dshift"] = self._of_samples(dz + of_sum * dy)
        if t.residual_gate is not None:
            noise["dresidual_gate"] = self._of_samples(update * (dstream_noise + of_sum * dstream))
        return noise

    def _sample_sums(self) -> tuple[str, ...]:
        present = {f"d{name}" for name, t in self.inputs._asdict().items() if t is not None}
        return tuple(name for name in SAMPLE_SUMS if self.dy is not None and name in present)

    def _of_samples(self, rows: Tensor) -> Tensor:
        """The sums over the rows of each sample, (samples, columns)."""
        return rows.unflatten(0, (-1, self.case.sample_rows)).sum(1)

    def _slope_noise(self, z_noise: Tensor, a: float) -> Tensor | float:
        """How far the derivative of the activation can be off."""
        if self.case.activation is None:
            return 0.0
        if self.case.activation == "relu":  # its derivative jumps at 0
            t = self.inputs
            z = self.x_hat if t.weight is None else self.x_hat * t.weight
            z = z if t.bias is None else z + t.bias
            if t.scale is not None and t.shift is not None:
                z = z * (t.scale + self.program.scale_shift) + t.shift
            return (z.abs() <= z_noise).double()
        return (z_noise + a).clamp(max=1.2)


def _gate_slope(gate: Tensor, activation: str | None) -> Tensor:
    """The magnitudes of the terms of the derivative of a gate's activation; those of silu cancel at -1.28."""
    s = gate.sigmoid()
    return s * (1 - s) if activation == "sigmoid" else s + gate.abs() * s * (1 - s)


def _in_rows(tensor: Tensor) -> Tensor:
    """A tensor in samples as one of rows, (rows, columns); others as they are."""
    return tensor.flatten(0, 1) if tensor.dim() == 3 else tensor


def _roundings(name: str, case: Case) -> float:
    """How many roundings to an output's own dtype its mean error may have."""
    terms = case.rows if name in SUMS else case.sample_rows if name in SAMPLE_SUMS else 1
    return max(1.0, terms**0.5 / 2)


def _levels(n: int) -> int:
    """The levels of a pairwise sum of n terms."""
    return math.ceil(math.log2(max(2, n)))


_UNKNOWN = Closest(math.inf, math.inf, 0.0)


class _Figures(NamedTuple):
    max_error: float
    mean_error: float
    max_ulp: float
    closest: Closest
    complaint: str


class _Limits(NamedTuple):
    """The limits of the errors, element by element."""

    representable: Tensor
    ulp: Tensor
    rounding: Tensor
    noise: Tensor
    peer_noise: Tensor
    rounding_sum: Tensor
    noise_sum: Tensor


def _limits(exact: Exact, dtype: torch.dtype) -> _Limits:
    truth = exact.values
    rounding = one_rounding(truth, dtype)
    # Near zero the step is tiny and an error in ulp is meaningless, so the step is taken at the RMS of the row, if
    # that is not zero too.
    size = truth.square().mean(-1, keepdim=True).sqrt()
    size = torch.where(size > 1e-6, size, 1.0)
    return _Limits(
        representable=truth.abs() <= torch.finfo(dtype).max,
        ulp=spacing(torch.maximum(truth.abs(), size), dtype),
        rounding=rounding,
        noise=exact.noise,
        peer_noise=exact.peer_noise,
        rounding_sum=rounding.sum(),
        noise_sum=exact.noise.sum(),
    )


class _Tally:
    """Errors of one output, accumulated on its device."""

    def __init__(self, strict: bool, roundings: float) -> None:
        self.strict = strict
        self.roundings = roundings
        self.count = 0
        self.maxima: list[Tensor] = []  # of error and of error in ulp
        self.closest: list[Tensor] = []
        self.sums: list[Tensor] = []  # sums of error and of what the mean error may be

    def add(self, got: Tensor, truth: Tensor, limits: _Limits) -> None:
        wide = got.double()
        error = torch.where(wide.isfinite(), (wide - truth).abs(), torch.inf)
        error = torch.where(limits.representable, error, 0.0)  # other values must overflow
        in_ulp = error / limits.ulp
        self.maxima.append(torch.stack([error.amax(), in_ulp.amax()]))
        noise = limits.noise if self.strict else limits.peer_noise
        # The fp64 values are rounded too, far below the last digit that counts.
        excess = (error - limits.rounding * (1 + 1e-6)).clamp(min=0.0)
        used = torch.where(excess > 0, excess / noise, 0.0).flatten()
        place = used.argmax()
        accepted = ((limits.rounding + noise) / limits.ulp).flatten()[place]
        self.closest.append(torch.stack([used[place], in_ulp.flatten()[place], accepted]))
        allowed = self.roundings * limits.rounding_sum + limits.noise_sum
        self.sums.append(torch.stack([error.sum(), allowed]))
        self.count += error.numel()

    def figures(self) -> _Figures:
        error, ulp = torch.stack(self.maxima).amax(0).tolist()
        closest = max(Closest(*each) for each in torch.stack(self.closest).tolist())
        total, allowed = (each / self.count for each in torch.stack(self.sums).sum(0).tolist())
        complaint = ""
        if not math.isfinite(error):
            complaint = "has values that are not finite"
        elif closest.allowance_used > 1:
            complaint = (
                f"is off by {closest.ulp:.3g} ulp; {closest.accepted_ulp:.3g} ulp are accepted"
            )
        elif not self.strict and total > PEER_MEAN * allowed:
            accepted = PEER_MEAN * allowed
            complaint = f"is off by {total:.3g} on average; {accepted:.3g} is accepted"
        return _Figures(error, total, ulp, closest, complaint)


def _wrong_form(t: Tensors, names: Sequence[str], outputs: Sequence[Tensor]) -> str:
    """What is wrong with the number, shapes or dtypes of the outputs, in words; empty if nothing is."""
    if len(outputs) != len(names):
        return f"returned {len(outputs)} tensors, expected {len(names)}: {', '.join(names)}"
    like = {"y": t.x, "h": t.residual} | {
        f"d{name}": tensor for name, tensor in t.inputs._asdict().items()
    }
    for name, output in zip(names, outputs, strict=True):
        model = like[name]
        assert model is not None
        if not isinstance(output, Tensor):
            return f"{name} is a {type(output).__name__}, expected a tensor"
        if output.shape != model.shape:
            return f"{name} has shape {tuple(output.shape)}, expected {tuple(model.shape)}"
        if output.dtype != model.dtype:
            return f"{name} is {_name(output.dtype)}, expected {_name(model.dtype)}"
    return ""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
