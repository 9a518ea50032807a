"""What wrong formulas give, in fp64: if a learner's values are these, the mistake has a name (``habits.HABITS``)."""

from __future__ import annotations

import torch
from torch import Tensor

from rownorm_lab.data.case import Case
from rownorm_lab.providers.data import Tensors

from .judge import Alternatives

_BLOCKS = [1 << power for power in range(4, 17)]


class _Row:
    """The tensors of a case in fp64."""

    def __init__(self, case: Case, t: Tensors) -> None:
        self.eps, self.n = case.eps, case.cols
        self.x, self.weight = t.x.detach().double(), t.weight.detach().double()
        self.bias = 0.0 if t.bias is None else t.bias.detach().double()
        self.pre_bias = 0.0 if t.pre_bias is None else t.pre_bias.detach().double()
        self.dy = None if t.dy is None else t.dy.detach().double()
        self.h = self.x + self.pre_bias
        self.activation = torch.relu if case.activation == "relu" else lambda y: y

    def affine(self, x_hat: Tensor) -> Tensor:
        return self.activation(x_hat * self.weight + self.bias)


def _mean(row: Tensor) -> Tensor:
    return row.mean(-1, keepdim=True)


def _divided_by_block(case: Case, t: Tensors) -> list[Tensor]:
    row = _Row(case, t)
    h = row.h - _mean(row.h) if case.centers else row.h
    total = h.square().sum(-1, keepdim=True)
    return [
        row.affine(h * (total / block + row.eps).rsqrt()) for block in _BLOCKS if block != row.n
    ]


def _block_mean(case: Case, t: Tensors) -> list[Tensor]:
    """LayerNorm with the mean taken over the block, and the variance over the block or the row."""
    row, found = _Row(case, t), []
    for block in _BLOCKS:
        if block == row.n:
            continue
        for origin in (torch.zeros_like(row.h[..., :1]), *_shifts(row)):
            moved = (row.h - origin).sum(-1, keepdim=True) / block
            mean = origin + moved
            squares = (row.h - mean).square().sum(-1, keepdim=True)
            shifted = (row.h - origin).square().sum(-1, keepdim=True)
            for variance in (
                *(squares / block, squares / row.n),
                *(shifted / block - moved.square(), shifted / row.n - moved.square()),
            ):
                found.append(row.affine((row.h - mean) * (variance + row.eps).rsqrt()))
    return found


