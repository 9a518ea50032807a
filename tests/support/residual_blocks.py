"""Blocks with residual adds: those that rownorm.patch must fuse with the norm after them, and those that it must not.

All have 32 columns. ``n_fused`` is the number of norms that must be fused.
"""

import functools

import torch
from torch import nn

from support.norm_modules import RoundedBeforeWeight


class _Block(nn.Module):
    n_fused = 0

    def __init__(self):
        super().__init__()
        self.first_norm, self.second_norm = RoundedBeforeWeight(), nn.LayerNorm(32)
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)
        self.dropout = nn.Dropout(0.2)


# ---- fused ----


class OneLineEach(_Block):
    """The norm is called inside a larger expression."""

    n_fused = 1

    def forward(self, x):
        x = x + self.first(self.first_norm(x))
        return x + self.second(self.second_norm(x))


class Renamed(_Block):
    """As transformers write it, with dropout and arguments."""

    n_fused = 1

    def forward(self, hidden, mask=None, *, scale=1.0, **unused):
        residual = hidden
        hidden = self.first(self.first_norm(hidden))
        if mask is not None:
            hidden = hidden * mask
        hidden = residual + scale * self.dropout(hidden)
        residual = hidden
        hidden = self.second_norm(hidden)
        hidden = self.second(hidden)
        return (residual + hidden, None)


class BothNorms(_Block):
    """An add before each norm, one of them in a branch."""

    n_fused = 2

    def forward(self, x):
        if x.dim() > 1:
            x = self.first(x) + x
            y = self.first_norm(x)
        else:
            y = x
        y = y + x
        return self.second(self.second_norm(y)) + y


class UsesSuper(OneLineEach):
    """A forward with a hidden variable of its class."""

    n_fused = 1

    def forward(self, x):
        x = x + self.first(x)
        y = self.second_norm(x)
        return super().forward(y) + x


# ---- left alone ----


class NoAdd(_Block):
    def forward(self, x):
        return self.second_norm(self.second(self.first_norm(self.first(x))))


class ChangedBetween(_Block):
    """Something happens to the sum before the norm."""

    def forward(self, x):
        h = x + self.first(x)
        h = 2 * h
        return self.second_norm(h)


class ChangedInPlace(_Block):
    def forward(self, x):
        h = x + self.first(x)
        h.mul_(2)
        return self.second_norm(h)


class OtherName(_Block):
    """The norm reads the old stream."""

    def forward(self, x):
        h = x + self.first(x)
        y = self.second_norm(x)
        return h + y


class RenamedAway(_Block):
    """The name of the sum has another value when the norm is called."""

    def forward(self, x):
        h = x + self.first(x)
        g = h
        h = x
        return self.second_norm(h) + g


class MaybeCalled(_Block):
    def forward(self, x):
        h = x + self.first(x)
        return self.second_norm(h) if x.dim() > 5 else h


class Difference(_Block):
    def forward(self, x):
        h = x - self.first(x)
        return self.second_norm(h)


class OrderMatters(_Block):
    """The sum changes in the statement of the norm, before the norm is called: only a probe can tell."""

    def forward(self, x):
        h = x + self.first(x)
        return h.data.sin_() + self.second_norm(h)


class UnknownArgument(_Block):
    def forward(self, x, context):
        h = x + self.first(x) * context
        return self.second_norm(h)


class Fails(_Block):
    def forward(self, x):
        h = x + self.first(x)
        y = self.second_norm(h)
        raise RuntimeError("not without a GPU")
        return y


def _decorator(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Decorated(_Block):
    @_decorator
    def forward(self, x):
        h = x + self.first(x)
        return self.second_norm(h)


FUSED = (OneLineEach, Renamed, BothNorms, UsesSuper)
LEFT = {
    NoAdd: "no residual add right before it in NoAdd.forward",
    ChangedBetween: "no residual add right before it in ChangedBetween.forward",
    ChangedInPlace: "no residual add right before it in ChangedInPlace.forward",
    OtherName: "no residual add right before it in OtherName.forward",
    RenamedAway: "no residual add right before it in RenamedAway.forward",
    MaybeCalled: "no residual add right before it in MaybeCalled.forward",
    Difference: "no residual add right before it in Difference.forward",
    OrderMatters: "fused, its block computes something else: result 0 in fp32",
    UnknownArgument: "a probe of its block cannot make the argument context",
    Fails: "a probe of its block failed: RuntimeError: not without a GPU",
    Decorated: "Decorated.forward has a decorator",
}


def made(block_class, dtype=torch.float32):
    """A block with random weights."""
    block = block_class()
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.3)
    return block.to(dtype)
