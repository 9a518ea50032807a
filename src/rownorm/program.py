"""The row program: its tensors, its options and its results, described once. Every layer follows this description.

    h    = [residual_gate *] (x [+ pre_bias]) [+ residual]
    u    = h [* gate_activation(gate)]                                if gate_first
    z    = (u - mu) * rstd [* (weight + weight_shift)] [+ bias]
    y    = activation(z [* (scale + scale_shift)] [+ shift])
    y    = y [* gate_activation(gate)]                                unless gate_first

From it follow the operators' schemas, the checks, the keys of calls, the numbers that the C and C++ have of the inputs,
what autograd saves, which gradients exist, the rules of vmap and DTensor, the kernels' constant PROGRAM and the tests'
cases. The public signatures and the table of docs/operations.md are written out, and tests compare them with it.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

import torch
from torch import Tensor

Activation = Literal["relu", "silu", "gelu", "gelu_tanh"]
GateActivation = Literal["silu", "sigmoid"]
Rounding = Literal["once", "llama", "each"]
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
GATE_ACTIVATIONS: tuple[GateActivation, ...] = get_args(GateActivation)
ROUNDINGS: tuple[Rounding, ...] = get_args(Rounding)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DEFAULT_EPS = {"layer_norm": 1e-5, "rms_norm": 1e-6}


class Input(NamedTuple):
    """What the other layers have to know of a tensor. Every tensor has a gradient.

    rows: the shape of x. vmap makes a batch more rows, and DTensor may shard any dimension but the last. Autograd saves
    it for backward, unless it is a term of h: then h, or x without a residual, is saved. Its gradient has its shape.
    columns: (n_cols,), the same for every row. vmap calls the operator in a loop, DTensor replicates the tensor,
    autograd saves it for backward, and its gradient is a sum over rows.
    samples: a shape that broadcasts to that of x, such as (batch, 1, n_cols): the rows of a sample share it. vmap and
    DTensor treat its dimensions as those of x that they are broadcast to, autograd saves it for backward, and its
    gradient is a sum over the rows that share it.
    """

    extent: Literal["rows", "columns", "samples"]
    meaning: str
    # h depends on it. Where h is stored, because of a residual, backward does not read it, unless there is a
    # residual_gate, whose gradient depends on the other terms.
    in_h: bool = False
    is_keyword: bool = False  # of the public functions; it comes last in the operators


class Inputs(NamedTuple):
    """The tensors of the row program. This is the order of all code behind the public functions: the rows of h, then
    columns, samples and other rows.
    """

    x: Annotated[Tensor, Input("rows", "the rows to normalize", in_h=True)]
    residual: Annotated[
        Tensor | None, Input("rows", "added to every element before the norm", in_h=True)
    ]
    pre_bias: Annotated[
        Tensor | None,
        Input("columns", "a vector added to every row before the norm", in_h=True, is_keyword=True),
    ]
    weight: Annotated[Tensor | None, Input("columns", "multiplied with the normalized row")]
    bias: Annotated[Tensor | None, Input("columns", "added after the weight")]
    scale: Annotated[
        Tensor | None,
        Input(
            "samples",
            "multiplied after weight and bias; its shape broadcasts to that of `x`, such as `(batch, 1, n_cols)`",
            is_keyword=True,
        ),
    ] = None
    shift: Annotated[
        Tensor | None,
        Input("samples", "added after `scale`; its shape broadcasts, too", is_keyword=True),
    ] = None
    residual_gate: Annotated[
        Tensor | None,
        Input(
            "samples",
            "`add_` functions: multiplied with `x + pre_bias` before the residual is added; its shape broadcasts, too",
            in_h=True,
            is_keyword=True,
        ),
    ] = None
    gate: Annotated[
        Tensor | None,
        Input(
            "rows",
            "a factor for every element, after `gate_activation`: of the result, or with `gate_first` of the row "
            "before the norm",
            is_keyword=True,
        ),
    ] = None

    def has_only(self, *names: str) -> bool:
        """Whether all tensors but these are absent."""
        return all(t is None for name, t in self._asdict().items() if name not in names)


class Option(NamedTuple):
    """What the other layers have to know of an option, beside its type and default.

    values: those that are allowed; without them, any finite number.
    """

    meaning: str
    values: tuple[Any, ...] = ()
    # whether backward depends on it other than through what forward saved
    is_in_backward: bool = True

    @property
    def is_number(self) -> bool:
        """Whether the value is any finite Python number."""
        return not self.values


class Program(NamedTuple):
    """What is computed for a row, apart from the tensors. Every field that has an ``Option`` is a keyword of the public
    functions.
    """

    center: bool  # LayerNorm subtracts the mean, RMSNorm does not
    eps: Annotated[
        float,
        Option("added to the variance; 1e-5 for LayerNorm, 1e-6 for RMSNorm", is_in_backward=False),
    ]
    weight_shift: Annotated[
        float, Option("added to `weight`; 1.0 for models that store `weight - 1`")
    ] = 0.0
    scale_shift: Annotated[float, Option("added to `scale`; 1.0 for models with `1 + scale`")] = 0.0
    activation: Annotated[
        Activation | None,
        Option(
            '`None`, `"relu"`, `"silu"`, `"gelu"` (exact) or `"gelu_tanh"`, applied last, before a gate of the result',
            (None, *ACTIVATIONS),
        ),
    ] = None
    gate_activation: Annotated[
        GateActivation | None,
        Option('`None`, `"silu"` or `"sigmoid"`, applied to `gate`', (None, *GATE_ACTIVATIONS)),
    ] = None
    gate_first: Annotated[
        bool,
        Option(
            "whether rows are multiplied with the gate before the norm, not after it", (False, True)
        ),
    ] = False
    rounding: Annotated[
        Rounding,
        Option(
            '`"once"`, as PyTorch; `"llama"`: the normalized row is rounded to the dtype of `x` before the weight, and '
            "the product with it before a gate, as the Llama and Qwen models of transformers do; or "
            '`"each"`: every step is, as where each is an operator of PyTorch',
            ROUNDINGS,
        ),
    ] = "once"
    # Of the rows that are computed: y in forward, dx in backward. None: that of the rows that are read, x or dy.
    out_dtype: Annotated[
        torch.dtype | None,
        Option(
            "the dtype of `y`; without it, that of `x`. Every gradient has the dtype of its tensor",
            (None, *DTYPES),
        ),
    ] = None
    # How it is computed: the same bits in any batch. Not a keyword, but the mode ``rownorm.batch_invariant``.
    batch_invariant: bool = False

    @property
    def name(self) -> str:
        """The public function without a residual."""
        return "layer_norm" if self.center else "rms_norm"

    def result_dtype(self, rows: torch.dtype) -> torch.dtype:
        """The dtype of y, given that of x; in backward that of dx, given that of dy."""
        return rows if self.out_dtype is None else self.out_dtype

    def for_backward(self, x_dtype: torch.dtype) -> Program:
        """The program of the backward pass, whose result dx has the dtype of x."""
        return self if self.out_dtype is None else self._replace(out_dtype=x_dtype)

    def keywords(self) -> dict[str, Any]:
        """The options as keywords of the public function."""
        return {name: getattr(self, name) for name in OPTIONS}

    def operator_keywords(self) -> dict[str, Any]:
        """All fields but ``center`` as keywords of the operator."""
        return {name: getattr(self, name) for name in self._fields if name != "center"}

    def has_only(self, *options: str) -> bool:
        """Whether all options but these have their defaults. ``eps`` has none and need not be named."""
        return all(
            getattr(self, name) == default
            for name, default in self._field_defaults.items()
            if name not in options
        )


def _described(fields: type) -> dict[str, Any]:
    """The ``Input`` or ``Option`` of each field that has one, by name."""
    types = get_type_hints(fields, include_extras=True)
    return {
        name: kind.__metadata__[0] for name, kind in types.items() if hasattr(kind, "__metadata__")
    }


# A keyword of the public functions that is no field of ``Program``: ``ops.groups`` makes rows of the groups.
GROUP_COLS = Option(
    "statistics are those of groups of so many columns, as in Mamba2; `None`: of the whole row. Not beside `pre_bias`, "
    "`scale`, `shift` and `residual_gate`"
)
INPUTS: dict[str, Input] = _described(Inputs)
OPTIONS: dict[str, Option] = _described(Program)
# Results of forward. mu and rstd, one number for each row, are for backward.
RESULTS = ("y", "h", "mu", "rstd")

ROWS = tuple(name for name, one in INPUTS.items() if one.extent == "rows")
COLUMNS = tuple(name for name, one in INPUTS.items() if one.extent == "columns")
SAMPLES = tuple(name for name, one in INPUTS.items() if one.extent == "samples")
PARAMETERS = (*COLUMNS, *SAMPLES)
ROWS_OF_H = tuple(name for name in ROWS if INPUTS[name].in_h)
# Only where there is a residual: not arguments of layer_norm and rms_norm.
WITH_RESIDUAL = ("residual", "residual_gate")
# In the order of the public functions and the operators.
ARGUMENTS = tuple(sorted(INPUTS, key=lambda name: (INPUTS[name].is_keyword, name not in ROWS_OF_H)))
# What autograd saves. Without a residual, h is x; x itself is saved beside h for the gradient of a residual_gate.
SAVED = ("h", *(name for name in INPUTS if name not in ROWS_OF_H), "x", "mu", "rstd")
BACKWARD_INPUTS = ("dy", "dh", *SAVED)
BACKWARD_ROWS = tuple(name for name in BACKWARD_INPUTS if name not in (*PARAMETERS, "mu", "rstd"))
GRADIENTS = tuple(f"d{name}" for name in INPUTS)
COLUMN_SUMS = tuple(f"d{name}" for name in COLUMNS)
SAMPLE_SUMS = tuple(f"d{name}" for name in SAMPLES)


def named(inputs: Any, names: tuple[str, ...]) -> tuple[Tensor | None, ...]:
    """The tensors of these names, of ``Inputs`` or of backward's inputs."""
    return tuple(getattr(inputs, name) for name in names)


