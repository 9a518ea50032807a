"""The row program on a CPU: the C extension where it applies, else PyTorch's own norms or one operator after the other.

An option that is not in ``OPTIONS`` and a tensor that is not in ``INPUTS`` are left to ``reference``, by the extension,
too.

In the mode ``rownorm.batch_invariant``, what the extension does not cover is computed one row at a time: PyTorch's
reductions depend on the number of rows, and the last elements of a tensor are computed by other code than the rest.

Allocating a large tensor costs more than the arithmetic on it, so temporary tensors are overwritten. Second
derivatives, and devices that are neither a CPU nor supported by the kernels, use ``reference``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import reference
from ..program import BACKWARD_ROWS, ROWS, SAMPLES, Inputs, Program
from ..reference import BackwardInputs, ForwardOutputs, Gradients
from . import cpu_native

# What is computed here, forward and backward; the activation, forward only.
OPTIONS = ("weight_shift", "rounding", "out_dtype")
INPUTS = ("x", "residual", "pre_bias", "weight", "bias")
# inputs, their addresses -> (y, h, mu, rstd)
PreparedCall = Callable[
    [tuple[Any, ...], Any], tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]
]


def prepare(inputs: Inputs, program: Program, want_statistics: bool) -> PreparedCall:
    """The prepared call for tensors like these."""
    if not want_statistics and (torchs_norm := _torchs_norm(inputs, program)) is not None:
        return lambda inputs, _: (torchs_norm(Inputs(*inputs)), None, None, None)

    def call(inputs: tuple[Any, ...], _addresses: Any) -> Any:
        outputs = forward(Inputs(*inputs), program, want_statistics)
        return outputs if want_statistics else (outputs.y, outputs.h, None, None)

    return call


def _torchs_norm(inputs: Inputs, program: Program) -> Callable[[Inputs], Tensor] | None:
    """PyTorch's norm as a function of the inputs, where it computes the same and the extension does not apply."""
    x = inputs.x
    is_plain = inputs.has_only("x", "weight", "bias")
    has_options = not program.has_only()
    one_dtype = all(each is None or each.dtype == x.dtype for each in inputs)
    by_extension = x.dtype != torch.float64 and cpu_native.load() is not None
    if not is_plain or has_options or not one_dtype or by_extension or x.device.type != "cpu":
        return None
    shape, eps = x.shape[-1:], program.eps
    if program.center:
        return lambda given: torch.layer_norm(given.x, shape, given.weight, given.bias, eps)
    if inputs.bias is not None:
        return None
    # Contiguous, because PyTorch's result has the strides of x.
    return lambda given: torch.rms_norm(given.x.contiguous(), shape, given.weight, eps)


def forward(inputs: Inputs, program: Program, want_statistics: bool = True) -> ForwardOutputs:
    """As ``reference.forward``. Without ``want_statistics`` mu and rstd may be None, or those of h before rounding."""
    x = inputs.x.contiguous()  # so that y and h are contiguous, as on a GPU
    residual = None if inputs.residual is None else inputs.residual.contiguous()
    gate = None if inputs.gate is None else inputs.gate.contiguous()
    inputs = inputs._replace(x=x, residual=residual, gate=gate)
    outputs = cpu_native.forward(inputs, program, want_statistics)
    if outputs is not None:
        return ForwardOutputs(*outputs)
    if program.batch_invariant:
        return _forward_by_rows(inputs, program)
    rounds_twice = program.rounding == "each" or (program.center and program.rounding != "once")
    is_known = program.has_only(*OPTIONS, "activation") and inputs.has_only(*INPUTS)
    if x.device.type != "cpu" or rounds_twice or not is_known:
        return reference.forward(*inputs, program)
    h = reference.prologue(x, residual, inputs.pre_bias)
    factor = reference.factor(inputs.weight, program.weight_shift, h.dtype)
    shift = None if inputs.bias is None else inputs.bias.to(h.dtype)
    mu = None
    if program.center:
        z, mu, rstd = torch.native_layer_norm(h, h.shape[-1:], factor, shift, program.eps)
    else:
        rstd = _mean_square(h).add_(program.eps).sqrt_().reciprocal_()
        is_temporary = h is not x and residual is None
        z = h.mul_(rstd) if is_temporary else h * rstd
        if program.rounding == "llama":
            z = z.to(x.dtype).to(h.dtype)
        if factor is not None:
            z.mul_(factor)
        if shift is not None:
            z.add_(shift)
    stored_h = None if residual is None else h.to(residual.dtype)
    if (
        want_statistics
        and stored_h is not None
        and mu is not None
        and reference.rounding_changes_statistics(stored_h.dtype, h.dtype, program)
        and reference.is_far(mu, rstd).any()
    ):
        mu, rstd = reference.stored_h_moments(stored_h, mu, rstd, program)
    y = reference.activate(z, program.activation)
    return reference.forward_outputs(y.to(program.result_dtype(x.dtype)), stored_h, mu, rstd)


