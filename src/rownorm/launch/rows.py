"""Tensors as rows: a pointer, a layout and their alignment; and the dtypes that kernels use for them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from ..kernels.bundles import Spec
from ..program import BACKWARD_ROWS, ROWS, SAMPLES, Inputs, Program, Rounding, is_in_backward, named
from ..reference import BackwardInputs, rounding_changes_statistics
from .planning import Plan, n_parts
from .problem import Problem, Samples, sample_shape

TRITON_DTYPE = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}

# The functions that inductor's generated code allocates with: without the dispatcher, on the current device, and never
# filled.
EMPTY_STRIDED = {
    kind: getattr(torch._C._dynamo.guards, f"_empty_strided_{kind}", None)
    for kind in ("cpu", "cuda")
}


class RowLayout(NamedTuple):
    """Where rows are: row r begins ``r * stride + r // group_rows * gap`` elements after the first.

    The heads of a token in a projection of queries, keys and values are such a group of rows.
    """

    stride: int
    group_rows: int = 0  # 0: no groups
    gap: int = 0

    def in_groups(self, group_rows: int) -> RowLayout | None:
        """The same rows described by groups of this size; None where that is impossible."""
        if not self.group_rows:
            return self._replace(group_rows=group_rows)
        return self if self.group_rows == group_rows else None


def row_layout(t: Tensor) -> RowLayout | None:
    """Where the rows of ``t`` are, or None where the kernels cannot read them in place.

    They can if columns have unit stride and the other dimensions collapse into at most two.
    """
    n_cols = t.shape[-1]
    if t.is_contiguous():
        return RowLayout(n_cols)
    if n_cols > 1 and t.stride(-1) != 1:
        return None
    # (size, stride), outer to inner; dimensions of size 1 do not matter
    dims: list[tuple[int, int]] = []
    for size, step in zip(t.shape[:-1], t.stride()[:-1], strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1] == step * size:
            dims[-1] = (dims[-1][0] * size, step)
        else:
            dims.append((size, step))
    if len(dims) > 2:
        return None
    if len(dims) < 2:
        return RowLayout(dims[0][1] if dims else n_cols)
    (_, outer), (size, inner) = dims
    return RowLayout(inner, size, outer - size * inner)


def common_layouts(*tensors: Tensor | None) -> tuple[RowLayout | None, ...]:
    """The layouts of tensors with the same rows, described by groups of one size: that of the last tensor with groups.

    None for a tensor that the kernels cannot read in place. The layout of an absent tensor does not matter.
    """
    layouts = [RowLayout(0) if t is None else row_layout(t) for t in tensors]
    sizes = [layout.group_rows for layout in layouts if layout and layout.group_rows]
    return tuple(layout and layout.in_groups(sizes[-1] if sizes else 0) for layout in layouts)


def required_layouts(*tensors: Tensor | None) -> tuple[RowLayout, ...]:
    """``common_layouts``; raises where a tensor has none."""
    layouts = common_layouts(*tensors)
    if None in layouts:
        shapes = ", ".join(
            f"shape {tuple(t.shape)}, strides {t.stride()}" for t in tensors if t is not None
        )
        raise ValueError(f"the kernels cannot read these rows in place: {shapes}")
    return layouts  # type: ignore[return-value]


def sample_strides(
    x_shape: Sequence[int], tensors: Sequence[Tensor | None]
) -> tuple[int | None, ...]:
    """Elements between two samples of each tensor; None for one that the kernels cannot read in place.

    They can if all have ``sample_shape`` and one distance between samples. An absent tensor has distance 0.
    """
    shape = sample_shape(x_shape, tensors)
    return tuple(0 if t is None else _sample_stride(t, shape) for t in tensors)


def required_strides(x_shape: Sequence[int], tensors: Sequence[Tensor | None]) -> tuple[int, ...]:
    """``sample_strides``; raises where a tensor has none."""
    strides = sample_strides(x_shape, tensors)
    if None in strides:
        raise ValueError(f"the kernels cannot read these samples of rows {tuple(x_shape)} in place")
    return strides  # type: ignore[return-value]


def arguments(
    problem: Problem,
    plan: Plan,
    program: Program,
    layouts: Mapping[str, RowLayout],
    samples: Sequence[int],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The integers and the constants of forward and backward. A kernel takes those that its signature names.

    layouts: by name of the rows; all have groups of one size. samples: ``sample_strides``.
    """
    sizes = [size for layout in layouts.values() for size in (layout.stride, layout.gap)]
    divisibility = alignment(problem.n_cols, *sizes, *samples)
    integers = {
        **_row_integers(problem, layouts, divisibility),
        "n_rows": problem.n_rows,
        "n_cols": problem.n_cols // divisibility,
        "n_parts": n_parts(plan, problem),
        "part_blocks": plan.part_cols // plan.block_cols,
        **_sample_integers(problem, samples, divisibility),
    }
    constants = {
        "DIVISIBILITY": divisibility,
        "GROUP_ROWS": max(layout.group_rows for layout in layouts.values()),
        "PROGRAM": kernel_program(problem, program),
        "BLOCK_ROWS": plan.block_rows,
        "BLOCK_COLS": plan.block_cols,
        "BLOCK_PARTS": plan.block_parts,
        "NUM_CHUNKS": plan.chunks,
        "NUM_STAGES": plan.num_stages,
        "NUM_WARPS": plan.num_warps,
        "CLUSTER_SIZE": plan.cluster_size,
    }
    return integers, constants


