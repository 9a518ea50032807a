"""Loads and stores of rows and parameters.

    h = [residual_gate *] (x [+ pre_bias]) [+ residual]

Tiles are (rows, columns), a number per row is (rows, 1), a parameter is (1, columns). A tile has a power of two
columns, a row need not have: it is a tuple of tiles, the chunks, and only the last chunks reach beyond the row. Lanes
there are loaded as 0. Values are widened to COMPUTE_DTYPE after they are loaded and rounded once, when they are stored.

Cache hints, measured on an H200: loads of rows with ``evict_last`` and stores with ``.cg`` (past L1) move rows 1 to 4%
faster, even rows that are loaded once. Either hint alone makes them slower.
"""

import triton
import triton.language as tl

from .bundles import Parameters
from .target import INTERPRETED, on_nvidia


@triton.jit
def in_range(index, limit, ALWAYS: tl.constexpr):
    """``index < limit``; a constant, which costs nothing, where it is known to hold."""
    if ALWAYS:
        return tl.full(index.shape, True, tl.int1)
    else:
        return index < limit


@triton.jit
def chunk(columns, C: tl.constexpr, TILING: tl.constexpr):
    """(the columns of chunk C, whether they exist), both (1, BLOCK_COLS)."""
    cols = C * TILING.BLOCK_COLS + columns.first
    return cols, in_range(cols, columns.n_cols, C < TILING.FULL_CHUNKS)


@triton.jit
def row_offset(matrix, row, DIVISIBILITY: tl.constexpr, GROUP_ROWS: tl.constexpr):
    """Elements from the pointer of a ``Matrix`` to a row, or to several. Constants: see ``bundles``."""
    offset = row * matrix.row_stride * DIVISIBILITY
    if GROUP_ROWS > 0:
        offset += row // GROUP_ROWS * matrix.group_gap * DIVISIBILITY
    return offset


@triton.jit
def optional_row_offset(matrix, row, DIVISIBILITY: tl.constexpr, GROUP_ROWS: tl.constexpr):
    """As ``row_offset``; 0 where the tensor is absent."""
    if matrix.ptr is not None:
        return row_offset(matrix, row, DIVISIBILITY, GROUP_ROWS)
    else:
        return 0


@triton.jit
def widen(x, COMPUTE_DTYPE: tl.constexpr):
    """``x`` in COMPUTE_DTYPE. A bf16 is the upper half of an fp32: one shift or mask, where a conversion takes two
    instructions.
    """
    if x.dtype == tl.bfloat16 and COMPUTE_DTYPE == tl.float32:
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(COMPUTE_DTYPE)


@triton.jit
def round_to(x, DTYPE: tl.constexpr, COMPUTE_DTYPE: tl.constexpr):
    """``x`` rounded to DTYPE and back in COMPUTE_DTYPE; ``x`` itself where DTYPE is None."""
    if DTYPE is not None:
        return x.to(DTYPE).to(COMPUTE_DTYPE)
    else:
        return x


@triton.jit
def load_pipelined(pointers, ok, COMPUTE_DTYPE: tl.constexpr, UNPACK_PAIRS: tl.constexpr = True):
    """A tile that a software-pipelined loop loads, in COMPUTE_DTYPE; 0 where ``ok`` is false.

    The compiler turns such a load into a copy to shared memory some iterations earlier (Triton 3.6 drops its hint);
    with one stage it is a plain load. For two bf16 in one word of shared memory the compiler emits three instructions:
    it extracts the upper one, then shifts it back. UNPACK_PAIRS takes two, in some kernels with more registers.
    """
    x = tl.load(pointers, mask=ok, other=0.0, eviction_policy="evict_last")
    IS_BF16: tl.constexpr = x.dtype == tl.bfloat16 and COMPUTE_DTYPE == tl.float32
    if UNPACK_PAIRS and IS_BF16 and not INTERPRETED and on_nvidia():
        return tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;",
            "=r,=r,r",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )
    else:
        return widen(x, COMPUTE_DTYPE)


@triton.jit
def sample_of(row, modulation):
    """The sample of a row, or of several. In 32 bits, where a division takes a fifth of the instructions."""
    group = tl.cast(row, tl.uint32) // tl.cast(modulation.rows_per_sample, tl.uint32)
    return group % tl.cast(modulation.n_samples, tl.uint32)


@triton.jit
def offsets_of_sample(sample, modulation, DIVISIBILITY: tl.constexpr):
    """Elements from the pointers of scale, shift and residual_gate to the values of a sample, or of several."""
    sample = tl.cast(sample, tl.int64)
    scale_row = sample * modulation.scale_row_stride * DIVISIBILITY
    shift_row = sample * modulation.shift_row_stride * DIVISIBILITY
    if modulation.residual_gate_row_stride is not None:
        residual_gate_row = sample * modulation.residual_gate_row_stride * DIVISIBILITY
        return scale_row, shift_row, residual_gate_row
    else:
        return scale_row, shift_row, 0


@triton.jit
def offsets_of_row(row, modulation, DIVISIBILITY: tl.constexpr):
    """As ``offsets_of_sample``, of the sample that a row belongs to; 0 without samples."""
    if modulation.rows_per_sample is not None:
        return offsets_of_sample(sample_of(row, modulation), modulation, DIVISIBILITY)
    else:
        return 0, 0, 0


