"""Drop-in modules: subclasses of torch's modules with rownorm's forward; and gated and adaptive norms, with the
constructors and the ``state_dict`` of those in transformers and diffusers.

The forward of a drop-in module tries ``eager.native.module_norm`` itself. The functions between a module and that
call cost more in a training step, where their code is not in the cache, than they seem to in a loop: experiment HST-05
in docs/experiments/host.md.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.types import Device

from . import ops
from .functional import default_rms_eps, layer_norm, rms_norm
from .integration import leaf_of_trace, quantize_like, refuse_torchscript
from .ops import eager
from .ops.batch_invariance import is_on, state
from .ops.checks import check_options
from .ops.fast_path import is_traced
from .program import GateActivation, Program, Rounding

# torch.fx.symbolic_trace of a norm alone records each as one call: their code depends on sizes, which a trace does not
# have.
torch.fx.wrap("layer_norm")
torch.fx.wrap("rms_norm")


@functools.lru_cache(typed=True)  # eps=True is refused, eps=1 is not
def _program(center: bool, eps: float, out_dtype: torch.dtype | None, mode: bool) -> Program:
    program = Program(center, eps, out_dtype=out_dtype, batch_invariant=mode)
    # What raises is not kept by the cache: an eps could be a tensor.
    check_options(f"rownorm.{program.name}", program, tensors=())
    return program


class _Module(torch.nn.Module):
    """A module that TorchScript refuses."""

    def __prepare_scriptable__(self) -> NoReturn:
        refuse_torchscript(f"rownorm.nn.{type(self).__name__}")


class _Norm(_Module):
    """What both norms have beside torch's: ``out_dtype``, shown by ``repr`` where it is given."""

    out_dtype: torch.dtype | None = None  # of a module that was pickled without it, too

    def extra_repr(self) -> str:
        shown = super().extra_repr()
        return shown if self.out_dtype is None else f"{shown}, out_dtype={self.out_dtype}"


class LayerNorm(_Norm, torch.nn.LayerNorm):
    """``torch.nn.LayerNorm``, same arguments, parameters and ``state_dict``, computed by rownorm.

    out_dtype: the dtype of the result, if it is not that of the input. Under ``torch.autocast`` with
    ``out_dtype=torch.bfloat16``, the linear layer that follows needs no kernel to cast its input.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        out_dtype: torch.dtype | None = None,
    ) -> None:
        # torch takes a tuple, too, which its annotation leaves out.
        shape: Any = normalized_shape
        super().__init__(shape, eps, elementwise_affine, bias, device, dtype)
        self.out_dtype = out_dtype

    def forward(self, input: Tensor) -> Tensor:
        if type(input) is not Tensor and (leaf := leaf_of_trace(self, input)) is not None:
            return leaf
        shape, weight, bias, eps = self.normalized_shape, self.weight, self.bias, self.eps
        if not is_traced():
            program = _program(True, eps, self.out_dtype, state.is_active and is_on())
            y: Tensor = eager.native.module_norm(input, weight, bias, program, shape)
            if y is not NotImplemented:
                return y
        return layer_norm(input, shape, weight, bias, eps, out_dtype=self.out_dtype)


class RMSNorm(_Norm, torch.nn.RMSNorm):
    """``torch.nn.RMSNorm``, same arguments, parameters and ``state_dict``, computed by rownorm.

    out_dtype: as for ``LayerNorm``.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        out_dtype: torch.dtype | None = None,
    ) -> None:
        shape: Any = normalized_shape
        super().__init__(shape, eps, elementwise_affine, device, dtype)
        self.out_dtype = out_dtype

    def forward(self, x: Tensor) -> Tensor:
        if type(x) is not Tensor and (leaf := leaf_of_trace(self, x)) is not None:
            return leaf
        shape, weight, eps = self.normalized_shape, self.weight, self.eps
        if type(x) is Tensor and not is_traced():
            exact_eps = default_rms_eps(x.dtype) if eps is None else eps
            program = _program(False, exact_eps, self.out_dtype, state.is_active and is_on())
            y: Tensor = eager.native.module_norm(x, weight, None, program, shape)
            if y is not NotImplemented:
                return y
        return rms_norm(x, shape, weight, eps, out_dtype=self.out_dtype)


