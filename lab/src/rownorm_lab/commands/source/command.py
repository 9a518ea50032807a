"""``rownorm source``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...command_line.options import examples, name_option, unknown
from ...data.case import DTYPES, OPERATIONS, Case, Dtype, Operation

if TYPE_CHECKING:
    from ...data.analyses import Analysis
    from .beside import Listing

ARCHS = ("sm_80", "sm_90", "sm_100", "gfx90a", "gfx942", "this")
ISAS = ("sass", "ptx", "amdgcn")
PIPE_WIDTH = 150  # of a line, where the output is no terminal
COLORS = {
    "load": "blue",
    "store": "yellow",
    "atomic": "red",
    "reduction": "magenta",
    "barrier": "red",
    "shared": "cyan",
    "spill": "bold red",
}


@click.command(
    "source",
    epilog=examples(
        "rownorm source --list",
        "rownorm source forward_resident",
        "rownorm source backward_grid --op layer_norm --all",
        "rownorm source plain_loop --target gfx942 --out plain_loop.html",
    ),
)
@click.argument("kernel", required=False)
@click.option("--list", "list_them", is_flag=True, help="Name the kernels.")
@name_option(
    "--op", "operation", what="operation", known=OPERATIONS, help="Default: rms_norm. One of"
)
@click.option("--cols", type=click.IntRange(min=1), help="Default: a width at which it is used.")
@name_option("--dtype", what="dtype", known=DTYPES, help="Default: bf16. One of")
@name_option("--target", what="target", known=ARCHS, help="Default: sm_90. One of")
@name_option("--isa", what="instruction set", known=ISAS, help="Default: sass or amdgcn. One of")
@click.option("--all", "every", is_flag=True, help="Print every instruction, not only marked ones.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="An HTML page to write instead."
)
def command(
    kernel: str | None,
    list_them: bool,
    operation: Operation | None,
    cols: int | None,
    dtype: Dtype | None,
    target: str | None,
    isa: str | None,
    every: bool,
    as_json: bool,
    out: Path | None,
) -> None:
    """A kernel's source beside the machine code that it compiles to. Needs no GPU.

    Loads, stores, reductions and barriers are marked. At the head: passes over the rows, coalescing, registers and
    shared memory, from the compiled code.
    """
    if list_them:
        _list()
        return
    if kernel is None:
        raise click.UsageError("name a KERNEL; rownorm source --list names them")
    from .kernels import KERNELS

    if kernel not in KERNELS:
        raise click.BadParameter(unknown("kernel", kernel, KERNELS), param_hint="'KERNEL'")
    if out is not None and out.exists():
        raise click.BadParameter(f"{out} exists; name another file", param_hint="'--out'")
    entry = KERNELS[kernel]
    case = Case(
        operation=operation or "rms_norm",
        direction=entry.direction,
        rows=entry.rows,
        cols=cols or entry.cols,
        dtype=dtype or "bf16",
    )
    analysis, shown_isa, code = _read(kernel, case, target or "sm_90", isa)
    if as_json:
        import msgspec

        from .answers import answers

        found = {"analysis": analysis, "isa": shown_isa, "answers": answers(analysis), "code": code}
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=1))
    elif out is not None:
        from ...data.files import write_whole
        from .page import page

        write_whole(out, page(analysis, shown_isa, code))
        click.echo(f"wrote {out}")
    else:
        _print(analysis, shown_isa, code, every)


def _list() -> None:
    from ...data.tables import columns
    from .kernels import KERNELS

    lines = [[name, entry.direction, entry.about] for name, entry in KERNELS.items()]
    click.echo("\n".join(columns(["kernel", "pass", "what"], lines)))


def _read(
    kernel: str, case: Case, target: str, isa: str | None
) -> tuple[Analysis, str, list[Listing]]:
    """The analysis of a kernel and its code. A usage error if the target has no such kernel or instruction set."""
    from ...compiled.analysis import analyze
    from ...compiled.isa import ISAS as KNOWN
    from ...compiled.isa import default_isa, lines_of
    from .beside import listings
    from .kernels import LOOP_BLOCK, compiled

    try:
        compilation = compiled(kernel, case, target)
        binary = compilation.kernels[0].compiled
        chosen = next((one for one in KNOWN if one == isa), default_isa(binary))
        lines = lines_of(binary, chosen)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    name = compilation.kernels[0].name
    block = LOOP_BLOCK if kernel == "plain_loop" else None
    return analyze(compilation, block), chosen, listings(lines, name)


def _print(analysis: Analysis, isa: str, code: Sequence[Listing], every: bool) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from .answers import answers
    from .beside import summarized

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    title = f"{analysis.kernels[0].kernel}, {analysis.case.title}, {analysis.target}, {isa}"
    console.print(Text(title, style="bold"))
    for question, answer in answers(analysis):
        console.print(Padding(Text(f"{question} {answer}"), (0, 0, 0, 2)))
    for listing in code:
        where = f"{listing.file}: {listing.function}" if listing.function else listing.file
        console.print(Text(f"\n{where}", style="bold"))
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
        table.add_column(justify="right", style="dim", no_wrap=True, min_width=3)
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_column(no_wrap=not every, overflow="ellipsis", min_width=34)
        for pair in listing.lines:
            shown = pair.instructions if every else summarized(pair.instructions)
            instructions = Text()
            for i, (mark, text) in enumerate(shown):
                label = f"{mark}: " if mark else ""
                instructions.append("\n" if i else "")
                instructions.append(f"{label}{text}", style=COLORS.get(mark, "dim"))
            table.add_row(str(pair.number or ""), Text(pair.source), instructions)
        console.print(table)