_numbers = itemgetter(
    *(Program._fields.index(name) for name, one in OPTIONS.items() if one.is_number)
)


def has_numbers(options: tuple[Any, ...]) -> bool:
    """Whether options that are numbers are Python's, as ``ops.checks`` demands. True equals 1, but it is no number.

    options: a Program, or its fields in a plain tuple.
    """
    for value in _numbers(options):
        if type(value) is not float and (
            isinstance(value, bool) or not isinstance(value, int | float)
        ):
            return False
    return True


def is_in_backward(field: str) -> bool:
    """Whether backward depends on this field of a Program other than through what forward saved."""
    return field not in OPTIONS or OPTIONS[field].is_in_backward


def c_definitions() -> tuple[str, ...]:
    """Compiler flags that tell the C and C++ the inputs, which of them are terms of h, and the options."""
    numbers = {f"INPUT_{name.upper()}": i for i, name in enumerate(INPUTS)}
    numbers |= {f"OPTION_{name.upper()}": i for i, name in enumerate(Program._fields)}
    terms_of_h = sum(1 << i for i, one in enumerate(INPUTS.values()) if one.in_h)
    are_numbers = sum(1 << Program._fields.index(o) for o, one in OPTIONS.items() if one.is_number)
    sizes = {"N_INPUTS": len(INPUTS), "N_ROWS_OF_H": len(ROWS_OF_H), "N_SAVED": len(SAVED)}
    values = {**numbers, **sizes, "N_OPTIONS": len(Program._fields)}
    values |= {"TERMS_OF_H": terms_of_h, "NUMBER_OPTIONS": are_numbers}
    return tuple(f"-D{name}={value}" for name, value in values.items())
