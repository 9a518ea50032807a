"""``rownorm steps``: whole training steps, and what one eager call costs the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import click

from ..cli.options import examples

PARTS = ("calls", "training")


@click.command(
    epilog=examples(
        "rownorm steps --out results/steps.json",
        "rownorm steps --part calls",
        "rownorm steps --part training --steps 100",
    )
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="A JSON file to write."
)
@click.option("--part", type=click.Choice(PARTS), help="Default: both.")
@click.option(
    "--steps",
    "n_steps",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="Steps of each kind of norms.",
)
@click.option(
    "--tiny", is_flag=True, help="Tiny models, nothing is judged: a trial run, also on a CPU."
)
@click.pass_context
def command(
    context: click.Context, /, out: Path | None, part: str | None, n_steps: int, tiny: bool
) -> None:
    """Time training steps of two small models with torch's norms and with rownorm's, and the host cost of calls.

    Each setting is one in which people train: bf16, autocast, a default device, a profiler, checkpoints. Exit status 1
    if a figure is beyond its bar.
    """
    import msgspec
    import torch

    from ..results.files import write_whole

    if not torch.cuda.is_available() and not tiny:
        raise click.UsageError(
            "torch sees no GPU; rownorm steps --tiny tries the command on the CPU"
        )
    if out is not None and out.exists():
        raise click.UsageError(f"{out} exists; name another file")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parts = PARTS if part is None else (part,)
    results: dict[str, list[object]] = {"calls": [], "training": []}
    all_hold = True
    for which in parts:
        lines = calls(device, tiny) if which == "calls" else training(device, n_steps, tiny)
        for record, line, holds in lines:
            click.echo(line)
            results[which].append(record)
            all_hold &= holds or tiny
            # After every record, so that an interrupted run keeps what it measured.
            if out is not None:
                environment = {"device": _device_name(device), "torch": str(torch.__version__)}
                write_whole(out, msgspec.json.encode({**environment, **results}))
    context.exit(0 if all_hold else 1)


def _device_name(device: str) -> str:
    from ..device.facts import describe

    return describe().name if device == "cuda" else "CPU"


def calls(device: str, tiny: bool) -> Iterator[tuple[object, str, bool]]:
    """(record, line of the table, whether its bar holds) of every norm, direction and setting."""
    from .calls import BARS, NORMS, measure, settings_of

    click.echo("Host cost of one eager call, µs")
    for direction in BARS:
        for norm in NORMS:
            for setting in settings_of(direction):
                one = measure(norm, setting, direction, device)
                micros = [f"{median(seconds) * 1e6:.1f}" for seconds in (one.torch, one.rownorm)]
                verdict = "" if one.holds or tiny else f"  bar: at most {one.bar}"
                cells = [norm, direction, setting, *micros, f"{one.ratio:.3f}{verdict}"]
                yield one, _line(cells, (10, 20, 18, 8, 8, 5)), one.holds


def training(device: str, n_steps: int, tiny: bool) -> Iterator[tuple[object, str, bool]]:
    """(record, line of the table, whether its bars hold) of every model and setting."""
    from .models import SIZES
    from .training import NORMS, SETTINGS, measure

    click.echo(
        "Training step, ms: torch's norms, rownorm's, rownorm's with the residual add; speed-ups"
    )
    for kind in SIZES:
        for setting in SETTINGS:
            one = measure(kind, setting, n_steps, device, tiny)
            ms = [f"{median(one.seconds[norms]) * 1e3:.2f}" for norms in NORMS]
            ratios = [f"{one.ratio(norms):.3f}" for norms in NORMS[1:]]
            bars = " and ".join(str(bar) for bar in one.bars.values())
            verdict = "" if one.holds or tiny else f"  bars: {bars}"
            yield (
                one,
                _line([kind, setting.name, *ms, *ratios], (6, 42, 7, 7, 7, 6, 6)) + verdict,
                one.holds,
            )


def _line(cells: list[str], widths: tuple[int, ...]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
