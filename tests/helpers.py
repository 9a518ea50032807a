"""Cases, an oracle, PyTorch's own answer, and the one criterion that compares them.

The oracle is the row program in numpy's extended precision, forward and backward written out, so
that even fp64 can be judged, and neither PyTorch nor ``rownorm.reference`` has a part in it.

The criterion: at every element

    |ours - oracle| <= 1.25 * (PyTorch's largest error) + one rounding to the output dtype
"""

import itertools
import random
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

import rownorm
from rownorm.launch import device_of, force
from rownorm.program import ACTIVATIONS, ROUNDINGS, Program
from rownorm.reference import compute_dtype

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INPUTS = ("x", "residual", "pre_bias", "weight", "bias")
ON_GPU = torch.cuda.is_available()
HAS_CLUSTERS = ON_GPU and bool(device_of(0).clusters)

# Every regime on rows of a few dozen columns: several tiles, chunks and parts, the last not full.
FORCED = {
    "tile": {"regime": "tile", "block_rows": 4},
    "resident": {"regime": "resident", "block_cols": 32},
    "cluster": {
        "regime": "cluster",
        "cluster_size": 2 if HAS_CLUSTERS else 1,
        "block_cols": 32,
        "num_warps": 1,
    },
    # The interpreter runs one program after another: there a row has one part, and a block of its own width.
    "grid": {"regime": "grid", "pipeline_depth": 2}
    | ({"block_cols": 32, "num_warps": 1} if ON_GPU else {}),
    "looped": {"regime": "looped", "block_cols": 32},
    "split": {"regime": "split", "block_cols": 32, "part_cols": 64},
}
REGIMES = tuple(FORCED)


def forced(regime: str, **settings):
    """Plans of this regime, with blocks small enough that small rows need several of them."""
    return force(**(FORCED[regime] | settings))


@dataclass(frozen=True)
class Case:
    """One call of the library, apart from the numbers in its tensors."""

    center: bool
    dtype: torch.dtype = torch.float32
    shape: tuple[int, ...] = (3, 70)
    data: str = "normal"
    residual_dtype: torch.dtype | None = None
    pre_bias: bool = False
    weight: bool = True
    bias: bool = False
    parameter_dtype: torch.dtype | None = None  # None: that of x
    activation: str | None = None
    weight_shift: float = 0.0
    rounding: str = "once"
    eps: float | None = None  # None: the default of the operation

    @property
    def program(self) -> Program:
        eps = self.eps if self.eps is not None else (1e-5 if self.center else 1e-6)
        return Program(self.center, eps, self.weight_shift, self.activation, self.rounding)

    @property
    def options(self) -> dict:
        options = self.program._asdict()
        del options["center"]
        return options

    def tensors(self, device: str) -> dict[str, torch.Tensor | None]:
        """The inputs by name, and ``dy`` and ``dh``."""
        n_cols = self.shape[-1]

        def parameter(present: bool, around: float):
            if not present:
                return None
            values = around + 0.3 * torch.randn(n_cols)
            return values.to(device, self.parameter_dtype or self.dtype)

        def rows(dtype, data: str = "normal"):
            return (
                None
                if dtype is None
                else make_rows(data, self.shape, dtype, self.program).to(device)
            )

        return {
            "x": rows(self.dtype, self.data),
            "residual": rows(self.residual_dtype),
            "pre_bias": parameter(self.pre_bias, 0.0),
            "weight": parameter(self.weight, 1.0 - self.weight_shift),
            "bias": parameter(self.bias, 0.0),
            "dy": rows(self.dtype),
            "dh": rows(self.residual_dtype),
        }


# Data.

DATA = (
    "normal",
    "offset",
    "step",
    "constant",
    "constant_huge",
    "near_eps",
    "huge",
    "overflowing",
    "denormal",
    "outliers",
)


