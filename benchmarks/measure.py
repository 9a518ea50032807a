"""Cases, each with who runs it, into a folder of records; what ``bars.py measure`` does.

Compiling takes seconds for each case, so several processes may fill the caches on disk first. Then one process
measures, nothing else running. A folder that holds records already is gone on with.
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

import msgspec
import torch
import torch._inductor.config
import triton.testing
from first_call import FirstCall
from triton import knobs

from rownorm.lab import data, runs
from rownorm.lab.bench import bench, in_one_line
from rownorm.lab.cases import Case
from rownorm.lab.devices import describe
from rownorm.lab.files import write_whole
from rownorm.lab.progress import Display
from rownorm.lab.providers import Refusal, all_providers, broken, missing
from rownorm.lab.records import CEILING, EAGER, FILE, OURS, Record, Writer

Job = tuple[Case, tuple[str, ...]]  # who runs it
FIRST_CALL_FILE = "first_call.json"

# Of the processes that only compile. Their choices between kernels are no good: they were made on a busy device.
COMPILING = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "FLA_CACHE_RESULTS": "0"}
CHOICES = "*.best_config"  # torch.compile's


def check_folder(folder: Path) -> None:
    """ValueError where the folder is somebody else's, or of another device."""
    if runs.is_taken(folder) and not any(
        (folder / name).exists() for name in (FILE, FIRST_CALL_FILE)
    ):
        raise ValueError(f"{folder} is not empty and holds no measurements; name a new folder")
    here = describe().name
    for record in runs.measured(folder)[:1]:
        if record.environment.device != here:
            raise ValueError(
                f"{folder} was measured on {record.environment.device}; this is {here}. "
                "Name a new folder."
            )


def unfinished(jobs: Sequence[Job], records: Sequence[Record]) -> list[Job]:
    """The jobs that are not measured yet, whole: all providers of a case take turns.

    So are those in which rownorm, if it takes part, could not be timed: a device that failed fails for everybody
    after it.
    """
    known = all_providers()
    tried = {record.key for record in records if record.status != "missing"}
    good = {record.case.key for record in records if record.provider == OURS and record.seconds}
    return [
        (case, names)
        for case, names in jobs
        if (OURS in names and case.key not in good)
        or any((case.key, name) not in tried for name in names if missing(known[name]) is None)
    ]


class Absent(Exception):
    """A provider that has to take part is not there, and why."""


def measure(
    folder: Path,
    jobs: Sequence[Job],
    rounds: int,
    workers: int,
    until: float = math.inf,
    required: Collection[str] = (),
) -> int:
    """Measure what the folder does not hold yet; how many cases are left when ``time.monotonic()`` reaches ``until``.

    Every case is on the disk as soon as it is finished. None is cut short, nor is the filling of the caches. Where a
    required provider turns out not to be there, Absent is raised: all of it would have to be measured again.
    """
    left = unfinished(jobs, runs.measured(folder))
    print(
        f"{len(jobs)} cases, {len(left)} of them to be measured, on {describe().name}", flush=True
    )
    if not left:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    # The first torch.compile of a process gives Triton another cache, unless one is named: what others filled would
    # not be found, and be compiled again in the midst of the measurement.
    with environment({"TRITON_CACHE_DIR": knobs.cache.dir}):
        if workers:
            fill_caches(left, workers)
        return len(left) - measure_in_turn(folder, left, rounds, until, required)


def measure_in_turn(
    folder: Path, jobs: Sequence[Job], rounds: int, until: float, required: Collection[str]
) -> int:
    """Measure one case after the other in this process, until the time is up; how many were measured."""
    began = time.monotonic()
    with (
        # What is not in the caches is compiled here: idle or not, processes beside this one would disturb it.
        torch._inductor.config.patch(compile_threads=1),
        Writer(folder / FILE, append=True) as writer,
        Display(len(jobs)) as display,
    ):
        run = runs.run_id()
        for names, group in itertools.groupby(jobs, key=lambda job: job[1]):
            cases = [case for case, _ in group]
            made = bench(cases, names, rounds=rounds, run=run, told=display.told)
            # By number, not by case: to see that a case ends, the next one would have to be measured.
            while time.monotonic() < until and (kept := list(itertools.islice(made, len(names)))):
                for record in kept:
                    writer.write(record)
                display.finished(kept)
                for record in kept:
                    if record.status == "missing" and record.provider in required:
                        raise Absent(f"{record.provider} {record.why}")
    print(f"{display.done} cases measured in {time.monotonic() - began:.0f} s", flush=True)
    return display.done


