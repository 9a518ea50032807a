"""Norm modules as models write them: every form that rownorm.patch must recognize, and near misses that it must not."""

import torch
import torch.nn.functional as F
from torch import nn


class _Norm(nn.Module):
    """A weight of ones, and a bias of zeros where ``has_bias`` is set; eps 1e-6."""

    has_weight, has_bias = True, False

    def __init__(self, n=32, eps=1e-6):
        super().__init__()
        if self.has_weight:
            self.weight = nn.Parameter(torch.ones(n))
        if self.has_bias:
            self.bias = nn.Parameter(torch.zeros(n))
        self.variance_epsilon = eps

    def unit(self, x):
        """x divided by its root mean square."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)


# ---- forms ----


class RoundedBeforeWeight(_Norm):
    """Llama."""

    def forward(self, hidden):
        return self.weight * self.unit(hidden.float()).to(hidden.dtype)


class RoundedOnce(_Norm):
    """OLMo 2."""

    def forward(self, hidden):
        return (self.weight * self.unit(hidden.float())).to(hidden.dtype)


class ShiftedWeight(_Norm):
    """Gemma."""

    def forward(self, x):
        return (self.unit(x.float()) * (1 + self.weight.float())).type_as(x)


class FloatWeight(_Norm):
    """Gemma 4 with a scale; a power instead of a root."""

    def forward(self, x):
        mean = x.float().pow(2).mean(-1, keepdim=True) + self.variance_epsilon
        return (x.float() * mean.pow(-0.5) * self.weight.float()).type_as(x)


class NoWeight(_Norm):
    """Gemma 4 without a scale."""

    has_weight = False

    def forward(self, x):
        return self.unit(x.float()).type_as(x)


class RoundedToWeight(_Norm):
    """T5: rounded before the weight if the weight has 16 bits, else not at all."""

    def forward(self, x):
        mean = x.float().square().mean(-1, keepdim=True)
        x = x * torch.rsqrt(mean + self.variance_epsilon)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            x = x.to(self.weight.dtype)
        return self.weight * x


class CenteredNoBias(_Norm):
    """Cohere."""

    def forward(self, x):
        h = x.float()
        h = h - h.mean(-1, keepdim=True)
        return (self.weight.float() * self.unit(h)).to(x.dtype)


class CenteredByFunction(_Norm):
    """OLMo: eps is nowhere but in the call."""

    has_weight = False

    def __init__(self, n=32):
        super().__init__()
        del self.variance_epsilon
        self.normalized_shape = (n,)

    def forward(self, x):
        return F.layer_norm(x.float(), self.normalized_shape, None, None, 1e-5).to(x.dtype)


class OtherNames(nn.Module):
    """gamma and beta, in fp32 arithmetic."""

    def __init__(self, n=32):
        super().__init__()
        self.beta = nn.Parameter(torch.zeros(n))
        self.gamma = nn.Parameter(torch.ones(n))

    def forward(self, x):
        h = x.float() - x.float().mean(-1, keepdim=True)
        h = h / (h.square().mean(-1, keepdim=True) + 1e-12).sqrt()
        return (h * self.gamma.float() + self.beta.float()).to(x.dtype)


class UnusedWeight(_Norm):
    """Falcon Mamba: a buffer that only a kernel would read."""

    has_weight = False

    def __init__(self, n=32):
        super().__init__()
        self.register_buffer("weight", torch.ones(n), persistent=False)

    def forward(self, x):
        return self.unit(x.float()).type_as(x)


class MeanByProduct(_Norm):
    """A mean that autocast would round."""

    def forward(self, x):
        h = x.float()
        mean = h.square() @ h.new_full((h.shape[-1], 1), 1 / h.shape[-1])
        return (self.weight.float() * h * torch.rsqrt(mean + self.variance_epsilon)).to(x.dtype)


# ---- near misses ----


class EpsOutsideTheRoot(_Norm):
    def forward(self, x):
        rms = x.float().square().mean(-1, keepdim=True).sqrt()
        return self.weight * (x.float() / (rms + self.variance_epsilon)).to(x.dtype)


class EpsAsAFloor(_Norm):
    def forward(self, x):
        rms = x.float().square().mean(-1, keepdim=True).sqrt()
        return self.weight * (x.float() / rms.clamp(min=self.variance_epsilon)).to(x.dtype)


class Gated(_Norm):
    def forward(self, x, gate=None):
        y = self.weight * self.unit(x.float()).to(x.dtype)
        return y if gate is None else y * F.silu(gate)


class TwoArguments(_Norm):
    def forward(self, x, factor=None):
        y = self.weight * self.unit(x.float()).to(x.dtype)
        return y if factor is None else y * factor


class RoundedGate(_Norm):
    """It reproduces no form in 16 bits, where the gate's activation is rounded."""

    def forward(self, x, gate):
        return (self.unit(x.float()) * self.weight * torch.sigmoid(gate)).to(x.dtype)


