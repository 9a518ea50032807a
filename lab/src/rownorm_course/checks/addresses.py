"""Steps that several exercises share and that look at compiled kernels."""

from __future__ import annotations

from collections.abc import Sequence

from rownorm_lab.compiled.compile import CompiledKernel

from ..compiled import CompiledCall, row_start_in_bytes
from ..grades import Failure

ROWS = (
    96  # of the case that is compiled; an argument with this value is taken for the number of rows
)
MANY_ROWS = 1 << 23


def far_rows(
    kernel: CompiledKernel, row_bytes: int, tensor: str = "x", looping: bool = False
) -> None:
    """A row beyond 2^31 elements must begin where it is, not where int32 wraps around to. Elements have 16 bits.

    looping: each program goes through several rows, so that its number is that of its first row or less.
    """
    arguments = {
        name: MANY_ROWS if value == ROWS and not name.endswith("_ptr") else value
        for name, value in kernel.arguments.items()
    }
    row = (1 << 31) * 2 // row_bytes + 1000
    programs = 1 if looping else kernel.n_programs // ROWS
    if not looping and programs * ROWS != kernel.n_programs:
        raise Failure(
            f"{kernel.name} has {kernel.n_programs} programs for {ROWS} rows; expected one or more for each row"
        )
    far = kernel._replace(arguments=arguments, n_programs=MANY_ROWS * programs)
    start = row_start_in_bytes(far, tensor, row * programs)
    if start < row * row_bytes or (not looping and start != row * row_bytes):
        raise Failure(
            f"row {row} of {tensor} begins at byte {row * row_bytes:,}, but its program of {kernel.name} accesses "
            f"byte {start:,}",
            "int32",
        )


def passes_over_rows(compiled: CompiledCall, expected: float, what: str) -> None:
    """How many times the rows are loaded, in the machine code."""
    found = sum(one.passes for one in compiled.analyses)
    if abs(found - expected) > 0.05:
        raise Failure(f"{what} loads each row {found:.2g} times, expected {expected:g}", "passes")


def no_spills(kernels: Sequence[CompiledKernel]) -> None:
    """No registers in memory."""
    for one in kernels:
        if spilled := one.resources.spills:
            raise Failure(f"{one.name} spills {spilled} bytes for each thread", "spills")
