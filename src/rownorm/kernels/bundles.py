"""Bundles of kernel arguments. A kernel builds them in its first lines and passes them to its helpers.

Kernel signatures stay flat, because the launcher binds arguments by name. There are two kinds of bundles:

    constants    ``TILING: tl.constexpr = Tiling(...)``, passed to ``TILING: tl.constexpr`` parameters. Fields are
                 UPPER CASE. ``SPEC`` comes from the launch as one constant, PROGRAM.
    values       ``source = Source(...)``: pointers (None where a tensor is absent), tensors and run-time integers.

Strides and sizes are passed to kernels divided by DIVISIBILITY, the largest power of two up to 16 that divides all of
them. Kernels multiply them with it, which tells the compiler that 16-byte accesses are aligned.

Rows may be in groups, such as the heads of a token in a projection of queries, keys and values: GROUP_ROWS rows with a
constant stride, then a gap. GROUP_ROWS is 0 where no tensor has groups.

Triton turns a constant into a run-time value when a bundle with it is assigned to a plain name, so no bundle mixes
both. A helper cannot return None in Triton 3.6, so an optional tile is a tuple of one tile or none.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

# Integers of the kernels. None of them may be a constant of a compiled kernel, not even 1 or a multiple of 16.
# Where samples are, and where a gate is; None where there are none, so that these kernels have no such arguments.
SAMPLE_INTEGERS = (
    *("scale_row_stride", "shift_row_stride", "rows_per_sample", "n_samples"),
    "residual_gate_row_stride",
)
GATE_INTEGERS = ("gate_row_stride", "gate_group_gap")
FORWARD_INTEGERS = (
    "x_row_stride",
    "residual_row_stride",
    "n_rows",
    "n_cols",
    "n_parts",
    "part_blocks",
    "x_group_gap",
    "residual_group_gap",
    *SAMPLE_INTEGERS,
    "rows_per_program",
    *GATE_INTEGERS,
)
BACKWARD_INTEGERS = (
    "dy_row_stride",
    "dh_row_stride",
    "h_row_stride",
    "n_rows",
    "n_cols",
    "n_parts",
    "part_blocks",
    "part_cols",
    "n_col_blocks",
    "rows_per_program",
    "n_partials",
    "dy_group_gap",
    "dh_group_gap",
    "h_group_gap",
    *SAMPLE_INTEGERS,
    "sample_rows",
    "span_rows",
    "spans_per_sample",
    *GATE_INTEGERS,
    "x_row_stride",
    "x_group_gap",
)


class Spec(NamedTuple):
    """Constants: what is computed. ``launch.rows.kernel_program`` takes a field from the option with its name."""

    CENTER: Any  # whether the mean is subtracted (LayerNorm) or not (RMSNorm)
    EPS: Any  # added to the variance; None in backward, where rstd is an input
    WEIGHT_SHIFT: Any  # x_hat is multiplied by weight + WEIGHT_SHIFT
    SCALE_SHIFT: Any  # what follows is multiplied by scale + SCALE_SHIFT
    ACTIVATION: Any  # "relu", "silu", "gelu", "gelu_tanh" or None
    GATE_ACTIVATION: Any  # "silu", "sigmoid" or None
    GATE_FIRST: Any  # whether h is multiplied with the gate, not y
    ROUND_X_HAT_TO: Any  # the dtype that x_hat is rounded to before the weight is applied, or None
    ROUND_EACH_TO: Any  # the dtype that the result of every step is rounded to, or None
    STORED_H_DTYPE: (
        Any  # forward: the dtype of h where rounding to it changes mu and rstd; else None
    )
    COMPUTE_DTYPE: Any  # of all arithmetic: fp32, or fp64 where a row is fp64


_INTERPRETING = bool(triton.knobs.runtime.interpret)
_DTYPES = ("ROUND_X_HAT_TO", "ROUND_EACH_TO", "STORED_H_DTYPE", "COMPUTE_DTYPE")


@triton.constexpr_function
def spec_of(program):
    """The ``Spec`` of the constant PROGRAM, which is a ``Spec`` with names of dtypes ("fp32").

    Triton writes every constant as JSON for a program that hooks into its compiler (torch's NVSHMEM does). That fails
    for a dtype in a tuple. Triton may pass the tuple without its names, so its order counts.
    """
    values = []
    for name, value in zip(Spec._fields, program):  # noqa: B905
        is_dtype = name in _DTYPES and value is not None
        values.append(tl.dtype(value) if is_dtype else value)
    # In a compiled kernel a field is passed to helpers, and Triton 3.6 passes strings on as constants only. The
    # interpreter has no constants.
    return Spec(*values) if _INTERPRETING else Spec(*map(tl.constexpr, values))


class Tiling(NamedTuple):
    """Constants: a program's columns of a row are NUM_CHUNKS tiles of BLOCK_COLS columns."""

    BLOCK_COLS: Any  # columns of a tile, a power of two
    NUM_CHUNKS: Any  # tiles
    FULL_CHUNKS: Any  # so many tiles, from the first on, surely have no column beyond the row and need no mask


class Chunking(NamedTuple):
    """Constants: a loop over columns of a row takes BLOCK_COLS at a time."""

    BLOCK_COLS: Any
    EVEN_COLS: Any  # whether the number of columns is a multiple of BLOCK_COLS, so that no chunk needs a mask


class Columns(NamedTuple):
    """The columns that a program has in registers."""

    first: Any  # (1, BLOCK_COLS), the columns of the first chunk
    n_cols: Any  # of the whole row: columns from here on do not exist


class ColumnRange(NamedTuple):
    """Columns ``start`` to ``end`` of a row, which a program loads in a loop."""

    start: Any
    end: Any


class Source(NamedTuple):
    """Where ``h = [residual_gate *] (x [+ pre_bias]) [+ residual]``, and a gate, come from: forward's inputs at certain
    rows.
    """

    x_ptr: Any
    residual_ptr: Any
    pre_bias_ptr: Any
    residual_gate_ptr: Any
    gate_ptr: Any
    x_row: Any  # elements from x_ptr to the row, a number or (rows, 1)
    residual_row: Any
    residual_gate_row: Any  # this and the next: 0 where the tensor is absent
    gate_row: Any


class Outputs(NamedTuple):
    """Where forward stores certain rows."""

    y_ptr: Any
    h_ptr: Any  # None: h is not stored
    row: Any  # elements from the pointers to the row, a number or (rows, 1)


class Matrix(NamedTuple):
    """A tensor of rows."""

    ptr: Any  # None where the tensor is absent
    row_stride: Any  # divided by DIVISIBILITY, as in a kernel's arguments; ``memory.row_offset`` multiplies it again
    group_gap: Any  # added after every GROUP_ROWS rows, divided in the same way; 0 where all rows have one stride


class Modulation(NamedTuple):
    """Where scale, shift and residual_gate come from: a row of each for every sample. ``memory.offsets_of_row`` finds
    that of x.
    """

    scale_ptr: Any
    shift_ptr: Any
    residual_gate_ptr: Any
    scale_row_stride: Any  # divided by DIVISIBILITY
    shift_row_stride: Any
    residual_gate_row_stride: Any  # None without a residual_gate
    rows_per_sample: Any  # None: there are no samples
    n_samples: Any


class ParameterPointers(NamedTuple):
    """Where weight and bias come from, and scale and shift of certain rows."""

    weight_ptr: Any
    bias_ptr: Any
    scale_ptr: Any
    shift_ptr: Any
    scale_row: Any  # elements from scale_ptr to the sample of the row, a number or (rows, 1); 0 without samples
    shift_row: Any


class Parameters(NamedTuple):
    """Loaded parameters: a tuple of tiles each, empty where the parameter is absent.

    weight, bias: (1, BLOCK_COLS). scale, shift: the same, or (rows, BLOCK_COLS) where rows of several samples are in a
    tile.
    """

    weight: Any
    bias: Any
    scale: Any
    shift: Any


class Statistics(NamedTuple):
    """Where mu and rstd, one number per row, are stored or loaded."""

    mu_ptr: Any  # forward: None if the statistics are not wanted
    rstd_ptr: Any
