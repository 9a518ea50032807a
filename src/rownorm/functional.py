"""``layer_norm`` and ``rms_norm`` with the signatures of ``torch.nn.functional``, and ``out_dtype``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import ops
from .ops.fast_path import default_device_is_set, disable_function_modes

_FP32_EPS, _FP64_EPS = (torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64))


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """LayerNorm over the last ``len(normalized_shape)`` dimensions of input, whose sizes must equal it.

    The result has the dtype of input unless ``out_dtype`` is given.
    """
    if default_device_is_set():
        with disable_function_modes():
            return layer_norm(input, normalized_shape, weight, bias, eps, out_dtype=out_dtype)
    rows, weight, bias = _as_rows("layer_norm", input, normalized_shape, weight, bias)
    y = ops.layer_norm(rows, weight, bias, eps=eps, out_dtype=out_dtype)
    return y if rows is input else y.view(input.shape)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """RMSNorm over the last ``len(normalized_shape)`` dimensions of input, whose sizes must equal it.

    ``eps=None`` is the machine epsilon of the dtype that torch computes in, as in torch. The result has the dtype of
    input unless ``out_dtype`` is given.
    """
    if default_device_is_set():
        with disable_function_modes():
            return rms_norm(input, normalized_shape, weight, eps, out_dtype=out_dtype)
    rows, weight, _ = _as_rows("rms_norm", input, normalized_shape, weight, None)
    if eps is None:
        eps = default_rms_eps(input.dtype)
    y = ops.rms_norm(rows, weight, eps=eps, out_dtype=out_dtype)
    return y if rows is input else y.view(input.shape)


def default_rms_eps(dtype: torch.dtype) -> float:
    """torch's default for RMSNorm: the machine epsilon of the dtype its statistics are computed in."""
    return _FP64_EPS if dtype == torch.float64 else _FP32_EPS


def _check_types(
    operation: str, input: object, normalized_shape: object, *parameters: object
) -> None:
    """Raise TypeError unless these are tensors, or None in the place of a parameter, and a shape."""
    for name, value in zip(("input", "weight", "bias"), (input, *parameters), strict=True):
        is_absent = name != "input" and value is None
        if not (is_absent or isinstance(value, Tensor)):
            raise TypeError(
                f"{operation}: {name} must be a torch.Tensor; got {type(value).__name__}"
            )
    if not isinstance(normalized_shape, Sequence):
        shown = (
            f"({normalized_shape},)" if isinstance(normalized_shape, int) else "input.shape[-1:]"
        )
        raise TypeError(
            f"{operation}: normalized_shape must be a tuple or a list of sizes; got {normalized_shape!r}. Pass {shown}."
        )


def _as_rows(
    name: str,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(input, weight, bias) with the dimensions of ``normalized_shape`` flattened into one."""
    try:
        if (  # the usual call of a module, first because every call pays
            len(normalized_shape) == 1
            and input.shape[-1:] == normalized_shape
            and (weight is None or weight.shape == normalized_shape)
            and (bias is None or bias.shape == normalized_shape)
        ):
            return input, weight, bias
    except (AttributeError, TypeError):
        _check_types(f"rownorm.functional.{name}", input, normalized_shape, weight, bias)
        raise
    operation, shape = f"rownorm.functional.{name}", tuple(normalized_shape)
    if not shape:
        raise ValueError(
            f"{operation}: normalized_shape must name at least one dimension; got {normalized_shape!r}"
        )
    if tuple(input.shape[-len(shape) :]) != shape:
        raise ValueError(
            f"{operation}: normalized_shape must be the last dimensions of input, whose shape is "
            f"{tuple(input.shape)}; got {shape}"
        )
    for parameter_name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and tuple(parameter.shape) != shape:
            raise ValueError(
                f"{operation}: {parameter_name} must have shape {shape}, as normalized_shape; "
                f"got {tuple(parameter.shape)}"
            )
    if len(shape) == 1:
        return input, weight, bias
    try:
        return (
            input.flatten(-len(shape)),
            None if weight is None else weight.flatten(),
            None if bias is None else bias.flatten(),
        )
    except RuntimeError as error:
        raise ValueError(
            f"{operation}: the dimensions of normalized_shape cannot be flattened into one. If a DTensor is sharded in "
            "one of them, replicate it first: t.redistribute(placements=[Replicate()] * t.device_mesh.ndim)."
        ) from error