def make_rows(data: str, shape: tuple[int, ...], dtype: torch.dtype, program: Program):
    """Rows of one kind, in ``dtype``. Magnitudes are set by what the dtype and its squares can
    hold."""
    largest = torch.finfo(dtype).max
    computed_largest = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).max
    normal = torch.randn(shape, dtype=torch.float64)
    per_row = torch.randn(*shape[:-1], 1, dtype=torch.float64).expand(shape)
    huge = min(1e4, largest / 8) if dtype == torch.float16 else computed_largest**0.5 / 64
    match data:
        case "normal":
            rows = normal
        case "offset":
            rows = normal + 1e4
        case "step":  # where a row begins says little about the rest of it
            rows = normal + 1e3 * (torch.arange(shape[-1]) < shape[-1] // 5)
        case "constant":
            rows = 10 * per_row
        case "constant_huge":
            rows = huge * per_row
        case "near_eps":
            rows = normal * program.eps**0.5
        case "huge":
            rows = huge * normal
        case (
            "overflowing"
        ):  # their squares do not fit, except those of fp16, which is computed in fp32
            rows = 1e3 * computed_largest**0.5 * normal if dtype != torch.float16 else huge * normal
        case "denormal":
            rows = normal * torch.finfo(dtype).tiny / 16
        case "outliers":
            rows = torch.where(torch.rand(shape) < 0.05, 1e3 * normal, normal)
        case _:
            raise ValueError(data)
    return rows.to(dtype)


# Three answers, each a dict of outputs and gradients by name.


def call(case: Case, tensors: dict) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The public function for a case: (y, h)."""
    name = "layer_norm" if case.center else "rms_norm"
    parameters = {n: tensors[n] for n in ("weight", "bias", "pre_bias")}
    if tensors["residual"] is None:
        return getattr(rownorm, name)(tensors["x"], **parameters, **case.options), None
    operation = getattr(rownorm, f"add_{name}")
    return operation(tensors["x"], tensors["residual"], **parameters, **case.options)


def outputs_and_gradients(function, tensors: dict, wanted=INPUTS) -> dict[str, torch.Tensor]:
    """y, [h,] and the gradients of those inputs that are wanted and present."""
    given = dict(tensors)
    leaves = [name for name in wanted if tensors[name] is not None]
    for name in leaves:
        given[name] = tensors[name].detach().requires_grad_()
    y, h = function(given)
    outputs = [y] if h is None else [y, h]
    cotangents = [tensors["dy"], tensors["dh"]][: len(outputs)]
    made = {"y": y.detach()} if h is None else {"y": y.detach(), "h": h.detach()}
    gradients = torch.autograd.grad(outputs, [given[name] for name in leaves], cotangents)
    return made | {f"d{name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}


def ours(case: Case, tensors: dict) -> dict[str, torch.Tensor]:
    return outputs_and_gradients(lambda given: call(case, given), tensors)


def torch_own(case: Case, tensors: dict, *, h_rounded: bool = True) -> dict[str, torch.Tensor]:
    """What PyTorch makes of a case.

    A plain norm in one dtype is ``F.layer_norm`` or ``F.rms_norm`` itself. Anything else is
    composed in fp32 (fp64 for fp64) and rounded where the row program rounds, which is stricter
    than composing it in the dtype of x. With ``h_rounded`` the norm sees the residual stream as it
    is stored, as it does in eager PyTorch.
    """
    plain = Case(case.center, case.dtype, case.shape, weight=case.weight, bias=case.bias)
    torch_has_it = case.center or not case.bias
    if torch_has_it and replace(case, data="normal", eps=None) == plain:
        return outputs_and_gradients(lambda given: (_torch_norm(case, given), None), tensors)
    compute = compute_dtype(tensors["x"], tensors["residual"])
    wide = {name: None if t is None else t.to(compute) for name, t in tensors.items()}

    def composition(given: dict):
        h = given["x"]
        for name in ("pre_bias", "residual"):
            h = h if given[name] is None else h + given[name]
        stream = None if given["residual"] is None else h
        if stream is not None and h_rounded:
            h = _rounded_straight_through(h, case.residual_dtype)
        weight = given["weight"]
        if case.rounding == "llama":
            z = _torch_norm(case, {"x": h, "weight": None, "bias": None})
            z = _rounded_straight_through(z, case.dtype)
            z = z if weight is None else z * (weight + case.weight_shift)
        else:
            scale = None if weight is None else weight + case.weight_shift
            z = _torch_norm(case, {"x": h, "weight": scale, "bias": None})
        z = z if given["bias"] is None else z + given["bias"]
        return _torch_activation(case.activation, z), stream

    made = outputs_and_gradients(composition, wide)
    return {name: rounded(value, output_dtype(name, tensors)) for name, value in made.items()}


def _torch_norm(case: Case, given: dict):
    x, shape, eps = given["x"], (case.shape[-1],), case.program.eps
    if case.center:
        return F.layer_norm(x, shape, given["weight"], given["bias"], eps)
    return F.rms_norm(x, shape, given["weight"], eps)


def _torch_activation(activation: str | None, z: torch.Tensor) -> torch.Tensor:
    functions = {
        None: lambda z: z,
        "relu": F.relu,
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    }
    return functions[activation](z)


def oracle(case: Case, tensors: dict) -> dict[str, np.ndarray]:
    """The row program and its derivative in extended precision; no value is rounded anywhere."""
    given = {name: None if t is None else exact(t) for name, t in tensors.items()}
    zero = np.longdouble(0)
    x, weight, dh = given["x"], given["weight"], given["dh"]
    pre_bias = zero if given["pre_bias"] is None else given["pre_bias"]
    residual = zero if given["residual"] is None else given["residual"]
    bias = zero if given["bias"] is None else given["bias"]
    scale = 1 if weight is None else weight + np.longdouble(case.weight_shift)

    def mean(row):
        return row.mean(-1, keepdims=True)

    h = x + pre_bias + residual
    deviation = h - mean(h) if case.center else h
    rstd = 1 / np.sqrt(mean(deviation**2) + np.longdouble(case.program.eps))
    x_hat = deviation * rstd
    y, slope = _exact_activation(case.activation, x_hat * scale + bias)

    dz = given["dy"] * slope
    g = dz * scale
    dx = rstd * (g - x_hat * mean(g * x_hat) - (mean(g) if case.center else 0))
    dx = dx if dh is None else dx + dh
    n_cols = x.shape[-1]
    made = {"y": y, "h": h, "dx": dx, "dresidual": dx}
    for name, rows in (("dpre_bias", dx), ("dweight", dz * x_hat), ("dbias", dz)):
        made[name] = rows.reshape(-1, n_cols).sum(0)
    present = ["y", *(f"d{name}" for name in INPUTS if given[name] is not None)]
    if given["residual"] is not None:
        present.append("h")
    return {name: made[name] for name in present}


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
    """``2/sqrt(pi) exp(-z^2) sum of 2^n z^(2n+1) / (2n+1)!!``: all terms of one sign, so nothing
    cancels."""
    inner = np.clip(z, -7, 7)  # 1 - erf(7) is far below the last digit
    term = total = inner
    for n in range(1, 300):
        term = term * 2 * inner * inner / (2 * n + 1)
        total = total + term
    return 2 / np.sqrt(np.arccos(np.longdouble(-1))) * np.exp(-inner * inner) * total


# Rounding and the criterion.


def truncates(dtype: torch.dtype) -> bool:
    """Triton's interpreter cuts fp32 off to bf16 where a GPU rounds: a rounding there is a whole
    ulp, not half of one.

    This is the only place where the interpreter is judged differently from a GPU.
    """
    return dtype == torch.bfloat16 and not ON_GPU


def rounded(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``t`` in ``dtype``, as a kernel stores it."""
    if truncates(dtype):
        t = (t.float().view(torch.int32) & -0x10000).view(torch.float32)
    return t.to(dtype)


def one_rounding(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The most that one store to ``dtype`` changes each value by: half an ulp, subnormals
    included."""
    limits = torch.finfo(dtype)
    _, exponent = np.frexp(np.maximum(np.abs(values), limits.tiny))
    ulp = np.ldexp(np.longdouble(limits.eps), exponent - 1)
    return ulp if truncates(dtype) else ulp / 2


def exact(t: torch.Tensor) -> np.ndarray:
    return t.detach().double().cpu().numpy().astype(np.longdouble)


def output_dtype(name: str, tensors: dict) -> torch.dtype:
    """The dtype of an output, ``y`` or ``h``, or of a gradient, ``d<input>``."""
    return tensors[{"y": "x", "h": "residual"}.get(name, name.removeprefix("d"))].dtype


def errors(values: torch.Tensor, truth: np.ndarray) -> np.ndarray:
    """|values - truth|; an infinity or NaN where the truth is finite is an infinite error."""
    values = exact(values)
    with np.errstate(invalid="ignore"):
        difference = np.abs(values - truth)
    return np.where(np.isfinite(values), difference, np.inf)


def largest_errors(by_torch: dict, truth: dict) -> dict[str, float]:
    """PyTorch's largest error, by output; where PyTorch overflows it has none."""
    return {
        name: np.where(
            asked(by_torch[name], truth[name]), errors(by_torch[name], truth[name]), 0
        ).max(initial=0)
        for name in truth
    }


def asked(by_torch: torch.Tensor, truth: np.ndarray) -> np.ndarray:
    """The elements that are judged: those that the dtype can hold and PyTorch can compute."""
    representable = np.abs(truth) <= torch.finfo(by_torch.dtype).max
    return representable & np.isfinite(exact(by_torch))


def assert_case(case: Case, tensors: dict, *, made: dict | None = None, batches: int = 48) -> None:
    """The criterion for every output and gradient of a case, run here or ``made`` already.

    Of one batch, PyTorch's largest error is a matter of luck: from seed to seed it varies by half.
    So it is taken over these tensors and ``batches`` further draws of the same kind: what PyTorch
    may be wrong by on such data.
    """
    made = ours(case, tensors) if made is None else made
    device = tensors["x"].device
    drawn = [tensors, *(case.tensors(device) for _ in range(batches))]
    truths = [oracle(case, batch) for batch in drawn]
    _assert_close(case, made, drawn, truths, tuple(truths[0]))
    if case.residual_dtype is not None:  # the norm sees the residual stream before it is rounded
        _assert_close(case, made, drawn, truths, ("y", "h"), h_rounded=False)


def _assert_close(case: Case, made: dict, drawn: list, truths: list, names: tuple, **how) -> None:
    by_torch = [torch_own(case, batch, **how) for batch in drawn]
    largest = [largest_errors(own, truth) for own, truth in zip(by_torch, truths, strict=True)]
    assert made.keys() == truths[0].keys()
    for name in names:
        value, own, truth = made[name], by_torch[0][name], truths[0][name]
        assert value.dtype == own.dtype, f"{name}: {value.dtype}, PyTorch gives {own.dtype}"
        assert value.shape == own.shape, f"{name}: {value.shape}, PyTorch gives {own.shape}"
        torch_error = max(batch[name] for batch in largest)
        error = np.where(asked(own, truth), errors(value, truth), 0)
        allowed = 1.25 * torch_error + one_rounding(truth, value.dtype)
        worst = np.unravel_index(np.argmax(error - allowed), error.shape) if error.size else ()
        assert (error <= allowed).all(), (
            f"{name}{[int(i) for i in worst]}: {float(exact(value)[worst])}, should be "
            f"{float(truth[worst])}; error {float(error[worst]):.3g}, allowed "
            f"{float(allowed[worst]):.3g}, PyTorch's largest {float(torch_error):.3g}"
        )


def _rounded_straight_through(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return t + (rounded(t.detach(), dtype).to(t.dtype) - t.detach())


def assert_gradients_at_what_is_kept(dtype: torch.dtype, n_cols: int, device, **options):
    """Rows of a 16-bit residual stream that vary less than they are rounded: LayerNorm's gradients are those at the
    ``h`` that is returned, which is all that backward has of them."""
    case = Case(True, dtype, (6, n_cols), residual_dtype=dtype, **options)
    tensors = case.tensors(device)
    spacing = 16 * torch.finfo(dtype).eps  # of numbers from 16 to 32
    tensors["dh"] = torch.zeros_like(tensors["dh"])
    tensors["x"][:2] = 20
    tensors["residual"][0] = 0.4 * spacing  # constant, and stays so
    few = torch.arange(n_cols, device=device) % 7 == 3
    tensors["residual"][1] = torch.where(few, 0.6 * spacing, 0.4 * spacing)
    tensors["x"][2] = 20 + 4 * spacing * tensors["x"][2]
    tensors["x"][3] = 1000 + 10 * tensors["x"][3]
    tensors["x"][4] = 1e7 if dtype == torch.bfloat16 else 6e4  # and all that is added is lost
    made = ours(case, tensors)

    h, weight = (t.double().requires_grad_() for t in (made["h"], tensors["weight"]))
    dy, eps = tensors["dy"].double(), case.program.eps
    torch.layer_norm(h, (n_cols,), weight, None, eps).backward(dy)
    g = (dy * weight).detach().abs().amax(1, keepdim=True)
    rstd = (h.detach().var(1, keepdim=True, correction=0) + eps).rsqrt()
    assert ((made["dx"] - h.grad).abs() <= 2.0**-6 * rstd * g).all()
    assert ((made["dweight"] - weight.grad).abs() <= 2.0**-6 * dy.abs().sum(0)).all()


def assert_same_bits(a: torch.Tensor | None, b: torch.Tensor | None) -> None:
    if a is None or b is None:
        assert a is b
        return
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    different = a.contiguous().view(bits) != b.contiguous().view(bits)
    assert not different.any(), f"{int(different.sum())} of {different.numel()} elements differ"


# Covering options.


def covering(seed: int, **choices) -> list[dict]:
    """Combinations in which every pair of choices of any two options occurs: pairwise testing."""
    draw = random.Random(seed)
    names = list(choices)
    missing = {
        (a, i, b, j)
        for a, b in itertools.combinations(range(len(names)), 2)
        for i in range(len(choices[names[a]]))
        for j in range(len(choices[names[b]]))
    }

    def pairs(combination):
        places = itertools.combinations(enumerate(combination), 2)
        return {(a, i, b, j) for (a, i), (b, j) in places} & missing

    chosen = []
    while missing:
        candidates = []
        for a, i, b, j in draw.sample(sorted(missing), min(20, len(missing))):
            combination = [draw.randrange(len(choices[name])) for name in names]
            combination[a], combination[b] = i, j
            candidates.append(combination)
        best = max(candidates, key=lambda combination: len(pairs(combination)))
        missing -= pairs(best)
        chosen.append({name: choices[name][i] for name, i in zip(names, best, strict=True)})
    return chosen


# Options in all pairs.


OTHER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.bfloat16,
    torch.float64: torch.float32,
}  # the dtype of a residual stream or of parameters that is not that of x


def combinations(seed: int) -> list[Case]:
    """Cases in which every pair of choices occurs."""
    chosen = covering(
        seed,
        center=(True, False),
        dtype=DTYPES,
        residual=(None, "same", "other"),
        pre_bias=(False, True),
        weight=(None, "same", "other"),
        bias=(False, True),
        activation=(None, *ACTIVATIONS),
        weight_shift=(0.0, 1.0),
        rounding=ROUNDINGS,
    )

    def case(center, dtype, residual, pre_bias, weight, bias, activation, weight_shift, rounding):
        return Case(
            center=center,
            dtype=dtype,
            shape=(3, 45),
            residual_dtype={None: None, "same": dtype, "other": OTHER[dtype]}[residual],
            pre_bias=pre_bias,
            weight=weight is not None,
            bias=bias,
            parameter_dtype=OTHER[dtype] if weight == "other" else None,
            activation=activation,
            weight_shift=weight_shift if weight else 0.0,
            rounding=rounding,
        )

    return [case(**one) for one in chosen]


def name_of(case: Case) -> str:
    options = [case.program.name, str(case.dtype).removeprefix("torch.")]
    for name in ("residual_dtype", "parameter_dtype"):
        if (dtype := getattr(case, name)) is not None:
            options.append(f"{name}={str(dtype).removeprefix('torch.')}")
    options += [name for name in ("pre_bias", "weight", "bias") if getattr(case, name)]
    options += [name for name in (case.activation, case.rounding) if name not in (None, "once")]
    return "-".join(options + (["shift"] if case.weight_shift else []))