class RMSNormGated(_Module):
    """The gated RMSNorm of linear attention and state space models, with the ``state_dict`` of transformers'
    ``*RMSNormGated``; ``hidden_size`` and ``eps`` are as in Qwen3-Next.

    The defaults are Qwen3-Next's numbers: ``silu(gate)`` multiplies the result, and the normalized row and its product
    with the weight are rounded to the dtype of the rows. Kimi Linear: ``gate_activation="sigmoid", rounding="once"``.
    Mamba2: ``gate_first=True``, and with ``n_groups`` groups ``group_cols=hidden_size // n_groups``.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        *,
        gate_activation: GateActivation | None = "silu",
        gate_first: bool = False,
        group_cols: int | None = None,
        rounding: Rounding = "llama",
        out_dtype: torch.dtype | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not isinstance(eps, float) or eps >= 1:
            raise ValueError(
                f"rownorm.nn.RMSNormGated: eps must be a float below 1; got {eps!r}. The columns of a group, which "
                "Zamba2's class takes in this place, are the keyword group_cols."
            )
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.variance_epsilon = eps
        self.gate_activation: GateActivation | None = gate_activation
        self.gate_first = gate_first
        self.group_cols = group_cols
        self.rounding: Rounding = rounding
        self.out_dtype = out_dtype

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        if (
            type(hidden_states) is not Tensor
            and (leaf := leaf_of_trace(self, hidden_states, gate)) is not None
        ):
            return leaf
        has_gate = gate is not None
        return ops.rms_norm(
            hidden_states,
            self.weight,
            eps=self.variance_epsilon,
            gate=gate,
            gate_activation=self.gate_activation if has_gate else None,
            gate_first=self.gate_first and has_gate,
            rounding=self.rounding,
            out_dtype=self.out_dtype,
            group_cols=self.group_cols,
        )

    def extra_repr(self) -> str:
        shown = [f"{self.weight.shape[0]}", f"eps={self.variance_epsilon}"]
        shown.append(f"gate_activation={self.gate_activation!r}")
        shown += ["gate_first=True"] if self.gate_first else []
        shown += [] if self.group_cols is None else [f"group_cols={self.group_cols}"]
        shown += [] if self.rounding == "llama" else [f"rounding={self.rounding!r}"]
        shown += [] if self.out_dtype is None else [f"out_dtype={self.out_dtype}"]
        return ", ".join(shown)


class _AdaptiveNorm(_Module):
    """What adaptive norms share: ``linear(silu(embedding))`` gives vectors of each sample, and two of them modulate the
    norm in one kernel: ``norm(x) * (1 + scale) + shift``.

    x: (batch, tokens, n_cols); embedding: (batch, n_embedding). rounding="each" gives the numbers of diffusers, whose
    steps are operators of PyTorch.
    """

    def __init__(
        self,
        norm: LayerNorm | RMSNorm,
        n_vectors: int,
        n_embedding: int,
        bias: bool,
        rounding: Rounding,
        device: Device,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        n_cols = norm.normalized_shape[-1]
        self.silu = torch.nn.SiLU()
        self.linear = torch.nn.Linear(n_embedding, n_vectors * n_cols, bias, device, dtype)
        self.n_vectors = n_vectors
        self.norm = norm
        self.rounding: Rounding = rounding

    def vectors(self, embedding: Tensor) -> tuple[Tensor, ...]:
        """``n_vectors`` of shape (batch, n_cols), parts of one projection."""
        projection: Tensor = self.linear(self.silu(embedding))
        return projection.chunk(self.n_vectors, dim=1)

    def modulated(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """scale, shift: (batch, n_cols)."""
        norm: Any = self.norm
        function = ops.layer_norm if isinstance(norm, LayerNorm) else ops.rms_norm
        return function(
            x,
            norm.weight,
            getattr(norm, "bias", None),
            eps=norm.eps,
            scale=scale[:, None],
            shift=shift[:, None],
            scale_shift=1.0,
            rounding=self.rounding,
        )

    def extra_repr(self) -> str:
        return "" if self.rounding == "once" else f"rounding={self.rounding!r}"


class AdaLayerNormContinuous(_AdaptiveNorm):
    """``norm(x) * (1 + scale) + shift``, with the arguments and the ``state_dict`` of diffusers'
    ``AdaLayerNormContinuous``: the last norm of most of its transformers.

    rounding: "each" gives the numbers of diffusers, but for an RMSNorm with a weight, which rounds before it, too.
    """

    def __init__(
        self,
        embedding_dim: int,
        conditioning_embedding_dim: int,
        elementwise_affine: bool = True,
        eps: float = 1e-5,
        bias: bool = True,
        norm_type: str = "layer_norm",
        *,
        rounding: Rounding = "once",
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _check_norm_type(type(self).__name__, norm_type, "layer_norm", "rms_norm")
        norm = (
            LayerNorm(embedding_dim, eps, elementwise_affine, bias, device, dtype)
            if norm_type == "layer_norm"
            else RMSNorm(embedding_dim, eps, elementwise_affine, device, dtype)
        )
        super().__init__(norm, 2, conditioning_embedding_dim, bias, rounding, device, dtype)

    def forward(self, x: Tensor, conditioning_embedding: Tensor) -> Tensor:
        if (
            type(x) is not Tensor
            and (leaf := leaf_of_trace(self, x, conditioning_embedding)) is not None
        ):
            return leaf
        # An embedding in fp32 is the rule beside rows of 16 bits.
        projection = self.linear(self.silu(conditioning_embedding).to(x.dtype))
        return self.modulated(x, *projection.chunk(2, dim=1))


class AdaLayerNormZero(_AdaptiveNorm):
    """The first norm of a block of Stable Diffusion 3 or FLUX, with the arguments and the ``state_dict`` of diffusers'
    ``AdaLayerNormZero``. Returns ``(norm(x) * (1 + scale) + shift, gate, shift_mlp, scale_mlp, gate_mlp)``.

    The last four have shape (batch, n_cols). ``gate``, of the attention, is the ``residual_gate`` of
    ``rownorm.add_layer_norm``, which takes ``scale_mlp`` and ``shift_mlp``, too. There is no ``num_embeddings``: an
    embedding of the time step is passed.
    """

    def __init__(
        self,
        embedding_dim: int,
        num_embeddings: None = None,
        norm_type: str = "layer_norm",
        bias: bool = True,
        *,
        rounding: Rounding = "once",
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        name = type(self).__name__
        if num_embeddings is not None:
            raise ValueError(
                f"rownorm.nn.{name}: num_embeddings must be None; got {num_embeddings!r}. Embed time steps and labels "
                "in a module of your own, and pass the result as emb."
            )
        _check_norm_type(name, norm_type, "layer_norm", "fp32_layer_norm")
        # Statistics are computed in fp32 anyway; diffusers' two classes have different defaults of eps.
        eps = 1e-6 if norm_type == "layer_norm" else 1e-5
        norm = LayerNorm(embedding_dim, eps, False, device=device, dtype=dtype)
        super().__init__(norm, 6, embedding_dim, bias, rounding, device, dtype)

    def forward(self, x: Tensor, *, emb: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        if type(x) is not Tensor and (leaf := leaf_of_trace(self, x, emb=emb)) is not None:
            return leaf
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = self.vectors(emb)
        return self.modulated(x, scale, shift), gate, shift_mlp, scale_mlp, gate_mlp


class AdaLayerNormZeroSingle(_AdaptiveNorm):
    """The norm of a block of FLUX that has one, with the arguments and the ``state_dict`` of diffusers'
    ``AdaLayerNormZeroSingle``. Returns ``(norm(x) * (1 + scale) + shift, gate)``; gate: (batch, n_cols).
    """

    def __init__(
        self,
        embedding_dim: int,
        norm_type: str = "layer_norm",
        bias: bool = True,
        *,
        rounding: Rounding = "once",
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _check_norm_type(type(self).__name__, norm_type, "layer_norm")
        norm = LayerNorm(embedding_dim, 1e-6, False, device=device, dtype=dtype)
        super().__init__(norm, 3, embedding_dim, bias, rounding, device, dtype)

    def forward(self, x: Tensor, emb: Tensor) -> tuple[Tensor, Tensor]:
        if type(x) is not Tensor and (leaf := leaf_of_trace(self, x, emb)) is not None:
            return leaf
        shift, scale, gate = self.vectors(emb)
        return self.modulated(x, scale, shift), gate


def _check_norm_type(name: str, norm_type: str, *known: str) -> None:
    if norm_type not in known:
        names = " or ".join(map(repr, known))
        raise ValueError(f"rownorm.nn.{name}: norm_type must be {names}; got {norm_type!r}")


quantize_like(LayerNorm, torch.nn.LayerNorm)
