"""What ``rownorm bench`` does once its options are parsed: measure into a run folder, then print the results."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ...cluster import ClusterError
from ...command_line.options import unknown
from ...command_line.progress import Display
from ...data import runs
from ...data.compare import changed_conditions
from ...data.measurements import results_of
from ...data.records import FILE, OURS, Record, Writer
from ...data.texts import count
from ...device.environment import environment
from ...measure.bench import bench
from ...providers import all_providers, is_interpreted, missing, usual
from ...providers.own import add_providers
from .jobs import bench_on, providers_on
from .table import bench_table, not_in_the_table

if TYPE_CHECKING:
    from ...cluster.pool import Pool

CPU_NOTE = "There is no GPU here: these are CPU timings."


INTERPRETED_NOTE = (
    "Triton's interpreter runs {}: this shows whether it is right, not how fast it is.\n"
    "Other Triton kernels, rownorm's too, are run if --provider names them."
)
CPU_POOL_NOTE = "The processes disturb each other's times on a CPU: only to try it out."


def run_bench(folder: Path, request: runs.BenchRequest, pool: Pool | None = None) -> int:
    """Measure what is requested and not yet in the folder, here or on a cluster. Return the exit status.

    130: Ctrl-C ended it. 1: rownorm or a user's provider failed or is wrong, the disk is full, the cluster was lost, or
    nothing has a time.
    """
    try:
        add_providers(request.sources)
    except ValueError as error:
        raise click.UsageError(f"{error}. Start a new folder, or undo the change") from None
    known = all_providers()
    available = {name for name, one in known.items() if pool is None and missing(one) is None}
    if pool is not None:
        there = providers_on(pool)
        available = {*there.available, *(name for name, one in known.items() if one.source)}
        if not request.providers:
            request = msgspec.structs.replace(request, providers=there.usual)
    for name in request.providers:
        if name not in known:
            raise click.UsageError(f"{folder / runs.REQUEST}: {unknown('provider', name, known)}")
    here, before = pool.environment if pool else environment(), runs.records_in(folder)
    if changed := changed_conditions(before, here):
        raise click.UsageError(
            f"{folder} was measured differently: {'; '.join(changed)}. Start a new folder."
        )
    done = _finished(before, request, available)
    left = {
        case.key: sum((case.key, name) not in done for name in request.providers)
        for case in request.cases
    }
    if pool is not None:
        click.echo(f"On {pool.describe()}")
        if here.kind == "cpu":
            click.echo(CPU_POOL_NOTE)
    else:
        click.echo(CPU_NOTE if here.kind == "cpu" else f"On {here.device}")
    own = [name for name in request.providers if known[name].source and is_interpreted(known[name])]
    if own and pool is None:
        click.echo(INTERPRETED_NOTE.format(", ".join(own)))
    if not any(left.values()):
        click.echo("Nothing is left to measure.")
    again = {record.case.key for record in before if left.get(record.case.key)}
    if again:
        click.echo(f"{count(len(again), 'incomplete case')} will be measured again as a whole.")
    left_out = {one.name for one in known.values() if not one.on_request} - set(usual())
    if pool is None and left_out and request.providers == usual():
        click.echo(f"Without {', '.join(left_out)}, slow to start on a CPU; --provider adds it.")
    folder.mkdir(parents=True, exist_ok=True)
    runs.write_request(folder, request)
    new: list[Record] = []
    status, ended = 0, ""
    total = sum(count > 0 for count in left.values())
    try:
        with Writer(folder / FILE, append=True) as writer, Display(total) as display:
            for record in _records(request, done, display, pool):
                writer.write(record)
                new.append(record)
                left[record.case.key] -= 1
                if not left[record.case.key]:
                    display.case_done([one for one in new if one.case.key == record.case.key])
    except KeyboardInterrupt:
        status, ended = 130, "Interrupted."
    except ClusterError as error:
        status, ended = 1, f"{error}."
    except OSError as error:
        status, ended = 1, f"Could not write {folder / FILE}: {error.strerror or error}."
    latest = list({record.key: record for record in [*before, *new]}.values())
    _print_results(folder, latest)
    if ended:
        ray = " --ray ADDRESS" if pool else ""
        click.echo(
            f"{ended} What was measured is kept. To continue: "
            f"rownorm bench --resume {shlex.quote(str(folder))}{ray}"
        )
    bad = any(
        (one.provider == OURS or one.source is not None) and one.status in ("wrong", "failed")
        for one in latest
    )
    return status or int(bad or not any(one.seconds for one in latest))


def _records(
    request: runs.BenchRequest,
    done: Collection[tuple[str, str]],
    display: Display,
    pool: Pool | None,
) -> Iterator[Record]:
    run = runs.run_id()
    if pool is not None:
        return bench_on(pool, request, run=run, done=done, say=display.say)
    return bench(
        request.cases,
        request.providers,
        rounds=request.rounds,
        seed=request.seed,
        done=done,
        on_step=display.step,
        run=run,
    )


def _finished(
    records: Sequence[Record], request: runs.BenchRequest, available: Collection[str]
) -> set[tuple[str, str]]:
    """The keys of the cases that need no further measurement. available: providers that can be used now.

    A case is measured as a whole, because its providers are timed in turns: rounds of another time would be compared
    otherwise. A failure may succeed now, and a missing provider may be installed.
    """
    latest = {record.key: record for record in records}

    def is_final(record: Record | None) -> bool:
        if record is None or record.status == "failed":
            return False
        return record.status != "missing" or record.provider not in available

    finished = set()
    for case in request.cases:
        keys = [(case.key, name) for name in request.providers]
        found = [latest.get(key) for key in keys]
        together = len({record.run for record in found if record and record.seconds}) <= 1
        if together and all(map(is_final, found)):
            finished.update(keys)
    return finished


def _print_results(folder: Path, records: Sequence[Record]) -> None:
    """The tables, the providers that are not in them, and where the records are."""
    peers = [one.name for one in all_providers().values() if one.kind in ("peer", "own")]
    for results in results_of(records):
        for subject in results.subjects:
            others = peers if subject == OURS else [OURS, *peers]
            click.echo("\n".join(["", *bench_table(results, others, subject)]))
    for line in not_in_the_table(records):
        click.echo(line)
    click.echo(f"\n{len(records)} records in {folder / FILE}")
    if records:
        click.echo(f"Next: rownorm report {shlex.quote(str(folder))}")


def document(folder: Path) -> dict[str, Any]:
    """What --json prints: the measurements of a run folder, each with its figures; docs/json.md has the keys."""
    measured = [row for results in results_of(runs.records_in(folder)) for row in results.rows]
    return {
        "folder": str(folder),
        "measurements": [
            {
                "case": row.record.case,
                "provider": row.provider,
                "device": row.record.environment.device,
                "status": row.record.status,
                "why": row.record.why,
                "suspect": row.record.suspect,
                "seconds": row.time and row.time._asdict(),
                "host_seconds": row.host and row.host._asdict(),
                "bytes_per_second": row.bandwidth,
                "of_ceiling": row.of_ceiling,
                "of_peak": row.of_peak,
                "speedup_over": {name: one._asdict() for name, one in row.speedups.items()},
                "peak_bytes": row.record.peak_bytes,
                "max_ulp": row.record.accuracy and row.record.accuracy.max_ulp,
            }
            for row in measured
        ],
    }
