"""The kernels that ``rownorm source`` shows, and a case that each of them runs in."""

from __future__ import annotations

from typing import NamedTuple

from ...compiled.compile import Compilation, compile_case, target_of
from ...compiled.launched import compile_loop
from ...data.case import Case, Direction

ROWS = 8192
LOOP_BLOCK = 1024


class Entry(NamedTuple):
    """A kernel. cols: a width at which it is used; regime: the plan that has it."""

    about: str
    direction: Direction
    cols: int
    regime: str
    rows: int = ROWS
    sample_rows: int = 0  # rows that share scale and shift


KERNELS = {
    "forward_resident": Entry(
        "one program has whole rows in registers", "forward", 4096, "resident"
    ),
    "forward_cluster": Entry("programs of a cluster share a row", "forward", 65536, "cluster"),
    "forward_looped": Entry("a row in chunks, loaded twice", "forward", 65536, "looped"),
    "forward_moments": Entry("split rows: sums of a part", "forward", 1 << 20, "split", 4),
    "forward_apply": Entry("split rows: the output of a part", "forward", 1 << 20, "split", 4),
    "backward_resident": Entry(
        "rows in registers, alone or in a cluster", "backward", 4096, "resident"
    ),
    "backward_grid": Entry("programs all over the GPU share rows", "backward", 65536, "grid"),
    "backward_sums": Entry("rows in chunks: the sums of a row", "backward", 65536, "looped"),
    "backward_apply": Entry("rows in chunks: dx", "backward", 65536, "looped"),
    "column_sums": Entry("partial sums of the parameters' gradients", "backward", 4096, "resident"),
    "sample_sums": Entry(
        "partial sums of scale's and shift's gradients",
        "backward",
        4096,
        "resident",
        sample_rows=ROWS // 2,
    ),
    "plain_loop": Entry(
        f"a textbook loop over blocks of {LOOP_BLOCK} columns", "forward", 4096, ""
    ),
}


def compiled(name: str, case: Case, target: str) -> Compilation:
    """The one kernel of that name, compiled for a case like this; ValueError if the target has no such kernel."""
    from rownorm.inside import force

    chosen, entry = target_of(target), KERNELS[name]
    if name == "plain_loop":
        return compile_loop(case, LOOP_BLOCK, chosen)
    found = compile_case(case, chosen)
    if not _only(found, name).kernels:
        with force(regime=entry.regime):
            found = compile_case(case, chosen)
    found = _only(found, name)
    if not found.kernels:
        raise ValueError(
            f"{target} runs {case.title} without {name}; try another --cols or --target"
        )
    return found


def _only(compilation: Compilation, name: str) -> Compilation:
    kernels = [kernel for kernel in compilation.kernels if kernel.name == name]
    return compilation._replace(kernels=kernels[:1])