def _sample_integers(problem: Problem, strides: Sequence[int], divisibility: int) -> dict[str, Any]:
    """The integers of the kernels that say where the samples are: None, which no kernel is passed, without them."""
    names = [f"{name}_row_stride" for name in SAMPLES]
    if problem.samples is None:
        return dict.fromkeys((*names, *Samples._fields))
    by_name: dict[str, Any] = {
        name: stride // divisibility for name, stride in zip(names, strides, strict=True)
    }
    if not problem.residual_gate:  # kernels with scale and shift alone have no such argument
        by_name["residual_gate_row_stride"] = None
    return by_name | problem.samples._asdict()


def _row_integers(
    problem: Problem, layouts: Mapping[str, RowLayout], divisibility: int
) -> dict[str, Any]:
    """The integers of the kernels that say where rows are: None, which no kernel is passed, for those of a gate that is
    not there, and for x in backward, which only a residual_gate needs.
    """
    absent = {
        "gate": problem.gate_dtype is None,
        "x": problem.direction == "backward" and not problem.residual_gate,
    }
    integers: dict[str, Any] = {}
    for name, layout in layouts.items():
        is_absent = absent.get(name, False)
        integers[f"{name}_row_stride"] = None if is_absent else layout.stride // divisibility
        integers[f"{name}_group_gap"] = None if is_absent else layout.gap // divisibility
    return integers


def _sample_stride(t: Tensor, shape: tuple[int, ...]) -> int | None:
    if (1,) * (len(shape) - t.dim()) + tuple(t.shape) != shape:
        return None
    layout = row_layout(t if t.dim() else t.view(1))  # a number, beside rows of one column
    return None if layout is None or layout.group_rows else layout.stride


def unreadable(inputs: Inputs | BackwardInputs, program: Program) -> list[str]:
    """The names of tensors that the kernels cannot read in place; in the mode ``batch_invariant``, that the kernels for
    new tensors cannot.
    """
    rows = ROWS if isinstance(inputs, Inputs) else BACKWARD_ROWS
    places: dict[str, Any] = dict(zip(rows, common_layouts(*named(inputs, rows)), strict=True))
    strides = sample_strides(inputs[0].shape, named(inputs, SAMPLES))
    places |= zip(SAMPLES, strides, strict=True)

    def is_read(name: str, t: Tensor) -> bool:
        in_place = places[name] is not None if name in places else t.is_contiguous()
        return in_place and (not program.batch_invariant or is_uniform(t))

    tensors = inputs._asdict().items()
    return [name for name, t in tensors if t is not None and not is_read(name, t)]


