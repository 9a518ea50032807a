"""``rownorm analyze``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...command_line.blocks import ELEMENTS, block_sizes
from ...command_line.options import (
    ARCHS,
    FOLDER,
    MAX_COLS,
    examples,
    finite,
    held,
    name_option,
    named_options,
    names_option,
    refuse_written,
    unknown,
    usage_errors,
)
from ...command_line.own_kernel import OwnOptions, own_kernel_options
from ...data.case import (
    ACTIVATIONS,
    DTYPES,
    OPERATIONS,
    Activation,
    Case,
    Direction,
    Dtype,
    Operation,
)
from ...data.user_files import is_place, source_of

if TYPE_CHECKING:
    from ...compiled.roofline import Ceiling
    from ...data.analyses import Analysis

DEFAULT_TARGETS = ("sm_90", "gfx942")  # an H200 and an MI300X
PASSES = ("forward", "backward")
NORM_ONLY = (
    *("cols", "rows", "dtype", "direction", "residual_dtype", "activation", "bias", "pre_bias"),
    "measure",
)


@click.command(
    "analyze",
    epilog=examples(
        "rownorm analyze rms_norm --cols 4096",
        "rownorm analyze rms_norm --cols 4096 --blocks 64,128,256,512,1024",
        "rownorm analyze layer_norm --cols 65536 --pass backward --target sm_90",
        "rownorm analyze add_rms_norm --cols 4096 --residual-dtype fp32 --activation silu --json",
        "rownorm analyze rms_norm --cols 4096 --target this --measure",
        "rownorm analyze rms_norm --cols 4096 --out results/first && rownorm report results/first",
        "rownorm analyze my_norm.py:my_kernel --blocks BLOCK=64,128,256",
        "rownorm analyze my_norm.py:my_kernel --call 'my_norm(torch.empty(8192, 4096))'",
    ),
)
@click.argument("operation", metavar="OPERATION")
@click.option("--cols", type=click.IntRange(1, MAX_COLS), help="Columns of a row.")
@click.option(
    "--rows", type=click.IntRange(min=1), help="Default: as many as make x larger than any cache."
)
@name_option("--dtype", what="dtype", known=DTYPES, help="Default: bf16. One of")
@name_option("--pass", "direction", what="pass", known=PASSES, help="Default: forward. One of")
@names_option(
    "--target",
    "targets",
    what="target",
    known=(*ARCHS, "this"),
    help=f"{', '.join(ARCHS)}, or this: the GPU of this machine. Default: {', '.join(DEFAULT_TARGETS)}.",
)
@click.option(
    "--blocks",
    metavar="N,N,...",
    help="Also the plain looped kernel, with these block sizes: powers of two. Forward only. "
    "FILE.py:kernel: values of one of its constants, BLOCK=64,128,256 or BLOCK=64..1024.",
)
@own_kernel_options
@name_option(
    "--residual-dtype", what="dtype", known=DTYPES, help="For add_*; default: --dtype. One of"
)
@name_option("--activation", what="activation", known=ACTIVATIONS, help="One of")
@click.option("--bias/--no-bias", default=None, help="Default: LayerNorm has a bias, RMSNorm none.")
@click.option("--pre-bias", is_flag=True, help="A vector that is added to every row first.")
@click.option(
    "--ceiling",
    "ceiling_gbps",
    type=click.FloatRange(min=0, min_open=True),
    callback=finite,
    metavar="GB/S",
    help="The bandwidth to predict times with. Default: measured on an H200, else the specified peak.",
)
@click.option("--measure", is_flag=True, help="Also time the kernels on this machine's GPU.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--out", type=FOLDER, help="A folder for analysis.json; rownorm report shows it.")
@click.pass_context
def command(
    context: click.Context,
    /,
    operation: Operation,
    cols: int | None,
    rows: int | None,
    dtype: Dtype | None,
    direction: Direction | None,
    targets: tuple[str, ...],
    blocks: str | None,
    residual_dtype: Dtype | None,
    activation: Activation | None,
    bias: bool | None,
    pre_bias: bool,
    ceiling_gbps: float | None,
    measure: bool,
    as_json: bool,
    out: Path | None,
    **own: Any,
) -> None:
    """What the kernels of a norm, or a kernel of yours, do, from their compiled code: needs no GPU.

    OPERATION is layer_norm, rms_norm, add_layer_norm, add_rms_norm, or FILE.py:kernel. For each target its kernels are
    compiled and their addresses are traced. The table has registers, occupancy, vector widths, memory instructions and
    sectors, bytes, and the time that the roofline predicts. Every figure says whether it was read from the compiler,
    derived or measured. docs/analysis.md explains them; docs/own-kernel.md how a launch of your kernel is recorded.
    """
    if is_place(operation):
        _refuse(context, NORM_ONLY, "a norm", "of FILE.py:kernel")
        with usage_errors():
            source_of(operation)
        _say_what_begins(targets)
        from ...data import own_analyses
        from .own import analyses_of_own

        chosen, failures = checked_targets(targets, False), list[str]()
        if out is not None:
            context.with_resource(held(out))
            refuse_written(out / own_analyses.FILE)
        options, roof = OwnOptions(**own), _ceiling(ceiling_gbps)
        by_target = analyses_of_own(operation, options, chosen, blocks, roof, failures)
        context.exit(_show(by_target, failures, own_analyses.text_of, own_analyses, as_json, out))
    _refuse(context, tuple(own), "FILE.py:kernel", "of a norm")
    if operation not in OPERATIONS:
        raise click.BadParameter(
            f"{unknown('operation', operation, OPERATIONS)}; or FILE.py:kernel, a kernel of yours",
            param_hint="'OPERATION'",
        )
    if cols is None:
        raise click.UsageError("Missing option '--cols'")
    with usage_errors():
        case = Case(
            operation=operation,
            direction=direction or "forward",
            rows=rows or max(1, ELEMENTS // cols),
            cols=cols,
            dtype=dtype or "bf16",
            residual_dtype=residual_dtype,
            bias=bias,
            pre_bias=pre_bias,
            activation=activation,
        )
    sizes = block_sizes(blocks, case)
    from ...data import analyses
    from ...data.analysis_tables import text_of

    if out is not None:
        refuse_written(out / analyses.FILE)
        context.with_resource(held(out))  # first: a folder that cannot be written is found at once
    _say_what_begins(targets)
    chosen, failures = checked_targets(targets, measure), list[str]()
    found = analyses_of(case, chosen, sizes, _ceiling(ceiling_gbps), measure, failures)
    context.exit(_show(found, failures, text_of, analyses, as_json, out))


def _show(
    by_target: Iterable[list[Any]],
    failures: Sequence[str],
    text_of: Callable[[list[Any]], Sequence[str]],
    document: Any,
    as_json: bool,
    out: Path | None,
) -> int:
    """Print and write analyses and failures; return the exit status. document: the module of the analyses' file."""
    analyses = []
    for found in by_target:
        analyses += found
        if found and not as_json:
            click.echo("\n".join(text_of(found)) + "\n")
    if as_json:
        click.echo(document.encoded(analyses))
    if out is not None and analyses:
        click.echo(f"wrote {document.write(out, analyses)}", err=True)
    for failure in failures:
        click.echo(f"Error: {failure}", err=True)
    return int(bool(failures))