def computed_by(inputs: Inputs, program: Program) -> str:
    """Who computes these tensors, as a sentence. The extension is asked with one row of zeros."""
    device = inputs.x.device.type
    if device != "cpu":
        return "nothing computes it" if device == "meta" else "PyTorch computes it"
    if reason := cpu_native.reason():
        return f"PyTorch computes it, because the C extension for a CPU is not in use ({reason})"
    rows = {
        name: tensor.new_zeros(1, tensor.shape[-1])
        for name, tensor in inputs._asdict().items()
        if name in ROWS and tensor is not None
    }
    if not inputs.x.numel() or cpu_native.forward(inputs._replace(**rows), program, False) is None:
        return "PyTorch computes it, because the C extension for a CPU does not cover it"
    return "the C extension for a CPU computes it"


def backward(
    inputs: BackwardInputs, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Gradients:
    """As ``reference.backward``."""
    # mu and rstd, too: PyTorch reads them as if they were contiguous.
    inputs = BackwardInputs(*(t if t is None else t.contiguous() for t in inputs))  # type: ignore[arg-type]
    gradients = cpu_native.backward(inputs, program, has_residual, wanted)
    if gradients is not None:
        return Gradients(*gradients)
    if program.batch_invariant:
        return _backward_by_rows(inputs, program, has_residual, wanted)
    dy, dh, h, mu, rstd = inputs.dy, inputs.dh, inputs.h, inputs.mu, inputs.rstd
    pre_bias, weight, bias = inputs.pre_bias, inputs.weight, inputs.bias
    rounds_twice = program.rounding == "each" or (program.center and program.rounding != "once")
    is_known = program.has_only(*OPTIONS) and all(
        getattr(inputs, name) is None for name in Inputs._fields if name not in INPUTS
    )
    if h.device.type != "cpu" or rounds_twice or not is_known:
        return reference.backward(inputs, program, has_residual, wanted)
    is_wanted = dict(zip(Gradients._fields, wanted, strict=True))
    x_dtype = program.result_dtype(dy.dtype)
    row = reference.prologue(h, None, None if has_residual else pre_bias).to(rstd.dtype)
    factor = reference.factor(weight, program.weight_shift, row.dtype)
    dz, rstd = dy.to(row.dtype), rstd.unsqueeze(-1)
    dx: Tensor
    if mu is not None:
        shift = None if bias is None else bias.to(row.dtype)
        need_dx = is_wanted["x"] or is_wanted["residual"] or is_wanted["pre_bias"]
        mu = mu.unsqueeze(-1)
        if reference.is_far(mu, rstd).any():
            # PyTorch subtracts mu * rstd from h * rstd, which cancels for rows far from 0. It gets h - mu instead.
            row, mu = (row - mu if row is h else row.sub_(mu)), torch.zeros_like(mu)
        dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
            dz,
            row,
            row.shape[-1:],
            mu,
            rstd,
            factor,
            shift,
            [need_dx, is_wanted["weight"], is_wanted["bias"]],
        )
    else:
        x_hat = row * rstd
        rounded = x_hat.to(x_dtype).to(row.dtype) if program.rounding == "llama" else x_hat
        dweight = _column_sum(dz * rounded) if is_wanted["weight"] else None
        dbias = _column_sum(dz) if is_wanted["bias"] else None
        g = dz if factor is None else dz * factor
        x_hat.mul_((g * x_hat).mean(-1, keepdim=True))
        dx = torch.sub(g, x_hat, out=x_hat).mul_(rstd)
    if dh is not None and dx is not None:
        dx = dx + dh.to(dx.dtype)
    return Gradients(
        x=dx.to(x_dtype) if is_wanted["x"] else None,
        residual=dx.to(h.dtype) if is_wanted["residual"] else None,
        pre_bias=_rounded(_column_sum(dx), pre_bias) if is_wanted["pre_bias"] else None,
        weight=_rounded(dweight, weight) if is_wanted["weight"] else None,
        bias=_rounded(dbias, bias) if is_wanted["bias"] else None,
    )