def fill_caches(jobs: Sequence[Job], workers: int) -> None:
    """Run every case once with everyone, in several processes, for what is compiled on the way.

    Each process takes the next pair when it is done with one. What goes wrong is told and left for the measurement.
    """
    began = time.time()
    pairs = [(case, name) for case, names in jobs for name in names if name not in (EAGER, CEILING)]
    pairs.sort(key=slowest_to_compile_first)
    spawn = multiprocessing.get_context("spawn")
    with (
        environment(COMPILING),
        concurrent.futures.ProcessPoolExecutor(
            workers, mp_context=spawn, initializer=compare_nothing
        ) as pool,
    ):
        pending = [pool.submit(compile_pair, *pair) for pair in pairs]
        try:
            troubles = [done.result() for done in concurrent.futures.as_completed(pending)]
        except BrokenProcessPool:
            troubles = ["a process died, and the rest is compiled later"]
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    for line in filter(None, dict.fromkeys(troubles)):
        print(f"while compiling: {line}")
    forget_choices(since=began)
    print(f"caches filled in {time.time() - began:.0f} s", flush=True)


def slowest_to_compile_first(pair: tuple[Case, str]) -> tuple[bool, bool, int]:
    """So that no process is left with the longest one: fla tries settings that take over a minute for wide rows.

    A backward pass needs a forward pass too; after it, that one is in the cache.
    """
    case, name = pair
    return name != "fla", case.direction == "forward", -case.cols


def compare_nothing() -> None:
    """In a process that only compiles, Triton's autotuner shall run every setting once; its choice is forgotten."""
    triton.testing.do_bench = call_once


def call_once(
    call: Callable[[], Any], *, quantiles: Sequence[float] | None = None, **_: Any
) -> float | list[float]:
    """In the place of Triton's ``do_bench``."""
    call()
    return 0.0 if quantiles is None else [0.0] * len(quantiles)


def compile_pair(case: Case, name: str) -> str:
    """Let a provider run a case once; what went wrong, in a line."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    provider, trouble = all_providers()[name], ""
    if missing(provider, device) is not None or provider.refusal(case) is not None:
        return trouble
    try:
        provider.prepare(case, data.rotation(case, 1, device)[0])()
    except Refusal:
        pass
    except ImportError as error:
        trouble = f"{name} {broken(error)}"
    except Exception as error:
        trouble = f"{name}, {case.title}: {in_one_line(error)}"
    if device == "cuda":
        torch.cuda.empty_cache()  # the others need it
    return trouble


def forget_choices(since: float) -> None:
    """Remove what torch.compile found fastest since then; it compares again when nothing else runs."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    for file in Path(cache_dir()).rglob(CHOICES):
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_mtime >= since - 1:
                file.unlink()


@contextlib.contextmanager
def environment(settings: dict[str, str]) -> Iterator[None]:
    """Variables for the processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def count_first_calls(folder: Path, calls: Sequence[tuple[str, int]]) -> None:
    """Count for each (operation, columns), in a process with an empty cache, and write all of it or nothing."""
    if (folder / FIRST_CALL_FILE).exists():
        return
    at_once = min(len(calls), os.cpu_count() or 1)  # nothing is timed
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        counted = list(pool.map(lambda call: _count(*call), calls))
    write_whole(
        folder / FIRST_CALL_FILE, msgspec.json.format(msgspec.json.encode(counted), indent=1)
    )
    print(f"first calls of {len(counted)} widths counted", flush=True)


def _count(operation: str, cols: int) -> FirstCall:
    script = Path(__file__).with_name("first_call.py")
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, script, operation, str(cols)],
            env=os.environ | {"TRITON_CACHE_DIR": cache, "TRITON_ALWAYS_COMPILE": "0"},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise RuntimeError(f"first call of {operation}, {cols} columns: {done.stderr.strip()}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=FirstCall)
