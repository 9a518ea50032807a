"""``rownorm bars measure``: measure cases with their providers into a run folder.

Compiling takes seconds per case, so several processes can fill the caches on disk first. Then one process measures
while nothing else runs. A folder that already holds records is resumed.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any
from unittest import mock

import click
import msgspec
import torch
import torch._inductor.config
import triton.testing
from triton import knobs

from ...command_line.progress import Display
from ...data import runs
from ...data.case import Case
from ...data.files import write_json
from ...data.records import CEILING, EAGER, FILE, OURS, Record, Writer
from ...device.facts import cpu_name, describe
from ...measure import trial
from ...measure.bench import bench, in_one_line
from ...providers import Refusal, all_providers, data, import_failure, missing
from . import draw
from .figures import FirstCall, Job, plain_of
from .judge import FIRST_CALL_FILE
from .settings import BESIDE_PLAIN, DIT_STEPS
from .turns import bench_in_turns, workload_of

# For the processes that only compile: they autotune on a busy device, so their choices must not be stored.
COMPILING = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "FLA_CACHE_RESULTS": "0"}
ROUNDS = 10  # of a case without a setting
CHOICES = "*.best_config"  # files in which torch.compile stores its choices


def check_folder(folder: Path, on_cpu: bool = False) -> None:
    """ValueError if the folder holds something other than a run, or a run on another device.

    on_cpu: the CPU will be measured, wherever there is a GPU.
    """
    if runs.is_taken(folder) and not any(
        (folder / name).exists() for name in (FILE, FIRST_CALL_FILE, draw.SEED_FILE)
    ):
        raise ValueError(f"{folder} is not empty and holds no measurements; name a new folder")
    here = cpu_name() if on_cpu else describe().name
    for record in runs.records_in(folder)[:1]:
        if record.environment.device != here:
            raise ValueError(
                f"{folder} was measured on {record.environment.device}; this is {here}. "
                "Name a new folder."
            )


def unfinished(jobs: Sequence[Job], records: Sequence[Record]) -> list[Job]:
    """The jobs that are not measured yet. A job is measured as a whole, because its providers are timed in turns.

    A job in which rownorm could not be timed is measured again: after a device failure all later calls fail. So is a
    norm with options if its plain norm is measured again, because the two are compared and GPUs differ by a percent.
    """
    known = all_providers()
    tried = {record.key for record in records if record.status != "missing"}
    good = {record.case.key for record in records if record.provider == OURS and record.is_timed}
    left = {
        case.key
        for case, names in jobs
        if (OURS in names and case.key not in good)
        or any(
            (case.key, name) not in tried
            for name in names
            if name not in known or missing(known[name]) is None
        )
    }
    return [job for job in jobs if left & {job[0].key, plain_of(job[0]).key}]


class ProviderMissing(Exception):
    """A provider that the bars need cannot be used; the message is the reason, and what to do."""


def check_providers(jobs: Sequence[Job], required: Collection[str] = ()) -> None:
    """Try a small call of every provider of the jobs, so that a run does not lack one after hours of measuring.

    ProviderMissing if one is installed and does not work, or is ``required`` and not installed. The others that are
    not installed are named, and the run goes on without them.
    """
    known = all_providers()
    names = [
        name for name in dict.fromkeys(n for _, of_case in jobs for n in of_case) if name in known
    ]
    absent = {name: why for name in names if (why := missing(known[name]))}
    with undisturbed_compilers():
        broken = {
            name: why
            for name in names
            if name not in absent and (why := trial.failure(known[name]))
        }
    broken |= {name: why for name, why in absent.items() if name in required}
    if broken:
        reasons = "; ".join(f"{name}: {why}" for name, why in broken.items())
        others = ",".join(name for name in names if name not in {**broken, **absent})
        raise ProviderMissing(
            f"a provider cannot be used. {reasons}. To measure without it: --provider {others}"
        )
    for name, why in absent.items():
        click.echo(f"Without {name}, which the bars need: {why}")


def measure(
    folder: Path,
    jobs: Sequence[Job],
    rounds: int | None,
    workers: int,
    until: float = math.inf,
    required: Collection[str] = (),
) -> int:
    """Measure what the folder does not hold yet. Return how many cases are left.

    until: the value of ``time.monotonic()`` after which no case is started; a case or the filling of the caches is
    never cut short. Every case is on the disk as soon as it is finished. required: providers that must be usable, else
    ProviderMissing is raised, because the run would have to be repeated. rounds: None is ``ROUNDS``, or what a setting
    has.
    """
    left = unfinished(jobs, runs.records_in(folder))
    click.echo(f"{len(jobs)} cases, {len(left)} of them to be measured, on {describe().name}")
    if not left:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    with undisturbed_compilers():
        if workers:
            fill_caches(left, workers)
        return len(left) - measure_in_turn(folder, left, rounds, until, required)


def measure_in_turn(
    folder: Path, jobs: Sequence[Job], rounds: int | None, until: float, required: Collection[str]
) -> int:
    """Measure one case after the other in this process, until the time is up. Return how many were measured."""
    began = time.monotonic()
    with Writer(folder / FILE, append=True) as writer, Display(len(jobs)) as display:
        run = runs.run_id()
        # Jobs with the same providers that are all in a setting, or all not.
        groups = itertools.groupby(jobs, key=lambda job: (job[1], bool(job[0].setting)))
        for (names, in_setting), group in groups:
            cases = [case for case, _ in group]
            if in_setting:
                records = bench_in_turns(cases, names, rounds=rounds, run=run, on_step=display.step)
            else:
                records = bench(
                    cases, names, rounds=rounds or ROUNDS, run=run, on_step=display.step
                )
            # ``bench`` yields one record per provider and measures lazily. So the records of a case are counted: asking
            # for one more, to see whether the case has ended, would already measure the next case.
            while time.monotonic() < until and (
                of_case := list(itertools.islice(records, len(names)))
            ):
                for record in of_case:
                    writer.write(record)
                display.case_done(of_case)
                for record in of_case:
                    if record.status == "missing" and record.provider in required:
                        raise ProviderMissing(f"{record.provider} {record.why}")
    click.echo(f"{display.done} cases measured in {time.monotonic() - began:.0f} s")
    return display.done


def fill_caches(jobs: Sequence[Job], workers: int) -> None:
    """Run every case once with every provider, in several processes, to fill the compilers' caches on disk.

    Failures are printed; the measurement will report them.
    """
    began = time.time()
    pairs = [(case, name) for case, names in jobs for name in names if compiles(case, name)]
    pairs.sort(key=slowest_to_compile_first)
    spawn = multiprocessing.get_context("spawn")
    with (
        mock.patch.dict(os.environ, COMPILING),
        concurrent.futures.ProcessPoolExecutor(
            workers, mp_context=spawn, initializer=disable_autotuning
        ) as pool,
    ):
        pending = [pool.submit(compile_pair, *pair) for pair in pairs]
        try:
            failures = [done.result() for done in concurrent.futures.as_completed(pending)]
        except BrokenProcessPool:
            failures = ["a process died; the rest is compiled during the measurement"]
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    for line in filter(None, dict.fromkeys(failures)):
        click.echo(f"while compiling: {line}")
    forget_choices(since=began)
    click.echo(f"caches filled in {time.time() - began:.0f} s")


def compiles(case: Case, name: str) -> bool:
    """Whether enough is compiled to do it in advance. Of the cases in a setting, most compile little."""
    if case.setting.endswith("compiled") or case.setting == BESIDE_PLAIN:
        return True
    if case.setting and case.setting not in DIT_STEPS:
        return False
    return name not in (EAGER, CEILING)


def slowest_to_compile_first(pair: tuple[Case, str]) -> tuple[bool, bool, bool, int]:
    """The sort key of compilations. Models take the longest. fla compiles for over a minute for wide rows.

    A backward case also compiles its forward, so it comes before the forward case.
    """
    case, name = pair
    return not case.setting, name != "fla", case.direction == "forward", -case.cols


def disable_autotuning() -> None:
    """Make Triton's autotuner run every setting once, for a process that only compiles; its choice is dropped."""
    triton.testing.do_bench = call_once


