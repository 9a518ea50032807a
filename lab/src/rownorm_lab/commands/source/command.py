"""``rownorm source``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...command_line.options import (
    ARCHS,
    DEFAULT_TARGET,
    MAX_COLS,
    examples,
    name_option,
    print_json,
    say_loading,
    unknown,
    usage_errors,
)
from ...command_line.own_kernel import OwnOptions, own_kernel_options
from ...data.case import DTYPES, OPERATIONS, Case, Dtype, Operation
from ...data.user_files import is_place, source_of

if TYPE_CHECKING:
    from rich.text import Text

    from ...compiled.isa import Line
    from .beside import Pair, Shown

ISAS = ("sass", "ptx", "amdgcn")
BESIDE = 110  # characters of a terminal in which code fits beside its source
NUMBER = 6  # characters of a line number and the space after it
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
        "rownorm source my_norm.py:my_kernel --call 'my_norm(torch.empty(8192, 4096))'",
    ),
)
@click.argument("kernel", required=False)
@click.option("--list", "list_them", is_flag=True, help="Name the kernels.")
@name_option(
    "--op", "operation", what="operation", known=OPERATIONS, help="Default: rms_norm. One of"
)
@click.option(
    "--cols", type=click.IntRange(1, MAX_COLS), help="Default: a width at which it is used."
)
@name_option("--dtype", what="dtype", known=DTYPES, help="Default: bf16. One of")
@own_kernel_options
@name_option(
    "--target", what="target", known=(*ARCHS, "this"), help=f"Default: {DEFAULT_TARGET}. One of"
)
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
    **own: Any,
) -> None:
    """A kernel's source beside the machine code that it compiles to. Needs no GPU.

    KERNEL is a name of --list, or FILE.py:kernel for a kernel of yours; its launch is recorded from --call.
    Loads, stores, reductions and barriers are marked. At the head: passes over the rows, coalescing, registers and
    shared memory, from the compiled code.
    """
    if list_them:
        _list()
        return
    if kernel is None:
        raise click.UsageError("name a KERNEL; rownorm source --list names them")
    if out is not None and out.exists():
        raise click.BadParameter(f"{out} exists; name another file", param_hint="'--out'")
    if is_place(kernel):
        if operation or cols or dtype:
            raise click.UsageError("--op, --cols and --dtype are for rownorm's kernels; use --call")
        with usage_errors():
            source_of(kernel)
        say_loading("torch and the compiler")
        _show(
            _read_own(kernel, OwnOptions(**own), target or DEFAULT_TARGET, isa), every, as_json, out
        )
        return
    if given := OwnOptions(**own).given():
        raise click.UsageError(f"{', '.join(given)}: for FILE.py:kernel, not for rownorm's kernels")
    say_loading("torch and the compiler")
    from .kernels import KERNELS

    if kernel not in KERNELS:
        raise click.BadParameter(unknown("kernel", kernel, KERNELS), param_hint="'KERNEL'")
    entry = KERNELS[kernel]
    case = Case(
        operation=operation or "rms_norm",
        direction=entry.direction,
        rows=entry.rows,
        cols=cols or entry.cols,
        dtype=dtype or "bf16",
        sample_rows=entry.sample_rows,
    )
    _show(_read(kernel, case, target or DEFAULT_TARGET, isa), every, as_json, out)


def _show(shown: Shown, every: bool, as_json: bool, out: Path | None) -> None:
    """Print or write a kernel beside its code."""
    if as_json:
        names = ("analysis", "isa", "answers", "code")
        found = {name: getattr(shown, name) for name in names}
        print_json(found)
    elif out is not None:
        from ...data.files import write_whole
        from .page import page

        write_whole(out, page(shown))
        click.echo(f"wrote {out}")
    else:
        _print(shown, every)


def _list() -> None:
    from ...data.tables import columns
    from .kernels import KERNELS

    lines = [[name, entry.direction, entry.about] for name, entry in KERNELS.items()]
    click.echo("\n".join(columns(["kernel", "pass", "what"], lines)))


def _read(kernel: str, case: Case, target: str, isa: str | None) -> Shown:
    """The analysis of a kernel and its code. A usage error if the target has no such kernel or instruction set."""
    from triton.compiler.errors import CompilationError

    from ...compiled.analysis import analyze
    from ...compiled.recorded import compiler_message
    from .answers import answers
    from .beside import Shown, listings
    from .kernels import LOOP_BLOCK, compiled

    with usage_errors():
        try:
            compilation = compiled(kernel, case, target)
        except CompilationError as error:
            raise click.ClickException(
                f"{kernel} does not compile for {case.cols} columns: {compiler_message(error)}"
            ) from None
        chosen, lines = _lines(compilation.kernels[0].compiled, isa)
    name = compilation.kernels[0].name
    analysis = analyze(compilation, LOOP_BLOCK if kernel == "plain_loop" else None)
    return Shown(
        name,
        case.title,
        analysis.target,
        analysis.triton,
        chosen,
        answers(analysis),
        analysis,
        listings(lines, name),
    )


def _read_own(place: str, options: OwnOptions, target: str, isa: str | None) -> Shown:
    """The same for a kernel of a user's file, compiled for the launch that the options describe."""
    from ...compiled.compile import target_of
    from ...compiled.launched import compile_launch
    from ...compiled.own import analyze_launch
    from ...compiled.recorded import chosen_launch, compiler_message
    from .answers import own_answers
    from .beside import Shown, listings

    with usage_errors():
        chosen_target = target_of(target)
        arguments = options.launch_arguments()
        source, launched, _ = chosen_launch(place, chosen_target, **arguments)
    try:
        kernel = compile_launch(launched, chosen_target)
    except Exception as error:  # of the compiler, whatever its type
        raise click.ClickException(f"{source.name}: {compiler_message(error)}") from None
    with usage_errors():
        chosen, lines = _lines(kernel.compiled, isa)
    analysis = analyze_launch(launched, source, chosen_target, source.name, kernel=kernel)
    return Shown(
        source.name,
        analysis.launch,
        analysis.target,
        analysis.triton,
        chosen,
        own_answers(analysis),
        analysis,
        listings(lines, source.name, Path(source.file).parent),
    )


