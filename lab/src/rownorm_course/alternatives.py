"""What wrong formulas give, in fp64: if a learner's values are these, the mistake has a name (``habits.HABITS``)."""

from __future__ import annotations

from collections.abc import Callable

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
    """LayerNorm whose variance is mean(d^2), without mean(d)^2 or with its sum."""
    row, found = _Row(case, t), []
    centered = row.h - _mean(row.h)
    for shift in _shifts(row):
        squares = _mean((row.h - shift).square())
        for variance in (squares, squares + _mean(row.h - shift).square()):
            found.append(row.affine(centered * (variance + row.eps).rsqrt()))
    return found


def _shift_of_each_block(case: Case, t: Tensors) -> list[Tensor]:
    """LayerNorm whose shifted sums subtract another element in every block; the last one is taken for all."""
    row, found = _Row(case, t), []
    for block in (one for one in _BLOCKS if one < row.n):
        shifts = [part[..., :1] for part in row.h.split(block, -1)]
        parts = zip(row.h.split(block, -1), shifts, strict=True)
        shifted = torch.cat([part - shift for part, shift in parts], -1)
        variance = _mean(shifted.square()) - _mean(shifted).square()
        mean = shifts[-1] + _mean(shifted)
        found.append(row.affine((row.h - mean) * (variance + row.eps).rsqrt()))
    return found


def _merged(
    case: Case,
    t: Tensors,
    growth: Callable[[Tensor, int, int], Tensor | float] = lambda delta, a, b: (
        delta**2 * (a * b / (a + b))
    ),
    whole: bool = False,
    swapped: bool = False,
    late: bool = False,
) -> list[Tensor]:
    """LayerNorm by Welford's merging, with mistakes.

    growth: of m2 beyond the sum of both, from delta, n_a and n_b. whole: the last block counts as many elements as the
    others. swapped: the mean moves by the other block's share. late: delta is the distance from the merged mean.
    """
    row, found = _Row(case, t), []
    for block in _BLOCKS:
        if block >= row.n and not (whole or swapped):
            continue
        count, mean, m2 = 0, torch.zeros_like(row.h[..., :1]), torch.zeros_like(row.h[..., :1])
        for part in row.h.split(block, -1):
            n_b = block if whole else part.shape[-1]
            block_mean = part.sum(-1, keepdim=True) / n_b
            delta, n = block_mean - mean, count + n_b
            mean = mean + delta * ((count if swapped else n_b) / n)
            delta = block_mean - mean if late else delta
            m2 = m2 + (part - block_mean).square().sum(-1, keepdim=True) + growth(delta, count, n_b)
            count = n
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


_OTHER_GROWTHS: tuple[Callable[[Tensor, int, int], Tensor | float], ...] = (
    lambda delta, a, b: 0.0,
    lambda delta, a, b: delta * (a * b / (a + b)),
    lambda delta, a, b: delta**2 * (a * b),
)


def _part_of_row(case: Case, t: Tensors) -> list[Tensor]:
    """RMSNorm with the squares of the first block only."""
    row = _Row(case, t)
    return [
        row.affine(
            row.h * (row.h[..., :block].square().sum(-1, keepdim=True) / n + row.eps).rsqrt()
        )
        for block in _BLOCKS
        if block < row.n
        for n in (block, row.n)
    ]


