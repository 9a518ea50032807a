"""What wrong formulas give, in fp64: if a learner's values are these, the mistake has a name (``habits.HABITS``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from rownorm_lab.data.case import Case
from rownorm_lab.providers.data import Tensors

_BLOCKS = [1 << power for power in range(4, 17)]
# No eps, and values that are written in place of the argument.
_OTHER_EPS = (0.0, 1e-8, 1e-6, 1e-5)


class Rows:
    """The tensors of a case in fp64, and the factors of the right results. A tensor that is left out is 0."""

    def __init__(self, case: Case, t: Tensors, eps: float | None = None) -> None:
        self.case, self.tensors, self.n = case, t, case.cols
        self.eps = case.eps if eps is None else eps
        self.x, self.weight, self.bias, self.pre_bias, self.dy = (
            torch.zeros((), dtype=torch.float64) if one is None else one.detach().double()
            for one in (t.x, t.weight, t.bias, t.pre_bias, t.dy)
        )
        self.h = self.x + self.pre_bias
        self.centered = self.h - _mean(self.h)
        self.deviation = self.centered if case.centers else self.h
        self.rstd = (_mean(self.deviation.square()) + self.eps).rsqrt()
        self.x_hat = self.deviation * self.rstd
        self.g = self.dy * self.weight
        self.projected = self.x_hat * _mean(self.g * self.x_hat)
        self.activation = torch.relu if case.activation == "relu" else lambda y: y

    def affine(self, x_hat: Tensor) -> Tensor:
        """The result of normalized rows."""
        return self.activation(x_hat * self.weight + self.bias)

    def normed(self, deviation: Tensor, variance: Tensor) -> Tensor:
        """The result of deviations and their mean square."""
        return self.affine(deviation * (variance + self.eps).rsqrt())

    def with_other_eps(self) -> Iterator[Rows]:
        """The same with another eps each."""
        for eps in _OTHER_EPS:
            if eps != self.eps:
                yield Rows(self.case, self.tensors, eps)

    @property
    def other_blocks(self) -> list[int]:
        """Blocks that rows do not fill, or not at once."""
        return [block for block in _BLOCKS if block != self.n]

    @property
    def several_blocks(self) -> list[int]:
        """Blocks of which a row has several."""
        return [block for block in _BLOCKS if block < self.n]

    @property
    def lanes_past_end(self) -> list[int]:
        """How many lanes of the last block have no element, for every block that rows do not fill."""
        return [lanes for block in _BLOCKS if (lanes := -self.n % block)]

    @property
    def shifts(self) -> list[Tensor]:
        """The elements that shifted sums usually subtract: the first, the middle, the last."""
        return [self.h[..., place : place + 1] for place in (0, self.n // 2, self.n - 1)]


# By habit: what a function computes that has this habit; several if the mistake can be made in several ways.
Alternatives = Mapping[str, Callable[[Rows], Tensor | Iterable[Tensor]]]


def _sum(values: Tensor) -> Tensor:
    return values.sum(-1, keepdim=True)


def _mean(values: Tensor) -> Tensor:
    return values.mean(-1, keepdim=True)


def _variance(values: Tensor) -> Tensor:
    return _mean((values - _mean(values)).square())


def _divided_by_block(rows: Rows) -> Iterator[Tensor]:
    total = _sum(rows.deviation.square())
    for block in rows.other_blocks:
        yield rows.normed(rows.deviation, total / block)


def _block_mean(rows: Rows) -> Iterator[Tensor]:
    """LayerNorm with the mean taken over the block, and the variance over the block or the row."""
    yield from _divided_by_block(rows)
    for block in rows.other_blocks:
        for origin in (torch.zeros_like(rows.h[..., :1]), *rows.shifts):
            moved = _sum(rows.h - origin) / block
            deviation = rows.h - origin - moved
            squares, shifted = _sum(deviation.square()), _sum((rows.h - origin).square())
            for divisor in (block, rows.n):
                yield rows.normed(deviation, squares / divisor)
                yield rows.normed(deviation, shifted / divisor - moved.square())


def _shift_not_added(rows: Rows) -> Iterator[Tensor]:
    """LayerNorm whose mean is that of the shifted row."""
    for shift in rows.shifts:
        yield rows.affine((rows.h - _mean(rows.h - shift)) * rows.rstd)


def _squares_of_shifted(rows: Rows) -> Iterator[Tensor]:
    """LayerNorm whose variance is mean(d^2), without mean(d)^2 or with its sum."""
    for shift in rows.shifts:
        squares = _mean((rows.h - shift).square())
        for variance in (squares, squares + _mean(rows.h - shift).square()):
            yield rows.normed(rows.centered, variance)


def _shift_of_each_block(rows: Rows) -> Iterator[Tensor]:
    """LayerNorm whose shifted sums subtract another element in every block; the last one is taken for all."""
    for block in rows.several_blocks:
        parts = rows.h.split(block, -1)
        shifted = torch.cat([part - part[..., :1] for part in parts], -1)
        mean = parts[-1][..., :1] + _mean(shifted)
        yield rows.normed(rows.h - mean, _variance(shifted))


Growth = Callable[[Tensor, int, int], Tensor | float]


def _merged(
    rows: Rows,
    growth: Growth = lambda delta, a, b: delta**2 * (a * b / (a + b)),
    whole: bool = False,
    swapped: bool = False,
    late: bool = False,
) -> Iterator[Tensor]:
    """LayerNorm by Welford's merging, with mistakes.

    growth: of m2 beyond the sum of both, from delta, n_a and n_b. whole: the last block counts as many elements as the
    others. swapped: the mean moves by the other block's share. late: delta is the distance from the merged mean.
    """
    for block in _BLOCKS if whole or swapped else rows.several_blocks:
        count, mean, m2 = 0, torch.zeros_like(rows.h[..., :1]), torch.zeros_like(rows.h[..., :1])
        for part in rows.h.split(block, -1):
            n_b = block if whole else part.shape[-1]
            block_mean = _sum(part) / n_b
            delta, n = block_mean - mean, count + n_b
            mean = mean + delta * ((count if swapped else n_b) / n)
            delta = block_mean - mean if late else delta
            m2 = m2 + _sum((part - block_mean).square()) + growth(delta, count, n_b)
            count = n
        if whole and count == rows.n:
            continue
        for divisor in {rows.n, count}:
            yield rows.normed(rows.h - mean, m2 / divisor)


def _merged_with_other_growths(rows: Rows) -> Iterator[Tensor]:
    growths: tuple[Growth, ...] = (
        lambda delta, a, b: 0.0,
        lambda delta, a, b: delta * (a * b / (a + b)),
        lambda delta, a, b: delta**2 * (a * b),
    )
    for growth in growths:
        yield from _merged(rows, growth)


def _masked_deviation(rows: Rows) -> Iterator[Tensor]:
    """LayerNorm with lanes past the end of the row counted as -mean, or with shifted sums as -shift."""
    shift = rows.shifts[0]
    shifted = rows.h - shift
    for lanes in rows.lanes_past_end:
        total = _sum(rows.centered.square()) + lanes * _mean(rows.h).square()
        yield rows.normed(rows.centered, total / rows.n)
        moved = (_sum(shifted) - lanes * shift) / rows.n
        squares = _sum(shifted.square()) + lanes * shift.square()
        yield rows.normed(shifted - moved, (squares / rows.n - moved.square()).clamp(min=0.0))


def _part_of_row(rows: Rows) -> Iterator[Tensor]:
    """RMSNorm with the squares of the first block only."""
    for block in rows.several_blocks:
        total = _sum(rows.h[..., :block].square())
        for divisor in (block, rows.n):
            yield rows.normed(rows.h, total / divisor)


def _masked_as_one(rows: Rows) -> Iterator[Tensor]:
    """The norm with lanes past the end of the row that count as 1."""
    for lanes in rows.lanes_past_end:
        if rows.case.centers:
            deviation = rows.h - (_sum(rows.h) + lanes) / rows.n
            yield rows.normed(deviation, _mean(deviation.square()))
        else:
            yield rows.normed(rows.h, (_sum(rows.h.square()) + lanes) / rows.n)


def _own_part(rows: Rows) -> Iterator[Tensor]:
    """RMSNorm with the root mean square of each part of a row."""
    for size in rows.several_blocks:
        if rows.n % size == 0:
            parts = rows.h.unflatten(-1, (-1, size))
            rstd = (_mean(parts.square()) + rows.eps).rsqrt()
            yield rows.affine((parts * rstd).flatten(-2))


def _no_eps(rows: Rows) -> Iterator[Tensor]:
    for other in rows.with_other_eps():
        yield other.affine(other.x_hat)


def _gradient_without_eps(rows: Rows) -> Iterator[Tensor]:
    """y, dx and dweight of RMSNorm."""
    for other in rows.with_other_eps():
        yield other.affine(other.x_hat)
        yield other.rstd * (other.g - other.projected)
        yield (other.dy * other.x_hat).sum(0)


def _unbiased(rows: Rows) -> Tensor:
    total = _sum(rows.deviation.square())
    return rows.normed(rows.deviation, total / max(1, rows.n - 1))


def _dx_without_weight(rows: Rows) -> Iterator[Tensor]:
    """dx with dy in place of dy * weight: everywhere, in the mean, or until the end."""
    of_dy = rows.x_hat * _mean(rows.dy * rows.x_hat)
    for difference in (rows.dy - of_dy, rows.g - of_dy, (rows.dy - of_dy) * rows.weight):
        yield rows.rstd * difference


def _dx_with_other_rstd(rows: Rows) -> Iterator[Tensor]:
    """dx without the factor before the difference, with x in place of x_hat, or with a factor too many."""
    of_x = _mean(rows.g * rows.h)
    yield rows.g - rows.projected
    for term in (rows.h * of_x, rows.x_hat * of_x, rows.rstd * rows.projected):
        yield rows.rstd * (rows.g - term)


def _dx_divided_by_block(rows: Rows) -> Iterator[Tensor]:
    """dx with the mean of g * x_hat taken over the block."""
    total = _sum(rows.g * rows.x_hat)
    for block in rows.other_blocks:
        yield rows.rstd * (rows.g - rows.x_hat * (total / block))


COMMON: Alternatives = {
    "sum-not-mean": lambda rows: rows.normed(rows.deviation, _sum(rows.deviation.square())),
    "no-weight": lambda rows: rows.activation(rows.x_hat + rows.bias),
    "no-eps": _no_eps,
    "eps-outside": lambda rows: rows.affine(
        rows.deviation / (_mean(rows.deviation.square()).sqrt() + rows.eps)
    ),
    "divide-by-block": _divided_by_block,
    "mask-other-value": _masked_as_one,
}
RMS_NORM: Alternatives = {
    **COMMON,
    "layer-norm": lambda rows: rows.normed(rows.centered, _variance(rows.h)),
    "unbiased": _unbiased,
    "own-part": _own_part,
    "part-of-row": _part_of_row,
}
LAYER_NORM: Alternatives = {
    **COMMON,
    "rms-norm": lambda rows: rows.normed(rows.h, _mean(rows.h.square())),
    "unbiased": _unbiased,
    "no-bias": lambda rows: rows.activation(rows.x_hat * rows.weight),
    "mask-deviation": _masked_deviation,
    "divide-by-block": _block_mean,
}
LAYER_NORM_SHIFTED: Alternatives = {
    **LAYER_NORM,
    "shift-not-added": _shift_not_added,
    "shift-squares": _squares_of_shifted,
    "shift-moves": _shift_of_each_block,
}
LAYER_NORM_WELFORD: Alternatives = {
    "welford-count": partial(_merged, whole=True),
    "welford-delta": _merged_with_other_growths,
    "welford-late": partial(_merged, late=True),
    "welford-swapped": partial(_merged, swapped=True),
    **LAYER_NORM,
}
RMS_NORM_RELU: Alternatives = {
    **RMS_NORM,
    "no-relu": lambda rows: rows.x_hat * rows.weight + rows.bias,
    "relu-first": lambda rows: torch.relu(rows.x_hat) * rows.weight + rows.bias,
}
BIAS_LAYER_NORM: Alternatives = {
    **LAYER_NORM,
    "bias-after": lambda rows: (
        rows.normed(rows.x - _mean(rows.x), _variance(rows.x)) + rows.pre_bias
    ),
    "bias-not-in-mean": lambda rows: rows.normed(rows.h - _mean(rows.x), _variance(rows.x)),
}
RMS_NORM_GRADIENT: Alternatives = {
    "no-eps": _gradient_without_eps,
    "no-x-gradient": lambda rows: rows.g * rows.rstd,  # as if a row's divisor did not depend on it
    "no-weight-in-dx": _dx_without_weight,
    "rstd-in-dx": _dx_with_other_rstd,
    "dx-sign": lambda rows: rows.rstd * (rows.g + rows.projected),
    "dx-sum": lambda rows: rows.rstd * (rows.g - rows.projected * rows.n),
    "divide-by-block": _dx_divided_by_block,
    "weight-twice": lambda rows: (rows.g * rows.x_hat).sum(0),
    "weight-last-row": lambda rows: list(rows.dy * rows.x_hat),
    "weight-mean": lambda rows: (rows.dy * rows.x_hat).mean(0),
    "no-rstd": lambda rows: (rows.dy * rows.x).sum(0),
}