def _say_what_begins(targets: Sequence[str]) -> None:
    """A word before torch is imported and kernels are compiled, which takes seconds."""
    click.echo(f"compiling for {', '.join(targets or DEFAULT_TARGETS)}", err=True)


def _refuse(context: click.Context, names: Sequence[str], what: str, not_what: str) -> None:
    """Refuse options that are for something else."""
    for name, flag in named_options(context).items():
        if name in names:
            raise click.UsageError(f"{flag} is an option for {what}, not {not_what}")


def checked_targets(targets: Sequence[str], measure: bool) -> list[str]:
    """The targets to compile for. ``--measure`` needs a GPU, and measures it."""
    import torch

    if not measure:
        return list(targets or DEFAULT_TARGETS)
    if not torch.cuda.is_available():
        raise click.UsageError(
            "--measure: torch sees no GPU here. Leave --measure out for predictions, or run it on a machine with a GPU"
        )
    if targets and tuple(targets) != ("this",):
        raise click.UsageError("--measure times this machine's GPU: use --target this")
    return ["this"]


def _ceiling(gigabytes_per_second: float | None) -> Ceiling | None:
    from ...compiled.roofline import Ceiling

    if gigabytes_per_second is None:
        return None
    return Ceiling(gigabytes_per_second * 1e9, "given by --ceiling")


def analyses_of(
    case: Case,
    targets: Sequence[str],
    blocks: Sequence[int],
    ceiling: Ceiling | None,
    measure: bool,
    failures: list[str],
) -> Iterator[list[Analysis]]:
    """The analyses of each target: rownorm's plan, then the plain loop with each block size.

    What cannot be compiled or traced becomes a line of ``failures``; the rest is analyzed.
    """
    from ...compiled import analysis
    from ...compiled.compile import target_of

    for name in targets:
        with usage_errors():
            target = target_of(name)
        found, failed = analysis.analyses_of(case, target, blocks, ceiling, measure)
        failures += failed
        yield found
