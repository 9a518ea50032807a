"""The row program and its derivative in numpy's extended precision.

Neither PyTorch nor ``rownorm.reference`` takes part in the computation, and the precision is high
enough to judge fp64.
"""

import numpy as np
import torch

from support.cases import INPUTS, Case


def oracle(case: Case, tensors: dict) -> dict[str, np.ndarray]:
    """The row program and its derivative in extended precision, without any of the kernels' roundings."""
    inputs = {name: None if t is None else exact(t) for name, t in tensors.items()}
    zero = np.longdouble(0)
    x, weight, dh = inputs["x"], inputs["weight"], inputs["dh"]
    pre_bias = zero if inputs["pre_bias"] is None else inputs["pre_bias"]
    residual = zero if inputs["residual"] is None else inputs["residual"]
    bias = zero if inputs["bias"] is None else inputs["bias"]
    factor = 1 if weight is None else weight + np.longdouble(case.weight_shift)
    scale, shift, gate = inputs.get("scale"), inputs.get("shift"), inputs.get("gate")
    residual_gate = inputs.get("residual_gate")
    residual_gate = 1 if residual_gate is None else residual_gate
    factor_of_gate, slope_of_gate = _exact_gate(case.gate_activation, gate)
    first, last = (factor_of_gate, 1) if case.gate_first else (1, factor_of_gate)
    scale = 1 if scale is None else scale + np.longdouble(case.scale_shift)
    shift = zero if shift is None else shift

    def mean(row):
        return row.mean(-1, keepdims=True)

    h = residual_gate * (x + pre_bias) + residual
    u = h * first
    deviation = u - mean(u) if case.center else u
    rstd = 1 / np.sqrt(mean(deviation**2) + np.longdouble(case.program.eps))
    x_hat = deviation * rstd
    z = x_hat * factor + bias
    activated, slope = _exact_activation(case.activation, z * scale + shift)
    y = activated * last

    dshift = inputs["dy"] * last * slope
    dz = dshift * scale
    g = dz * factor
    du = rstd * (g - x_hat * mean(g * x_hat) - (mean(g) if case.center else 0))
    dstream = du * first if dh is None else du * first + dh
    dx = dstream * residual_gate
    dfactor = du * h if case.gate_first else inputs["dy"] * activated
    n_cols = x.shape[-1]
    results = {"y": y, "h": h, "dx": dx, "dresidual": dstream, "dgate": dfactor * slope_of_gate}
    for name, rows in (("dpre_bias", dx), ("dweight", dz * x_hat), ("dbias", dz)):
        results[name] = rows.reshape(-1, n_cols).sum(0)
    samples = {"scale": dshift * z, "shift": dshift, "residual_gate": dstream * (x + pre_bias)}
    for name, rows in samples.items():
        if inputs.get(name) is not None:
            results[f"d{name}"] = _sum_to(rows, inputs[name].shape)
    present = ["y", *(f"d{name}" for name in INPUTS if inputs.get(name) is not None)]
    if inputs["residual"] is not None:
        present.append("h")
    return {name: results[name] for name in present}


def _sum_to(rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The sums over the dimensions in which a tensor of this shape was broadcast."""
    missing = rows.ndim - len(shape)
    full = (1,) * missing + shape
    summed = tuple(i for i, size in enumerate(full) if size != rows.shape[i])
    return rows.sum(summed, keepdims=True).reshape(shape)


def _exact_gate(activation: str | None, gate: np.ndarray | None) -> tuple:
    """(gate_activation(gate), its derivative); 1 and 0 without a gate."""
    if gate is None:
        return 1, 0
    if activation == "sigmoid":
        s = 1 / (1 + np.exp(-gate))
        return s, s * (1 - s)
    return _exact_activation(activation, gate)


def _exact_activation(activation: str | None, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(activation(z), its derivative)."""
    one = np.longdouble(1)
    root_2_over_pi = np.sqrt(2 / np.arccos(-one))
    match activation:
        case None:
            return z, np.ones_like(z)
        case "relu":
            return np.where(z < 0, 0, z), (z > 0).astype(z.dtype)
        case "silu":
            s = 1 / (1 + np.exp(-z))
            return z * s, s * (1 + z * (1 - s))
        case "gelu":
            cdf = (1 + _exact_erf(z / np.sqrt(2 * one))) / 2
            return z * cdf, cdf + z * np.exp(-z * z / 2) * root_2_over_pi / 2
        case "gelu_tanh":
            cubic = np.longdouble("0.044715")
            t = np.tanh(root_2_over_pi * (z + cubic * z**3))
            slope = root_2_over_pi * (1 + 3 * cubic * z * z)
            return z * (1 + t) / 2, (1 + t) / 2 + z * (1 - t * t) * slope / 2
        case _:
            raise ValueError(activation)


def _exact_erf(z: np.ndarray) -> np.ndarray:
    """``2/sqrt(pi) exp(-z^2) sum of 2^n z^(2n+1) / (2n+1)!!``: all terms have one sign, so
    nothing cancels."""
    inner = np.clip(z, -7, 7)  # 1 - erf(7) is far below the last digit
    term = total = inner
    for n in range(1, 300):
        term = term * 2 * inner * inner / (2 * n + 1)
        total = total + term
        if (np.abs(term) <= np.abs(total) * 2.0**-70).all():  # extended precision has 64 bits
            break
    return 2 / np.sqrt(np.arccos(np.longdouble(-1))) * np.exp(-inner * inner) * total


def exact(t: torch.Tensor) -> np.ndarray:
    return t.detach().double().cpu().numpy().astype(np.longdouble)