def _forward_by_rows(inputs: Inputs, program: Program) -> ForwardOutputs:
    """``reference.forward`` of one row at a time."""
    rows = [reference.forward(*Inputs(*one), program) for one in _split(inputs, ROWS)]
    shape = inputs.x.shape
    y, h, mu, rstd = map(_joined, zip(*rows, strict=True))
    return ForwardOutputs(
        y=y.reshape(shape),  # type: ignore[union-attr]
        h=None if h is None else h.reshape(shape),
        mu=None if mu is None else mu.reshape(shape[:-1]),
        rstd=rstd.reshape(shape[:-1]),  # type: ignore[union-attr]
    )


def _backward_by_rows(
    inputs: BackwardInputs, program: Program, has_residual: bool, wanted: tuple[bool, ...]
) -> Gradients:
    """``reference.backward`` of one row at a time. The sums over rows are those of all rows at once."""
    has_rows = [name in ROWS for name in Gradients._fields]
    of_rows = tuple(want and rows for want, rows in zip(wanted, has_rows, strict=True))
    of_columns = tuple(want and not rows for want, rows in zip(wanted, has_rows, strict=True))
    sums = reference.backward(inputs, program, has_residual, of_columns)
    rows = [
        reference.backward(one, program, has_residual, of_rows)
        for one in _split(inputs, (*BACKWARD_ROWS, "mu", "rstd"))
    ]
    computed = {name: _joined([getattr(one, name) for one in rows]) for name in ROWS}
    shape = inputs.dy.shape
    return sums._replace(
        **{name: None if t is None else t.reshape(shape) for name, t in computed.items()}
    )


def _split(tensors: Any, with_rows: tuple[str, ...]) -> list[Any]:
    """For each row, the named tuple with this row of the tensors that have rows, and of samples. One without rows if
    there is none.
    """
    n_cols = tensors[0].shape[-1]
    shapes = {"mu": (-1,), "rstd": (-1,)}
    present = {name: t for name, t in tensors._asdict().items() if t is not None}
    given = {name: t for name, t in present.items() if name in with_rows}
    given |= {name: t.expand(tensors[0].shape) for name, t in present.items() if name in SAMPLES}
    matrices = {name: t.reshape(shapes.get(name, (-1, n_cols))) for name, t in given.items()}
    n_rows = tensors[0].numel() // n_cols
    return [
        tensors._replace(**{name: t[i : i + 1] for name, t in matrices.items()})
        for i in range(max(1, n_rows))
    ]


def _joined(parts: Any) -> Tensor | None:
    return None if parts[0] is None else torch.cat(parts)


def _mean_square(h: Tensor) -> Tensor:
    """``mean(h^2)`` of each row, without a tensor of squares where the width allows.

    ``vector_norm`` adds squares one after the other, which loses precision in long rows. So it is taken of short
    groups, and ``sum`` adds these in pairs.
    """
    n_cols = h.shape[-1]
    group = math.gcd(n_cols, 256)
    if group < 32:
        return h.square().mean(-1, keepdim=True)
    norms = torch.linalg.vector_norm(h.unflatten(-1, (n_cols // group, group)), dim=-1)
    return norms.square_().sum(-1, keepdim=True).div_(n_cols)


def _column_sum(rows: Tensor) -> Tensor:
    return rows.reshape(-1, rows.shape[-1]).sum(0)


def _rounded(column_sum: Tensor | None, parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None or column_sum is None else column_sum.to(parameter.dtype)