def _masked_as_one(case: Case, t: Tensors) -> list[Tensor]:
    """The norm with lanes past the end of the row that count as 1."""
    row, found = _Row(case, t), []
    for block in _BLOCKS:
        lanes = -(-row.n // block) * block - row.n
        if lanes and case.centers:
            mean = (row.h.sum(-1, keepdim=True) + lanes) / row.n
            found.append(
                row.affine((row.h - mean) * (_mean((row.h - mean).square()) + row.eps).rsqrt())
            )
        elif lanes:
            total = row.h.square().sum(-1, keepdim=True) + lanes
            found.append(row.affine(row.h * (total / row.n + row.eps).rsqrt()))
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


# No eps, and values that are written in place of the argument.
_OTHER_EPS = (0.0, 1e-8, 1e-6, 1e-5)


def _other_eps(case: Case) -> list[float]:
    return [eps for eps in _OTHER_EPS if eps != case.eps]


def _no_eps(case: Case, t: Tensors) -> list[Tensor]:
    row = _Row(case, t)
    h = row.h - _mean(row.h) if case.centers else row.h
    return [row.affine(h * (_mean(h.square()) + eps).rsqrt()) for eps in _other_eps(case)]


def _gradient_without_eps(case: Case, t: Tensors) -> list[Tensor]:
    """y, dx and dweight of RMSNorm."""
    found = _no_eps(case, t)
    for eps in _other_eps(case):
        one = _Gradient(case, t, eps)
        found += [one.rstd * (one.g - one.projected), (one.dy * one.x_hat).sum(0)]
    return found


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
    h = row.h - _mean(row.h) if case.centers else row.h
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


class _Gradient:
    """The factors of dx, in fp64."""

    def __init__(self, case: Case, t: Tensors, eps: float | None = None) -> None:
        row = _Row(case, t)
        row.eps = row.eps if eps is None else eps
        assert row.dy is not None
        self.x, self.dy, self.weight = row.h, row.dy, row.weight
        self.rstd, self.x_hat = (_mean(row.h.square()) + row.eps).rsqrt(), _x_hat(row, False)
        self.g = row.dy * row.weight
        self.projected = self.x_hat * _mean(self.g * self.x_hat)


def _dx_without_weight(case: Case, t: Tensors) -> list[Tensor]:
    """dx with dy in place of dy * weight: everywhere, in the mean, or until the end."""
    one = _Gradient(case, t)
    of_dy = one.x_hat * _mean(one.dy * one.x_hat)
    differences = (one.dy - of_dy, one.g - of_dy, (one.dy - of_dy) * one.weight)
    return [one.rstd * difference for difference in differences]


def _dx_with_other_rstd(case: Case, t: Tensors) -> list[Tensor]:
    """dx without the factor before the difference, with x in place of x_hat, or with a factor too many."""
    one = _Gradient(case, t)
    of_x = [one.x * _mean(one.g * one.x), one.x_hat * _mean(one.g * one.x)]
    terms = [*of_x, one.rstd * one.projected]
    return [one.g - one.projected, *(one.rstd * (one.g - term) for term in terms)]


def _dx_with_plus(case: Case, t: Tensors) -> Tensor:
    one = _Gradient(case, t)
    return one.rstd * (one.g + one.projected)


def _dx_of_the_sum(case: Case, t: Tensors) -> Tensor:
    one = _Gradient(case, t)
    return one.rstd * (one.g - one.projected * case.cols)


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


def _dweight_of_g(case: Case, t: Tensors) -> Tensor:
    one = _Gradient(case, t)
    return (one.g * one.x_hat).sum(0)


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
    "mask-other-value": _masked_as_one,
}
RMS_NORM: Alternatives = {
    **COMMON,
    "layer-norm": _as_layer_norm,
    "unbiased": _unbiased,
    "own-part": _own_part,
    "part-of-row": _part_of_row,
}
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
    "shift-moves": _shift_of_each_block,
}
LAYER_NORM_WELFORD: Alternatives = {
    "welford-count": lambda case, t: _merged(case, t, whole=True),
    "welford-delta": lambda case, t: [
        one for growth in _OTHER_GROWTHS for one in _merged(case, t, growth)
    ],
    "welford-late": lambda case, t: _merged(case, t, late=True),
    "welford-swapped": lambda case, t: _merged(case, t, swapped=True),
    **LAYER_NORM,
}
RMS_NORM_RELU: Alternatives = {**RMS_NORM, "no-relu": _no_relu, "relu-first": _relu_first}
BIAS_LAYER_NORM: Alternatives = {
    **LAYER_NORM,
    "bias-after": _bias_after,
    "bias-not-in-mean": _bias_not_in_mean,
}
RMS_NORM_GRADIENT: Alternatives = {
    "no-eps": _gradient_without_eps,
    "no-x-gradient": _dx_through_weight_only,
    "no-weight-in-dx": _dx_without_weight,
    "rstd-in-dx": _dx_with_other_rstd,
    "dx-sign": _dx_with_plus,
    "dx-sum": _dx_of_the_sum,
    "divide-by-block": _dx_divided_by_block,
    "weight-twice": _dweight_of_g,
    "weight-last-row": _dweight_of_one_row,
    "weight-mean": _dweight_mean,
    "no-rstd": _dweight_without_rstd,
}