def _shifts(row: _Row) -> list[Tensor]:
    """The elements that shifted sums usually subtract: the first, the middle, the last."""
    return [row.h[..., place : place + 1] for place in (0, row.n // 2, row.n - 1)]


def _shift_not_added(case: Case, t: Tensors) -> list[Tensor]:
    """LayerNorm whose mean is that of the shifted row."""
    row = _Row(case, t)
    rstd = (_mean((row.h - _mean(row.h)).square()) + row.eps).rsqrt()
    return [row.affine((row.h - _mean(row.h - shift)) * rstd) for shift in _shifts(row)]


def _squares_of_shifted(case: Case, t: Tensors) -> list[Tensor]:
    """LayerNorm whose variance is mean(d^2), without mean(d)^2."""
    row = _Row(case, t)
    centered = row.h - _mean(row.h)
    return [
        row.affine(centered * (_mean((row.h - shift).square()) + row.eps).rsqrt())
        for shift in _shifts(row)
    ]


def _merged(case: Case, t: Tensors, power: int | None, whole: bool) -> list[Tensor]:
    """LayerNorm by Welford's merging, with mistakes.

    power: of delta in m2, None without that term. whole: the last block counts as many elements as the others.
    """
    row, found = _Row(case, t), []
    for block in _BLOCKS:
        if block >= row.n and not whole:
            continue
        count, mean, m2 = 0, torch.zeros_like(row.h[..., :1]), torch.zeros_like(row.h[..., :1])
        for part in row.h.split(block, -1):
            n_b = block if whole else part.shape[-1]
            block_mean = part.sum(-1, keepdim=True) / n_b
            delta, n = block_mean - mean, count + n_b
            m2 = m2 + (part - block_mean).square().sum(-1, keepdim=True)
            m2 = m2 if power is None else m2 + delta**power * (count * n_b / n)
            mean, count = mean + delta * (n_b / n), n
        if whole and count == row.n:
            continue
        for divisor in {row.n, count}:
            found.append(row.affine((row.h - mean) * (m2 / divisor + row.eps).rsqrt()))
    return found


def _masked_deviation(case: Case, t: Tensors) -> list[Tensor]:
    """LayerNorm with lanes past the end of the row counted as -mean."""
    row, found = _Row(case, t), []
    mean = _mean(row.h)
    for block in _BLOCKS:
        lanes = -(-row.n // block) * block - row.n
        if lanes:
            total = (row.h - mean).square().sum(-1, keepdim=True) + lanes * mean.square()
            found.append(row.affine((row.h - mean) * (total / row.n + row.eps).rsqrt()))
    return found


def _masked_shift(case: Case, t: Tensors) -> list[Tensor]:
    """LayerNorm with shifted sums, and lanes past the end of the row counted as -shift."""
    row, found = _Row(case, t), []
    shift = row.h[..., :1]
    shifted = row.h - shift
    for block in _BLOCKS:
        lanes = -(-row.n // block) * block - row.n
        if lanes:
            moved = (shifted.sum(-1, keepdim=True) - lanes * shift) / row.n
            squares = shifted.square().sum(-1, keepdim=True) + lanes * shift.square()
            variance = (squares / row.n - moved.square()).clamp(min=0.0)
            found.append(row.affine((shifted - moved) * (variance + row.eps).rsqrt()))
    return found


def _own_part(case: Case, t: Tensors) -> list[Tensor]:
    """RMSNorm with the root mean square of each part of a row."""
    row, found = _Row(case, t), []
    for size in _BLOCKS:
        if size < row.n and row.n % size == 0:
            parts = row.h.unflatten(-1, (-1, size))
            found.append(
                row.affine((parts * (_mean(parts.square()) + row.eps).rsqrt()).flatten(-2))
            )
    return found


def _eps_outside(case: Case, t: Tensors) -> Tensor:
    row = _Row(case, t)
    h = row.h - _mean(row.h) if case.centers else row.h
    return row.affine(h / (_mean(h.square()).sqrt() + row.eps))


def _no_eps(case: Case, t: Tensors) -> Tensor:
    row = _Row(case, t)
    h = row.h - _mean(row.h) if case.centers else row.h
    return row.affine(h / _mean(h.square()).sqrt())


def _sum_not_mean(case: Case, t: Tensors) -> Tensor:
    row = _Row(case, t)
    h = row.h - _mean(row.h) if case.centers else row.h
    return row.affine(h * (h.square().sum(-1, keepdim=True) + row.eps).rsqrt())


def _x_hat(row: _Row, centers: bool) -> Tensor:
    h = row.h - _mean(row.h) if centers else row.h
    return h * (_mean(h.square()) + row.eps).rsqrt()


def _no_weight(case: Case, t: Tensors) -> Tensor:
    row = _Row(case, t)
    return row.activation(_x_hat(row, case.centers) + row.bias)


def _no_bias(case: Case, t: Tensors) -> Tensor:
    row = _Row(case, t)
    return row.activation(_x_hat(row, case.centers) * row.weight)


def _as_layer_norm(case: Case, t: Tensors) -> Tensor:
    row = _Row(case, t)
    return row.affine(_x_hat(row, True))


def _as_rms_norm(case: Case, t: Tensors) -> Tensor:
    row = _Row(case, t)
    return row.affine(_x_hat(row, False))


def _unbiased(case: Case, t: Tensors) -> Tensor:
    row = _Row(case, t)
    h = row.h - _mean(row.h)
    return row.affine(h * (h.square().sum(-1, keepdim=True) / max(1, row.n - 1) + row.eps).rsqrt())


def _no_relu(case: Case, t: Tensors) -> Tensor:
    row = _Row(case, t)
    return _x_hat(row, case.centers) * row.weight + row.bias


def _relu_first(case: Case, t: Tensors) -> Tensor:
    row = _Row(case, t)
    return torch.relu(_x_hat(row, case.centers)) * row.weight + row.bias


def _bias_after(case: Case, t: Tensors) -> Tensor:
    row = _Row(case, t)
    row.h = row.x
    return row.affine(_x_hat(row, True)) + row.pre_bias


def _bias_not_in_mean(case: Case, t: Tensors) -> Tensor:
    row = _Row(case, t)
    centered = row.x - _mean(row.x)
    rstd = (_mean(centered.square()) + row.eps).rsqrt()
    return row.affine((row.h - _mean(row.x)) * rstd)


def _dx_through_weight_only(case: Case, t: Tensors) -> Tensor:
    """dx as if the divisor of a row did not depend on it."""
    row = _Row(case, t)
    h = row.h - _mean(row.h) if case.centers else row.h
    assert row.dy is not None
    return row.dy * row.weight * (_mean(h.square()) + row.eps).rsqrt()


def _dx_without_weight(case: Case, t: Tensors) -> Tensor:
    """dx with dy in place of dy * weight."""
    row = _Row(case, t)
    x_hat = _x_hat(row, False)
    assert row.dy is not None
    rstd = (_mean(row.h.square()) + row.eps).rsqrt()
    return rstd * (row.dy - x_hat * _mean(row.dy * x_hat))


def _dx_divided_by_block(case: Case, t: Tensors) -> list[Tensor]:
    """dx with the mean of g * x_hat taken over the block."""
    row = _Row(case, t)
    x_hat = _x_hat(row, False)
    assert row.dy is not None
    rstd, g = (_mean(row.h.square()) + row.eps).rsqrt(), row.dy * row.weight
    total = (g * x_hat).sum(-1, keepdim=True)
    return [rstd * (g - x_hat * (total / block)) for block in _BLOCKS if block != row.n]


def _dweight_of_one_row(case: Case, t: Tensors) -> list[Tensor]:
    row = _Row(case, t)
    assert row.dy is not None
    return list(row.dy * _x_hat(row, case.centers))


def _dweight_mean(case: Case, t: Tensors) -> Tensor:
    row = _Row(case, t)
    assert row.dy is not None
    return (row.dy * _x_hat(row, case.centers)).mean(0)


def _dweight_without_rstd(case: Case, t: Tensors) -> Tensor:
    row = _Row(case, t)
    assert row.dy is not None
    return (row.dy * row.x).sum(0)


COMMON: Alternatives = {
    "sum-not-mean": _sum_not_mean,
    "no-weight": _no_weight,
    "no-eps": _no_eps,
    "eps-outside": _eps_outside,
    "divide-by-block": _divided_by_block,
}
RMS_NORM: Alternatives = {**COMMON, "layer-norm": _as_layer_norm, "own-part": _own_part}
LAYER_NORM: Alternatives = {
    **COMMON,
    "rms-norm": _as_rms_norm,
    "unbiased": _unbiased,
    "no-bias": _no_bias,
    "mask-deviation": lambda case, t: _masked_deviation(case, t) + _masked_shift(case, t),
    "divide-by-block": lambda case, t: _divided_by_block(case, t) + _block_mean(case, t),
}
LAYER_NORM_SHIFTED: Alternatives = {
    **LAYER_NORM,
    "shift-not-added": _shift_not_added,
    "shift-squares": _squares_of_shifted,
}
LAYER_NORM_WELFORD: Alternatives = {
    "welford-count": lambda case, t: _merged(case, t, power=2, whole=True),
    "welford-delta": lambda case, t: _merged(case, t, None, False) + _merged(case, t, 1, False),
    **LAYER_NORM,
}
RMS_NORM_RELU: Alternatives = {**RMS_NORM, "no-relu": _no_relu, "relu-first": _relu_first}
BIAS_LAYER_NORM: Alternatives = {
    **LAYER_NORM,
    "bias-after": _bias_after,
    "bias-not-in-mean": _bias_not_in_mean,
}
RMS_NORM_GRADIENT: Alternatives = {
    "no-eps": _no_eps,
    "no-x-gradient": _dx_through_weight_only,
    "no-weight-in-dx": _dx_without_weight,
    "divide-by-block": _dx_divided_by_block,
    "weight-last-row": _dweight_of_one_row,
    "weight-mean": _dweight_mean,
    "no-rstd": _dweight_without_rstd,
}