def readable(inputs: Any, program: Program) -> Any:
    """The same tensors, with new ones in the place of those that are ``unreadable``."""
    shape = sample_shape(inputs[0].shape, named(inputs, SAMPLES))
    old = {name: getattr(inputs, name) for name in unreadable(inputs, program)}
    old |= {name: t.expand(shape) for name, t in old.items() if name in SAMPLES}
    copies = {name: t.clone(memory_format=torch.contiguous_format) for name, t in old.items()}
    return inputs._replace(**copies)


def is_uniform(t: Tensor) -> bool:
    """Whether the kernels read ``t`` as they read a new contiguous tensor: every row with the same alignment, no gaps.

    Then they are the same kernels: those for other tensors have other layouts, and add up a row in another order.
    """
    if t.data_ptr() % 16:
        return False
    if t.is_contiguous():
        return True
    layout = row_layout(t)
    return (
        layout is not None and not layout.group_rows and not layout.stride % alignment(t.shape[-1])
    )


def alignment(*sizes: int) -> int:
    """The largest power of two, at most 16, that divides every size."""
    bits = 16
    for size in sizes:
        bits |= size
    return bits & -bits


def kernel_program(problem: Problem, program: Program) -> Spec:
    """What is computed, as the one constant PROGRAM of the kernels. It has the names of dtypes: see ``spec_of``."""
    in_backward = problem.direction == "backward"
    # What backward does not depend on is None: another value needs no other kernel.
    options = {
        name.upper(): None if in_backward and not is_in_backward(name) else value
        for name, value in program._asdict().items()
    }
    derived = {
        "ROUND_X_HAT_TO": _name(_rounding_dtype(problem, program, "llama")),
        "ROUND_EACH_TO": _name(_rounding_dtype(problem, program, "each")),
        "STORED_H_DTYPE": None if in_backward else _name(stored_h_dtype(problem, program)),
        "COMPUTE_DTYPE": _name(_compute_dtype(problem)),
    }
    values = options | derived
    return Spec(*(values[name] for name in Spec._fields))


def moments_program(spec: Spec) -> Spec:
    """PROGRAM of a kernel that computes only the sums of a row: without the options of what follows them, so that
    another value needs no other kernel.
    """
    read = ["CENTER", "STORED_H_DTYPE", "COMPUTE_DTYPE", "GATE_FIRST", "ROUND_EACH_TO"]
    read += ["GATE_ACTIVATION"] if spec.GATE_FIRST else []
    return Spec(*(getattr(spec, name) if name in read else None for name in Spec._fields))


def _compute_dtype(problem: Problem) -> torch.dtype:
    """The dtype that a kernel computes in."""
    return torch.float64 if problem.computes_in_fp64 else torch.float32


def _rounding_dtype(problem: Problem, program: Program, rounding: Rounding) -> torch.dtype | None:
    """The dtype of x, if ``rounding`` is the program's and changes a number; else None."""
    in_backward = problem.direction == "backward"
    dtype = program.result_dtype(problem.dtype) if in_backward else problem.dtype
    return dtype if program.rounding == rounding and dtype != _compute_dtype(problem) else None


def stored_h_dtype(problem: Problem, program: Program) -> torch.dtype | None:
    """The dtype in which ``h`` is stored, where its rounding can change the statistics; else None."""
    dtype = problem.residual_dtype
    if dtype is None or not rounding_changes_statistics(dtype, _compute_dtype(problem), program):
        return None
    return dtype


def _name(dtype: torch.dtype | None) -> str | None:
    """Triton's name."""
    return None if dtype is None else str(TRITON_DTYPE[dtype])


def allocator(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Callable[[], Tensor]:
    """A function that allocates such a tensor, contiguous, in half the time of ``torch.empty`` or less.

    The memory is filled where torch's deterministic mode asks for it at the time of this call; that takes
    ``torch.empty``. The function keeps no tensor, which could belong to the memory pool of a CUDA graph.
    """
    deterministic = torch.are_deterministic_algorithms_enabled()
    filled = deterministic and torch._C._get_deterministic_fill_uninitialized_memory()
    empty_strided = EMPTY_STRIDED.get(device.type)
    if empty_strided is not None and not filled:
        strides = torch.empty(shape, device="meta").stride()
        return functools.partial(empty_strided, tuple(shape), strides, dtype)
    return functools.partial(torch.empty, shape, dtype=dtype, device=device)