class ChannelsFirst(_Norm):
    def forward(self, x):
        x = x.movedim(1, -1)
        return (self.weight * self.unit(x.float()).to(x.dtype)).movedim(-1, 1)


class SoftplusWeight(_Norm):
    def forward(self, x):
        return (F.softplus(self.weight.float()) * self.unit(x.float())).to(x.dtype)


class ClampedWeight(_Norm):
    def forward(self, x):
        return (self.weight.float().clamp(-1, 1) * self.unit(x.float())).to(x.dtype)


class UnbiasedVariance(_Norm):
    """n - 1 instead of n."""

    def forward(self, x):
        h = x.float() - x.float().mean(-1, keepdim=True)
        variance = x.float().var(-1, keepdim=True)
        return (self.weight.float() * h * torch.rsqrt(variance + self.variance_epsilon)).to(x.dtype)


class SumOfSquares(_Norm):
    def forward(self, x):
        total = x.float().square().sum(-1, keepdim=True)
        return (self.weight.float() * x.float() * torch.rsqrt(total + self.variance_epsilon)).to(
            x.dtype
        )


class Groups(_Norm):
    """Each half of a row by itself."""

    def forward(self, x):
        halves = x.float().unflatten(-1, (2, -1))
        return (self.weight.float() * self.unit(halves).flatten(-2)).to(x.dtype)


class HalfShift(_Norm):
    def forward(self, x):
        return ((0.5 + self.weight.float()) * self.unit(x.float())).to(x.dtype)


class OddEps(_Norm):
    def __init__(self, n=32):
        super().__init__(n)
        self.variance_epsilon = torch.tensor(1.2345678e-6)

    def forward(self, x):
        return (self.weight.float() * self.unit(x.float())).to(x.dtype)


class DetachedStatistics(_Norm):
    """The right result, and another gradient."""

    def forward(self, x):
        h = x.float()
        rstd = torch.rsqrt(h.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight.float() * h * rstd.detach()).to(x.dtype)


class Noisy(_Norm):
    """Random in training only."""

    def forward(self, x):
        y = (self.weight.float() * self.unit(x.float())).to(x.dtype)
        return F.dropout(y, 0.1, self.training)


class ScaledIfOnes(_Norm):
    """Depends on the value of the weight."""

    def forward(self, x):
        y = self.weight.float() * self.unit(x.float())
        return (2 * y if bool((self.weight == 1).all()) else y).to(x.dtype)


class ShapeDependent(_Norm):
    """Another norm for four dimensions."""

    def forward(self, x):
        y = self.weight.float() * self.unit(x.float())
        return (2 * y if x.dim() == 4 else y).to(x.dtype)


class InPlace(_Norm):
    """Changes its input."""

    def forward(self, x):
        rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.variance_epsilon)
        return x.mul_(rstd).mul_(self.weight)


class ReturnsRstd(_Norm):
    has_weight = False

    def forward(self, x):
        return torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)
