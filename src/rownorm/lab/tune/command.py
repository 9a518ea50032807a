"""``rownorm tune``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ..cases.case import ACTIVATIONS, DTYPES
from ..cli.options import case_options, examples, name_option, split_names

WIDTHS = (
    *(128, 256, 512, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192, 12288),
    *(16384, 32768, 65536, 131072, 262144),
)
OPTIONS = ("pre_bias", "activation", *ACTIVATIONS)
FILE = click.Path(dir_okay=False, path_type=Path)


def _widths(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> tuple[int, ...]:
    """The callback of ``--width``."""
    try:
        widths = sorted(map(int, split_names(values)))
    except ValueError as error:
        raise click.BadParameter(f"a width is a number of columns: {error}") from None
    if widths and widths[0] < 1:
        raise click.BadParameter(f"a width is at least 1; got {widths[0]}")
    return tuple(widths) or WIDTHS


@click.command(
    "tune",
    epilog=examples(
        "rownorm tune --out sm_90.json",
        "rownorm tune --out new.json --update sm_90.json --dtype bf16 --residual-dtype fp32",
        "rownorm tune --out new.json --update sm_90.json --dtype bf16 --option activation --width 4096,8192",
    ),
)
@click.option("--out", type=FILE, help="The file to write; must not exist. Default: <arch>.json.")
@click.option(
    "--update",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A table whose other rows are copied.",
)
@click.option(
    "--width",
    "widths",
    multiple=True,
    metavar="COLUMNS",
    callback=_widths,
    help=f"Widths to tune, repeated or separated by commas. Default: {len(WIDTHS)} from 128 to 262144.",
)
@case_options(
    operations="both",
    directions="both",
    dtypes="bf16 and fp32",
    known_operations=("rms_norm", "layer_norm"),
    known_directions=("forward", "backward"),
)
@name_option("--residual-dtype", what="dtype", known=DTYPES, help="Add a residual of this dtype")
@name_option("--option", what="option", known=OPTIONS, help="Add an option to the norm")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=14,
    show_default=True,
    help="Processes that compile.",
)
def command(
    out: Path | None,
    update: Path | None,
    widths: Sequence[int],
    operations: Sequence[str],
    directions: Sequence[str],
    dtypes: Sequence[str],
    residual_dtype: str | None,
    option: str | None,
    workers: int,
) -> None:
    """Find the fastest launch settings on this GPU and write the table that plans come from.

    Every candidate is compiled first, in parallel. Then each is timed as rownorm bench does it: device time from a CUDA
    graph over inputs larger than L2. The fastest settings for each width become a row of the table.
    """
    import torch
    import triton

    from ...launch import device_of
    from ..cases.case import torch_dtype
    from ..measure.machine import machine_of
    from .search import best_rows, compile_all
    from .study import Study
    from .table import line_of, read_rows, updated, write_table

    if not torch.cuda.is_available():
        raise click.UsageError("there is no GPU here to tune for")
    device = device_of(0)
    out = out or Path(f"{device.arch}.json")
    if out.exists():
        raise click.UsageError(f"{out} exists; move it away or name another file with --out")
    residual = torch_dtype(residual_dtype) if residual_dtype else None  # type: ignore[arg-type]
    studies = [
        Study(
            direction,  # type: ignore[arg-type]
            operation == "layer_norm",
            torch_dtype(dtype),  # type: ignore[arg-type]
            n_cols,
            residual,
            option or "",
        )
        for dtype in dtypes or ("bf16", "fp32")
        for direction in directions or ("forward", "backward")
        for operation in sorted(operations or ("rms_norm", "layer_norm"), reverse=True)
        for n_cols in widths
    ]
    compile_all(studies, workers)
    rows = []
    machine = machine_of("cuda", ())
    for study in studies:
        for row in best_rows(study, machine):
            rows.append(row)
            click.echo(line_of(row))
        torch.cuda.empty_cache()
    if update:
        rows = updated(read_rows(update), rows)
    write_table(out, device.name, str(torch.__version__), triton.__version__, rows)
    click.echo(f"wrote {out}")
