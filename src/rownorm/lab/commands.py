"""What the commands do, once their options are understood. Each returns an exit status."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from . import runs, summary
from .bench import bench
from .check import Row, check
from .choices import read, unknown
from .compare import compare, differences, unlike_now
from .devices import all_devices
from .environment import environment
from .progress import Display
from .providers import all_providers, missing, usual
from .records import FILE, OURS, Reading, Record, Writer
from .report import PAGE, is_plot, write_report
from .results import results_of

CPU_NOTE = (
    "There is no GPU here: these are CPU timings, of PyTorch's arithmetic on this machine's CPU."
)


def show_info() -> int:
    """Devices, versions, settings, providers."""
    click.echo("Devices")
    for index, device in enumerate(all_devices()):
        first, *rest = summary.device_lines(device)
        click.echo("\n".join([f"  {index}  {first}", *(f"     {line}" for line in rest)]))
    here = environment()
    if here.kind == "cpu":
        click.echo("There is no GPU here: bench measures the CPU path and says so.")
    click.echo("\nVersions")
    for name in ("rownorm", "torch", "triton", "python", "driver", "platform"):
        if value := getattr(here, name):
            click.echo(f"  {name:10} {value}")
    for name, value in here.settings.items():
        click.echo(f"  {name:10} {value}")
    click.echo("\nProviders")
    for provider in all_providers().values():
        why = missing(provider)
        state = f"missing: {why}" if why else f"ready {provider.version}".rstrip()
        if provider.name not in usual():
            state += "; on a CPU only where --provider names it: it compiles for minutes"
        click.echo(f"  {provider.name:14} {state}\n{'':17}{provider.about}")
    return 0


def check_accuracy(
    operations: Sequence[str],
    directions: Sequence[str],
    dtypes: Sequence[str],
    data_sets: Sequence[str],
    providers: Sequence[str],
    brief: bool,
) -> int:
    """1 where rownorm exceeds its budget, or fails."""
    rows: list[Row] = []

    def kept() -> Iterator[Row]:
        for row in check(
            operations,  # type: ignore[arg-type]
            dtypes,  # type: ignore[arg-type]
            providers,
            data_sets=data_sets,
            directions=directions,  # type: ignore[arg-type]
        ):
            rows.append(row)
            yield row

    try:
        for line in summary.check_table(kept(), brief):
            click.echo(line)
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None
    ours = [row for row in rows if row.ours and row.status in ("ok", "over", "failed")]
    bad = [row for row in ours if not row.ok]
    if any(row.budget_used is not None for row in rows if not row.ours):
        click.echo("\nThe budget is rownorm's; others are TOO LARGE by wider limits of their own.")
    if ours:
        click.echo(f"\nrownorm: {len(ours) - len(bad)} of {len(ours)} within budget")
    return int(bool(bad))


def measure(folder: Path, plan: runs.Plan) -> int:
    """Measure what the plan asks for and the folder does not hold yet; 130 where Ctrl-C ended it.

    1 where rownorm failed or is wrong, or nothing has a time.
    """
    known = all_providers()
    for name in plan.providers:
        if name not in known:
            raise click.UsageError(f"{folder / runs.PLAN}: {unknown('provider', name, known)}")
    here, before = environment(), runs.measured(folder)
    changed = unlike_now(before, here)
    if changed:
        raise click.UsageError(
            f"{folder} was measured differently: {'; '.join(changed)}. Start a new folder."
        )
    # What failed may work now, and who was missing may be there.
    there = {name for name in plan.providers if missing(known[name]) is None}
    done = {
        record.key
        for record in before
        if record.status != "failed"
        and not (record.status == "missing" and record.provider in there)
    }
    left = {
        case.key: sum((case.key, name) not in done for name in plan.providers)
        for case in plan.cases
    }
    click.echo(CPU_NOTE if here.kind == "cpu" else f"On {here.device}")
    if not any(left.values()):
        click.echo("Nothing is left to measure.")
    left_out = set(known) - set(usual())
    if left_out and plan.providers == usual():
        click.echo(f"Without {', '.join(left_out)}, slow to start on a CPU; --provider adds it.")
    folder.mkdir(parents=True, exist_ok=True)
    runs.write_plan(folder, plan)
    new: list[Record] = []
    status, ended = 0, ""
    total = sum(count > 0 for count in left.values())
    try:
        with Writer(folder / FILE, append=True) as writer, Display(total) as display:
            for record in bench(
                plan.cases,
                plan.providers,
                rounds=plan.rounds,
                seed=plan.seed,
                done=done,
                told=display.told,
                run=runs.run_id(),
            ):
                writer.write(record)
                new.append(record)
                left[record.case.key] -= 1
                if not left[record.case.key]:
                    display.finished([one for one in new if one.case.key == record.case.key])
    except KeyboardInterrupt:
        status, ended = 130, "Interrupted."
    except OSError as error:
        status, ended = 1, f"Could not write {folder / FILE}: {error.strerror or error}."
    _conclude(folder, [*before, *new])
    if ended:
        click.echo(f"{ended} What was measured is kept. Go on: rownorm bench --resume {folder}")
    latest = {record.key: record for record in [*before, *new]}.values()
    bad = any(one.provider == OURS and one.status in ("wrong", "failed") for one in latest)
    return status or int(bad or not any(one.seconds for one in latest))


def _conclude(folder: Path, records: Sequence[Record]) -> None:
    """The table, who is missing from it, and where the records are."""
    peers = [one.name for one in all_providers().values() if one.kind == "peer"]
    for results in results_of(records):
        if results.measured:
            click.echo("\n".join(["", *summary.bench_table(results, peers)]))
    for line in summary.not_measured(records):
        click.echo(line)
    click.echo(f"\n{len(records)} records in {folder / FILE}")
    if records:
        click.echo(f"Next: rownorm report {folder}")


def make_report(reading: Reading, folder: Path, plots: bool) -> int:
    """The report in ``folder``, in the place of one that is there; it appears when it is complete."""
    if runs.is_taken(folder) and not (folder / PAGE).exists():
        raise click.UsageError(f"{folder} is not empty and holds no report; choose another")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        made.chmod(0o755)
        files = write_report(
            reading.records,
            made,
            damaged=reading.damaged,
            plots=plots,
            told=lambda step: click.echo(step, err=True),
        )
        for old in filter(is_plot, folder.glob("plots/*")):  # of the report that is replaced
            old.unlink()
        with contextlib.suppress(OSError):  # not there, or somebody else's files are in it
            (folder / "plots").rmdir()
        for file in files:
            place = folder / file.relative_to(made)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, place)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    click.echo(f"{len(files)} files in {folder}. Open {folder / PAGE}")
    return 0


def compare_records(
    base: Path,
    new: Path,
    *,
    providers: Sequence[str],
    margin: float,
    raw: bool,
    anyway: bool,
    fail_on: str,
) -> int:
    """1 where something became slower (or unclear, if that counts) or was lost."""
    old, now = read(base).records, read(new).records
    unlike = differences(old, now)
    if unlike:
        message = f"{base} and {new} were measured differently: {'; '.join(unlike)}"
        if not anyway:
            raise click.UsageError(f"{message}. To compare them all the same: --anyway")
        click.echo(f"Note: {message}")
    outcome = compare(old, now, providers=providers, margin=margin, by_ceiling=not raw)
    if not outcome.comparisons and not outcome.lost:
        raise click.UsageError(
            f"{base} and {new} have no measured case of {', '.join(providers)} in common"
        )
    if outcome.comparisons:
        click.echo("\n".join(summary.compare_table(outcome)))
    for lost in outcome.lost:
        click.echo(f"lost: {lost.provider} {lost.case.title}: {lost.why}")
    for where, keys in ((base, outcome.only_base), (new, outcome.only_new)):
        if keys:
            click.echo(f"{len(keys)} only in {where}")
    by = summary.measure_of(outcome.comparisons)
    click.echo(f"\n{summary.counts(outcome.comparisons)} (by {by}, margin {margin:.0%})")
    bad = {"slower": {"slower"}, "unclear": {"slower", "unclear"}, "never": set()}[fail_on]
    failed = outcome.lost or any(one.verdict in bad for one in outcome.comparisons)
    return int(bool(failed) and fail_on != "never")