def call_once(
    call: Callable[[], Any], *, quantiles: Sequence[float] | None = None, **_: Any
) -> float | list[float]:
    """The replacement of Triton's ``do_bench``."""
    call()
    return 0.0 if quantiles is None else [0.0] * len(quantiles)


def compile_pair(case: Case, name: str) -> str:
    """Run a case once with a provider. Return the failure in one line, or an empty string."""
    device, failure = "cuda" if torch.cuda.is_available() else "cpu", ""
    try:
        if case.setting:
            workload = workload_of(case)
            calls = workload.calls(case, [name], device)
            with workload.context(case, device):
                calls[name]()
        elif missing(all_providers()[name], device) is None:
            all_providers()[name].prepare(case, data.rotation(case, 1, device)[0])()
    except Refusal:
        pass
    except ImportError as error:
        failure = f"{name} {import_failure(error)}"
    except Exception as error:
        failure = f"{name}, {case.title}: {in_one_line(error)}"
    if device == "cuda":
        torch.cuda.empty_cache()  # for the other processes
    return failure


def forget_choices(since: float) -> None:
    """Delete the choices that torch.compile stored since then, so that it autotunes again on an idle device."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    for file in Path(cache_dir()).rglob(CHOICES):
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_mtime >= since - 1:
                file.unlink()


@contextlib.contextmanager
def undisturbed_compilers() -> Iterator[None]:
    """Compile in this process, because compile workers would disturb the measurement, with one cache and one assembler.

    Without the variables, the first torch.compile of a process sets another Triton cache and another ptxas, whose
    version is part of a kernel's key: kernels that other processes compiled would not be found, and would be compiled
    again during the measurement.
    """
    settings = {"TRITON_CACHE_DIR": knobs.cache.dir}
    with contextlib.suppress(RuntimeError):  # a Triton for other GPUs has no ptxas
        settings["TRITON_PTXAS_PATH"] = knobs.nvidia.ptxas.path
    with (
        mock.patch.dict(os.environ, settings),
        torch._inductor.config.patch(compile_threads=1),
    ):
        yield


def count_first_calls(folder: Path, calls: Sequence[tuple[str, int]]) -> None:
    """Count for each (operation, columns) in a process with an empty cache; write all counts or none."""
    if (folder / FIRST_CALL_FILE).exists():
        return
    at_once = min(len(calls), os.cpu_count() or 1)  # nothing is timed, so they may run at once
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        counted = list(pool.map(lambda call: _count(*call), calls))
    write_json(folder / FIRST_CALL_FILE, counted)
    click.echo(f"first calls of {len(counted)} widths counted")


def _count(operation: str, cols: int) -> FirstCall:
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, "-m", "rownorm_lab.commands.bars.first_call", operation, str(cols)],
            env=os.environ | {"TRITON_CACHE_DIR": cache, "TRITON_ALWAYS_COMPILE": "0"},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise RuntimeError(f"first call of {operation}, {cols} columns: {done.stderr.strip()}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=FirstCall)
