"""``rownorm report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ...command_line.options import (
    FOLDER,
    RECORDS,
    examples,
    read_or_fail,
    refuse_taken,
    usage_errors,
)
from ...data.records import FILE, Reading
from ...data.texts import count


@click.command(
    "report",
    epilog=examples(
        "rownorm report results/first",
        "rownorm report results/monday results/tuesday --out report",
        "rownorm report records.jsonl --out report --force",
    ),
)
@click.argument("records", nargs=-1, required=True, type=RECORDS)
@click.option("--out", type=FOLDER, help="Default: report/ in the folder of the records.")
@click.option("--plots/--no-plots", default=True, help="Write plots/*.png as well.")
@click.option("--force", is_flag=True, help="Replace an existing report.")
def command(records: Sequence[Path], out: Path | None, plots: bool, force: bool) -> None:
    """Write report.html, plots/*.png and analysis.md from records.

    RECORDS are files, or folders that bench, study, analyze, profile or tune has written. The page is one file and
    needs no network. Without a GPU it also shows the GPU results that the package ships.
    """
    if out is None:
        if len(records) > 1:
            raise click.UsageError("several RECORDS need --out FOLDER")
        out = (records[0] if records[0].is_dir() else records[0].parent) / "report"
    if not force:
        refuse_taken(out, ", or --force to replace the report in it")
    from ...page.chapters import chapters_of
    from ...page.write import PAGE, replacing, write_report

    with usage_errors():
        chapters = chapters_of(records)
        without_records = {
            folder for one in chapters for folder in one.folders if not (folder / FILE).exists()
        }
        benched = [path for path in records if path not in without_records]
        reading = read_or_fail(*benched) if benched else Reading([], [])
        with replacing(out) as folder:
            files = write_report(
                reading.records,
                folder,
                chapters=chapters,
                damaged=reading.damaged,
                plots=plots,
                on_step=lambda step: click.echo(step, err=True),
            )
    click.echo(f"{count(len(files), 'file')} in {out}. Open {out / PAGE}")
