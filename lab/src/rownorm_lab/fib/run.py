"""``rownorm fib run``: FlashInfer-Bench's runner on every workload, then the lab's clock on the same Solutions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from flashinfer_bench import BenchmarkConfig, Definition, Solution, Trace, TraceSet
from flashinfer_bench.bench.runner import PersistentRunner
from flashinfer_bench.compile import BuilderRegistry

from ..command_line.progress import Display
from ..data.case import Case
from ..data.records import CEILING, FILE, Record, Writer
from ..data.runs import records_in, run_id
from ..data.texts import count
from ..measure.bench import Step, bench
from ..providers import EVERY_OPTION, Call, Provider
from ..providers.data import Tensors
from .dataset import Dataset
from .definition import Norm
from .recognize import NotServed, recognize
from .solutions import AUTHOR, label
from .traces import latest, record_of, write_traces


class Job(NamedTuple):
    """The Solutions to run on one workload."""

    definition: Definition
    norm: Norm
    case: Case
    workload: Any
    solutions: list[Solution]


def run_dataset(
    dataset: Dataset, *, definitions: Sequence[str], resume: bool, rounds: int, iterations: int
) -> int:
    """Run what is asked for; return the exit status: 1 if a Solution of rownorm failed, 130 after Ctrl-C."""
    content, folder = dataset.content, Path(dataset.content.root)
    status = 0
    try:
        jobs = list(_jobs(content, definitions, resume))
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        click.echo(f"{count(len(jobs), 'workload')} on {names}")
        if jobs:
            status = int(_run_upstream(content, jobs, BenchmarkConfig(iterations=iterations)) > 0)
            write_traces(dataset)
        _run_lab(content, folder, definitions, resume, rounds)
    except KeyboardInterrupt:
        status = 130
        write_traces(dataset)
        click.echo(f"Interrupted. Finished workloads are kept: rownorm fib run {folder} --resume")
    bad = [one for one in latest(content) if _is_ours(content, one) and not one.is_successful()]
    for one in bad:
        click.echo(f"{one.solution}, {one.workload.axes}: {one.evaluation.status.value}", err=True)
    return status or int(bool(bad))


def _jobs(content: TraceSet, definitions: Sequence[str], resume: bool) -> Iterator[Job]:
    done = {(one.workload.uuid, one.solution) for one in latest(content) if one.is_successful()}
    for name, definition in content.definitions.items():
        if definitions and name not in definitions:
            continue
        try:
            norm = recognize(definition)
        except NotServed as reason:
            click.echo(f"Definition {name}: skipped: {reason}", err=True)
            continue
        for trace in content.workloads.get(name, []):
            workload = trace.workload
            left = [
                one
                for one in content.solutions.get(name, [])
                if not resume or (workload.uuid, one.name) not in done
            ]
            try:
                case = norm.case(workload)
            except ValueError as reason:
                click.echo(f"Definition {name}: skipped: {reason}", err=True)
                continue
            if left:
                yield Job(definition, norm, case, workload, left)


def _run_upstream(content: TraceSet, jobs: Sequence[Job], config: BenchmarkConfig) -> int:
    """One trace for each Solution and workload, on the disk as soon as the workload is finished.

    ``Benchmark.run_all`` writes traces once for each Definition, so an interrupted run would lose them. Its runner
    is used directly, on all GPUs. Returns how many workloads could not be run.
    """
    runner, failed = PersistentRunner(config.log_dir), 0
    try:
        with Display(len(jobs)) as display:
            for number, job in enumerate(jobs):
                display.step(Step(number, len(jobs), job.case, "FlashInfer-Bench", "timing with"))
                try:
                    evaluations = runner.run_workload(
                        job.definition, job.workload, job.solutions, config, content.root
                    )
                except (
                    RuntimeError
                ) as error:  # no worker is left, or the reference failed on all GPUs
                    click.echo(f"{job.case.title}: not run: {error}", err=True)
                    failed += 1
                    continue
                traces = [
                    Trace(
                        definition=job.definition.name,
                        workload=job.workload,
                        solution=name,
                        evaluation=evaluation,
                    )
                    for name, evaluation in evaluations.items()
                ]
                content.add_traces(traces)
                by_name = {one.name: one for one in job.solutions}
                records = {
                    record.provider: record
                    for one in traces
                    for record in record_of(job.definition, by_name[one.solution], one)
                }
                display.case_done(list(records.values()))
    finally:
        runner.close()
    return failed


def _run_lab(
    content: TraceSet, folder: Path, definitions: Sequence[str], resume: bool, rounds: int
) -> None:
    """Device times of the same Solutions by the lab's method, with the ceiling; records.jsonl of the dataset folder."""
    done = {one.key for one in records_in(folder) if one.status == "ok"} if resume else set()
    jobs = list(_jobs(content, definitions, resume=False))
    click.echo("Device times by the lab's clock")
    run = run_id()
    with Writer(folder / FILE, append=True) as writer, Display(len(jobs)) as display:
        for _, of_definition in itertools.groupby(jobs, key=lambda job: job.definition.name):
            group = list(of_definition)
            providers: list[str | Provider] = [
                solution_provider(group[0].definition, group[0].norm, one)
                for one in group[0].solutions
            ]
            cases = [job.case for job in group]
            records: list[Record] = []
            for record in bench(
                cases,
                [*providers, CEILING],
                run=run,
                rounds=rounds,
                done=done,
                on_step=display.step,
            ):
                writer.write(record)
                records.append(record)
            for case in cases:
                if same := [one for one in records if one.case.key == case.key]:
                    display.case_done(same)


def solution_provider(definition: Definition, norm: Norm, solution: Solution) -> Provider:
    """A Solution as a provider of the lab. Each call allocates its outputs, as all providers do."""
    return Provider(
        name=label(solution),
        make=functools.partial(_call, definition, norm, solution),
        about=solution.description or f"a Solution of {solution.author}",
        kind="ours" if solution.author == AUTHOR else "peer",
        operations=(norm.operation,),
        directions=("forward",),
        options=(*EVERY_OPTION, "no_h"),
        dtypes=(norm.dtype,),
    )


def _call(definition: Definition, norm: Norm, solution: Solution, case: Case, t: Tensors) -> Call:
    function: Callable[..., Any] = BuilderRegistry.get_instance().build(definition, solution)
    values = {**t._asdict(), "eps": case.eps}
    arguments = [values[role] for role in norm.inputs]
    order = [list(norm.outputs).index(role) for role in ("y", "h") if role in norm.outputs]
    if not solution.spec.destination_passing_style:

        def returning() -> tuple[torch.Tensor, ...]:
            results = function(*arguments)
            results = (results,) if isinstance(results, torch.Tensor) else results
            return tuple(results[place] for place in order)

        return returning

    def storing() -> tuple[torch.Tensor, ...]:
        outputs = [torch.empty_like(t.x) for _ in order]
        function(*arguments, *outputs)
        return tuple(outputs[place] for place in order)

    return storing


def _is_ours(content: TraceSet, trace: Trace) -> bool:
    solution = content.get_solution(trace.solution)
    return solution is not None and solution.author == AUTHOR