def _lines(binary: Any, isa: str | None) -> tuple[str, list[Line]]:
    """(the instruction set, its lines); ValueError if the target has no such instruction set."""
    from ...compiled.isa import default_isa, lines_of

    chosen: Any = isa or default_isa(binary)
    return chosen, lines_of(binary, chosen)


def _print(shown: Shown, every: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    from ...data.tables import terminal_width, wrapped

    console, room = Console(highlight=False), terminal_width()

    def show(text: Text) -> None:
        console.print(text, soft_wrap=True)  # lines are as long as they should be

    for line in wrapped(f"{shown.kernel}, {shown.about}, {shown.target}, {shown.isa}"):
        show(Text(line, style="bold"))
    for question, answer in shown.answers:
        show(Text("\n".join(wrapped(f"  {question} {answer}", 4))))
    for listing in shown.code:
        show(Text(f"\n{listing.title}", style="bold"))
        widest = max(len(pair.source) for pair in listing.lines)
        for pair in listing.lines:
            for text in _lines_of(pair, every, widest, room):
                show(text)


def _lines_of(pair: Pair, every: bool, widest: int, room: int | None) -> Iterator[Text]:
    """The lines of a terminal for one line of source: its number, the source, the instructions beside it.

    widest: the longest source line of the listing. room: characters of the terminal; None: nothing is wrapped. Where it
    is narrow, the instructions are below the source.
    """
    from itertools import chain, repeat, zip_longest

    from rich.text import Text

    from .beside import summarized

    beside = room is None or room >= BESIDE
    left = (
        widest if room is None else min(widest, (room - NUMBER) // 2 if beside else room - NUMBER)
    )
    right = None if room is None else room - NUMBER - 2 - (left if beside else 2)
    source = _folded(pair.source, left)
    code = [
        Text(part, style=COLORS.get(mark, "dim"))
        for mark, text in (pair.instructions if every else summarized(pair.instructions))
        for part in _folded(f"{mark}: {text}" if mark else text, right)
    ]
    parts: list[tuple[str, Text | None]]
    if beside:
        parts = [
            (f"{before or '':{left}}  " if after else before or "", after)
            for before, after in zip_longest(source, code)
        ]
    else:  # of other sources there are instructions only
        parts = [(line, None) for line in source if pair.source]
        parts += [("    ", line) for line in code]
    number = Text(f"{pair.number or '':>{NUMBER - 2}}  ", style="dim")
    starts = [number] if beside or pair.source else []
    for start, (before, after) in zip(
        chain(starts, repeat(Text(" " * NUMBER))), parts, strict=False
    ):
        yield Text.assemble(start, before, after or "")


def _folded(text: str, width: int | None) -> list[str]:
    """``text`` on lines of at most that many characters; those after the first are indented further."""
    if width is None or not text:
        return [text]
    indent = " " * min(len(text) - len(text.lstrip()) + 4, width // 2)
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)