@triton.jit
def load_parameter(ptr, cols, ok, row=0):
    """A tuple of one tile, (1, columns), in the parameter's dtype; an empty tuple where the parameter is absent.

    Many programs load it, so it should stay in the cache. row: elements from the pointer to the row of the parameter;
    where it is (rows, 1), the tile is (rows, columns).
    """
    tile = ()
    if ptr is not None:
        tile = (tl.load(ptr + row + cols, mask=ok, other=0.0, eviction_policy="evict_last"),)
    return tile


@triton.jit
def load_parameters(pointers, cols, ok):
    """The parameters at ``cols``, as a ``Parameters`` of at most one tile each."""
    return Parameters(
        load_parameter(pointers.weight_ptr, cols, ok),
        load_parameter(pointers.bias_ptr, cols, ok),
        load_parameter(pointers.scale_ptr, cols, ok, pointers.scale_row),
        load_parameter(pointers.shift_ptr, cols, ok, pointers.shift_row),
    )


@triton.jit
def load_chunks(ptr, columns, FIRST: tl.constexpr, END: tl.constexpr, TILING: tl.constexpr, row=0):
    """Chunks FIRST to END of a parameter; an empty tuple where it is absent. row: as in ``load_parameter``."""
    chunks = ()
    for c in tl.static_range(FIRST, END):
        cols, ok = chunk(columns, c, TILING)
        chunks = chunks + load_parameter(ptr, cols, ok, row)
    return chunks


@triton.jit
def load_parameter_chunks(
    pointers, columns, FIRST: tl.constexpr, END: tl.constexpr, TILING: tl.constexpr
):
    """Chunks FIRST to END of the parameters, as ``Parameters``."""
    return Parameters(
        load_chunks(pointers.weight_ptr, columns, FIRST, END, TILING),
        load_chunks(pointers.bias_ptr, columns, FIRST, END, TILING),
        load_chunks(pointers.scale_ptr, columns, FIRST, END, TILING, pointers.scale_row),
        load_chunks(pointers.shift_ptr, columns, FIRST, END, TILING, pointers.shift_row),
    )


@triton.jit
def load_h(
    source,
    cols,
    col_ok,
    ok,
    COMPUTE_DTYPE: tl.constexpr,
    EVICTION: tl.constexpr,
    ROUND_EACH_TO: tl.constexpr = None,
):
    """``h`` at ``cols`` of the source's rows. Lanes beyond a row are 0, so they add nothing to a sum.

    col_ok: which columns exist, (1, columns); ok: which columns of which rows exist, (rows, columns). EVICTION is
    Triton's eviction policy. Where ROUND_EACH_TO names a dtype, every step is rounded to it, and the sum with the
    residual to the dtype of the residual.
    """
    pre_bias = load_parameter(source.pre_bias_ptr, cols, col_ok)
    residual_gate = load_parameter(source.residual_gate_ptr, cols, col_ok, source.residual_gate_row)
    x = tl.load(source.x_ptr + source.x_row + cols, mask=ok, other=0.0, eviction_policy=EVICTION)
    h = widen(x, COMPUTE_DTYPE)
    if len(pre_bias) > 0:
        h = round_to(h + widen(pre_bias[0], COMPUTE_DTYPE), ROUND_EACH_TO, COMPUTE_DTYPE)
    if len(residual_gate) > 0:
        h = round_to(h * widen(residual_gate[0], COMPUTE_DTYPE), ROUND_EACH_TO, COMPUTE_DTYPE)
    if source.residual_ptr is not None:
        pointers = source.residual_ptr + source.residual_row + cols
        residual = tl.load(pointers, mask=ok, other=0.0, eviction_policy=EVICTION)
        h += widen(residual, COMPUTE_DTYPE)
        if ROUND_EACH_TO is not None:
            h = round_to(h, source.residual_ptr.dtype.element_ty, COMPUTE_DTYPE)
    return h


@triton.jit
def load_gate(source, cols, ok, EVICTION: tl.constexpr):
    """A tuple of one tile of the gate, in its dtype; an empty tuple where there is none."""
    tile = ()
    if source.gate_ptr is not None:
        pointers = source.gate_ptr + source.gate_row + cols
        tile = (tl.load(pointers, mask=ok, other=0.0, eviction_policy=EVICTION),)
    return tile


@triton.jit
def store_row(pointers, value, ok, EVICT_FIRST: tl.constexpr = False):
    """Round a result to its dtype and store it past L1 (``.cg``).

    EVICT_FIRST: as the first to leave L2 (``.cs``), because nothing reads it soon.
    """
    result = value.to(pointers.dtype.element_ty)
    tl.store(pointers, result, mask=ok, cache_modifier=".cs" if EVICT_FIRST else ".cg")


@triton.jit
def store_statistics(statistics, row, mu, rstd, ok):
    """Store mu and rstd where there are pointers for them. ok: a mask, or None for no mask."""
    if statistics.mu_ptr is not None:
        tl.store(statistics.mu_ptr + row, mu, mask=ok)
    if statistics.rstd_ptr is not None:
        tl.store(statistics.rstd_ptr + row, rstd, mask=ok)
