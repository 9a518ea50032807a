"""The four operators with sets of options, to test PyTorch's features with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import rownorm
from rownorm.program import SAMPLES, WITH_RESIDUAL
from support.torch_answers import torch_gate
from support.turns import pairs_in_turns

OPERATORS = ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
ROWS, COLS = 3, 8


@dataclass(frozen=True)
class OperatorCase:
    """One operator with some of its optional tensors and options."""

    operator: str
    options_name: str
    parameters: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.operator}-{self.options_name}"

    @property
    def tensor_names(self) -> tuple[str, ...]:
        rows = ("x", "residual") if self.operator.startswith("add_") else ("x",)
        return rows + self.parameters

    def tensors(
        self,
        device: str,
        dtype: torch.dtype = torch.float32,
        rows: tuple[int, ...] = (ROWS,),
        cols: int = COLS,
        strided: bool = False,
        requires_grad: bool = False,
    ) -> dict[str, Tensor]:
        """Random tensors by name. Strided rows are slices of a wider tensor."""
        results = {}
        for name in self.tensor_names:
            if name in SAMPLES and rows:
                t = torch.randn(rows[0], *(1 for _ in rows[1:]), cols, device=device, dtype=dtype)
            elif name in self.parameters and name != "gate":
                t = torch.randn(cols, device=device, dtype=dtype)
            elif strided:
                t = torch.randn(*rows, cols + 3, device=device, dtype=dtype)[..., 1 : cols + 1]
            else:
                t = torch.randn(*rows, cols, device=device, dtype=dtype)
            results[name] = t.requires_grad_(requires_grad)
        return results

    def __call__(self, **tensors: Tensor) -> tuple[Tensor, ...]:
        """The public function's outputs."""
        results = getattr(rownorm, self.operator)(**tensors, **self.options)
        return results if isinstance(results, tuple) else (results,)

    def positional(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The same with tensors in the order of ``tensor_names``."""
        return self(**dict(zip(self.tensor_names, tensors, strict=True)))

    def scalar(self, *tensors: Tensor) -> Tensor:
        """A scalar that depends on every element of every output."""
        return sum(output.sin().sum() for output in self.positional(*tensors))

    def expected(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The outputs computed by plain PyTorch. For fp64, where roundings do not matter.

        ``F.layer_norm`` is not used, because the gradient of its forward-mode derivative is wrong.
        """
        inputs = dict(zip(self.tensor_names, tensors, strict=True))
        h = inputs["x"]
        h = h + inputs["pre_bias"] if "pre_bias" in inputs else h
        h = h * inputs["residual_gate"] if "residual_gate" in inputs else h
        h = h + inputs["residual"] if "residual" in inputs else h
        gate = inputs.get("gate")
        if gate is not None:
            gate = torch_gate(self.options.get("gate_activation"), gate)
        gate_first = self.options.get("gate_first", False)
        u = h if gate is None or not gate_first else h * gate
        norm = self.operator.removeprefix("add_")
        eps = self.options.get("eps", {"layer_norm": 1e-5, "rms_norm": 1e-6}[norm])
        deviation = u - u.mean(-1, keepdim=True) if norm == "layer_norm" else u
        z = deviation / torch.sqrt(deviation.square().mean(-1, keepdim=True) + eps)
        if "weight" in inputs:
            z = z * (inputs["weight"] + self.options.get("weight_shift", 0.0))
        if "bias" in inputs:
            z = z + inputs["bias"]
        if "scale" in inputs:
            z = z * (inputs["scale"] + self.options.get("scale_shift", 0.0))
        if "shift" in inputs:
            z = z + inputs["shift"]
        match self.options.get("activation"):
            case "gelu_tanh":
                z = F.gelu(z, approximate="tanh")
            case None:
                pass
            case name:
                z = getattr(F, name)(z)
        z = z if gate is None or gate_first else z * gate
        return (z, h) if "residual" in inputs else (z,)

    def expected_scalar(self, *tensors: Tensor) -> Tensor:
        return sum(output.sin().sum() for output in self.expected(*tensors))


def _cases(*sets: tuple[str, tuple[str, ...], dict[str, Any]]) -> list[OperatorCase]:
    def fitting(operator: str, name: str, parameters: tuple[str, ...], options: dict[str, Any]):
        has_residual = operator.startswith("add_")
        parameters = tuple(one for one in parameters if has_residual or one not in WITH_RESIDUAL)
        return OperatorCase(operator, name, parameters, options)

    return [fitting(operator, *options) for operator in OPERATORS for options in sets]


BARE = ("bare", (), {})
AFFINE = ("affine", ("weight", "bias"), {})
LLAMA = ("llama", ("weight",), {"rounding": "llama", "activation": "silu"})
FULL = (
    "full",
    ("weight", "bias", "pre_bias", "scale", "shift", "residual_gate", "gate"),
    {
        "eps": 1e-3,
        "weight_shift": 1.0,
        "scale_shift": 1.0,
        "activation": "gelu_tanh",
        "gate_activation": "silu",
    },
)

# In a case that was there before: each costs a run of every test that goes over all cases.
MODULATED = (
    "modulated",
    ("scale", "shift", "gate"),
    {"scale_shift": 1.0, "gate_activation": "sigmoid", "gate_first": True, "rounding": "each"},
)

every_case = pytest.mark.parametrize("case", _cases(BARE, AFFINE, LLAMA, FULL, MODULATED), ids=str)
few_cases = pytest.mark.parametrize("case", _cases(AFFINE, FULL), ids=str)
FULL_CASES = _cases(FULL)
OUTER_CASES = ("add_layer_norm-full", "rms_norm-full")
full_cases = pytest.mark.parametrize("case", FULL_CASES, ids=str)
# With a mean and a residual, and without either; the two between them in make test-all.
outer_cases = pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, id=str(case), marks=[pytest.mark.exhaustive] * (str(case) not in OUTER_CASES)
        )
        for case in FULL_CASES
    ],
)


def cases_in_turns(name: str, values: Sequence[Any]) -> pytest.MarkDecorator:
    """Full cases, each with one of the values of a second argument; all pairs in make test-all."""
    return pytest.mark.parametrize(("case", name), pairs_in_turns(FULL_CASES, values))


def gradients(outputs: tuple[Tensor, ...], inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Gradients of a scalar that depends on all outputs."""
    total = sum(output.sin().sum() for output in outputs)
    return torch.autograd.grad(total, [t for t in inputs.values() if t.requires_grad])


def same_bits(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
