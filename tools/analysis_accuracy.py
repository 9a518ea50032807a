"""Compare what ``rownorm analyze`` predicts with what ncu counts and the lab's timing measures. Needs an NVIDIA GPU.

    python tools/analysis_accuracy.py run results/accuracy --docs docs/analysis-accuracy.md
    python tools/analysis_accuracy.py tuned --docs docs/analysis-accuracy.md        # needs no GPU

``tuned`` compares predictions with what the tuner measured, which the shipped table has.
``run`` compiles all kernels in several processes first. Then ncu profiles one call of every case, and every case is
timed beside the ceiling. ncu.csv and time-NN.json keep what was measured: ``run`` continues a folder, and ``table``
makes the page from it again.
"""

from __future__ import annotations

import datetime
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from rownorm_lab.data.analyses import Analysis, KernelAnalysis, Measured
from rownorm_lab.data.case import Case
from rownorm_lab.data.files import write_whole
from rownorm_lab.data.tables import markdown
from rownorm_lab.data.texts import duration, percent
from rownorm_lab.profilers.ncu_csv import COUNTING, PRINTING, KernelRecord, parse

# Of x: a GiB in bf16, so that hardly any of the output is still in L2 when a kernel ends.
ELEMENTS = 1 << 29
COUNTERS, ANALYSES = "ncu.csv", "analyses.json"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_"
METRICS = [
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "launch__registers_per_thread",
    "sm__maximum_warps_per_active_cycle_pct",
    *(f"{SECTORS}{kind}.sum" for kind in ("ld", "st")),
]
TUNED = "## Beside the tuned table"
TUNED_ARCH = "sm_90"
TUNED_COLS = (32, 64, 96, 128, 192, 256, 1024, 4096, 16384, 65536, 262144)
FEW_ROWS = 32768  # the tuner's, unless an experiment took more
LATE = 0.15  # a predicted time may be off by this much
READS = 0.05
LARGE = 256e6  # bytes; reads of smaller kernels are not judged


class Planned(NamedTuple):
    """A case, and the regime that is forced; "" for the plan that a call would get."""

    case: Case
    regime: str = ""


def cases() -> Iterator[Planned]:
    """Every regime, forward and backward."""
    for operation in ("rms_norm", "layer_norm"):
        for cols in (32, 64, 128, 256, 1024, 4096, 8192, 16384, 65536, 131072, 262144):
            yield Planned(_case(operation, "forward", cols))
        for cols in (32, 64, 128, 256, 1024, 4096, 8192, 65536, 262144):
            yield Planned(_case(operation, "backward", cols))
    yield Planned(_case("rms_norm", "forward", 65536), "looped")
    yield Planned(_case("layer_norm", "forward", 65536), "split")
    yield Planned(_case("rms_norm", "backward", 16384), "looped")
    yield Planned(_case("rms_norm", "backward", 1000))
    yield Planned(_case("add_rms_norm", "forward", 4096))
    yield Planned(_case("add_rms_norm", "backward", 4096))


def _case(operation: Any, direction: Any, cols: int) -> Case:
    return Case(operation=operation, direction=direction, rows=ELEMENTS // cols, cols=cols)


def _forced(planned: Planned) -> AbstractContextManager[None]:
    from rownorm.inside import force

    return force(regime=planned.regime) if planned.regime else nullcontext()


@click.group(help=__doc__.splitlines()[0])
def main() -> None:
    """The command group."""


@main.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--docs", type=click.Path(dir_okay=False, path_type=Path), help="A page to write.")
@click.option("--workers", default=6, show_default=True, help="Processes that compile.")
@click.option("--ncu", default="ncu", show_default=True, help="The program.")
@click.option("--few", type=int, default=0, help="Only so many cases: a trial.")
def run(folder: Path, docs: Path | None, workers: int, ncu: str, few: int) -> None:
    """Compile, count, time, and compare."""
    planned = list(cases())[: few or None]
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def say(what: str) -> None:
        click.echo(f"{time.monotonic() - began:.0f} s: {what}", err=True)

    spawn = multiprocessing.get_context("spawn")
    if not (folder / COUNTERS).exists():
        say(f"compiling {len(planned)} cases")
        with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
            list(pool.map(_call_once, planned))
        say("counting with ncu")
        _count(folder / COUNTERS, ncu, len(planned))
    say("timing")
    failed = _time_all(folder, len(planned))
    if failed:
        names = ", ".join(f"{planned[n].case.title} {planned[n].regime}".strip() for n in failed)
        raise click.ClickException(f"not timed: {names}. Run it again to retry.")
    say("analyzing with the measured ceilings")
    times = [_read_time(folder, number) for number in range(len(planned))]
    with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        analyses = list(pool.map(_predicted, planned, times))
    write_whole(folder / ANALYSES, msgspec.json.encode(analyses))
    say("done")
    _show(folder, docs)


def _time_all(folder: Path, n_cases: int) -> list[int]:
    """Time the cases that the folder lacks in one process, after a failure the rest in a new one. Those that failed."""
    failed: list[int] = []
    while todo := [
        n for n in range(n_cases) if n not in failed and not _time_file(folder, n).exists()
    ]:
        command = [sys.executable, __file__, "time", str(folder), *map(str, todo)]
        ran = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if ran.returncode:
            click.echo(ran.stderr[-3000:], err=True)
        left = [n for n in todo if not _time_file(folder, n).exists()]
        failed += left[:1]
    return failed


@main.command("time", hidden=True)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("numbers", type=int, nargs=-1)
def time_some(folder: Path, numbers: tuple[int, ...]) -> None:
    """Time these cases."""
    from rownorm_lab.compiled.measured import measured_case

    planned = list(cases())
    for number in numbers:
        click.echo(f"{planned[number].case.title} {planned[number].regime}", err=True)
        with _forced(planned[number]):
            [found] = measured_case(planned[number].case, ["rownorm"])
        write_whole(_time_file(folder, number), msgspec.json.encode(found))


def _time_file(folder: Path, number: int) -> Path:
    return folder / f"time-{number:02}.json"


def _read_time(folder: Path, number: int) -> Measured:
    return msgspec.json.decode(_time_file(folder, number).read_bytes(), type=Measured)


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--docs", type=click.Path(dir_okay=False, path_type=Path), help="A page to write.")
def table(folder: Path, docs: Path | None) -> None:
    """Compare what ``run`` measured."""
    _show(folder, docs)


@main.command()
@click.option(
    "--docs", type=click.Path(dir_okay=False, path_type=Path), help="A page to write into."
)
def tuned(docs: Path | None) -> None:
    """Compare the shares of the ceiling that the tuner measured with predictions. No GPU is needed."""
    section = _tuned_section()
    click.echo(section)
    if docs is not None:
        write_whole(
            docs, f"{docs.read_text().partition(TUNED)[0].rstrip()}\n\n{TUNED}\n\n{section}\n"
        )


def _tuned_section() -> str:
    """A table of the plain norms in 16 bits."""
    from rownorm_lab.compiled.analysis import analyze
    from rownorm_lab.compiled.compile import compile_case, target_of
    from rownorm_lab.compiled.roofline import Ceiling

    lines, off = [], []
    for case, entry in _tuned_cases():
        ceiling = entry["ceiling_gb_per_s"]
        one = analyze(
            compile_case(case, target_of(TUNED_ARCH)), ceiling=Ceiling(ceiling * 1e9, "the table")
        )
        predicted = one.compulsory_bytes / one.predicted_seconds / (ceiling * 1e9)
        measured = entry["gb_per_s"] / ceiling
        off.append((abs(predicted / measured - 1), case))
        bound = max(one.kernels, key=lambda kernel: kernel.predicted_seconds).bound
        shares = [
            percent(predicted),
            percent(measured),
            f"{100 * (predicted / measured - 1):+.0f}%",
        ]
        lines.append([case.title, f"{ceiling:,}", f"{entry['gb_per_s']:,}", *shares, bound])
    worst, case = max(off, key=lambda pair: pair[0])
    good = sum(one <= LATE for one, _ in off)
    head = [
        "case",
        "ceiling, GB/s",
        "measured GB/s",
        "predicted, of ceiling",
        "measured, of ceiling",
    ]
    return "\n\n".join(
        [
            f"Predictions for the plans that the shipped table of {TUNED_ARCH} has, beside what the tuner measured on "
            "an H200, with the ceiling of its run. Entries with a ceiling below 4,000 GB/s were measured with "
            f"{FEW_ROWS} rows, which are few bytes at these widths. Made by `tools/analysis_accuracy.py tuned`, "
            "without a GPU.",
            f"{good} of {len(off)} are within {percent(LATE)}. The prediction is furthest off for {case.title}, by "
            f"{percent(worst)}. Backward passes of narrow rows are predicted too fast: their arithmetic and the sums "
            "at the end of a program are not modeled.",
            markdown([*head, "off by", "bound by"], lines),
        ]
    )


def _tuned_cases() -> Iterator[tuple[Case, dict[str, Any]]]:
    """The entries of the table of plain norms in bf16 that have a ceiling, for any Triton; and their cases."""
    from rownorm.inside import tables

    text = (Path(tables.__file__).parent / "tables" / f"{TUNED_ARCH}.json").read_text()
    seen = set()
    for entry in msgspec.json.decode(text)["plans"]:
        cols, ceiling = entry.get("measured_cols", entry["max_cols"]), entry.get("ceiling_gb_per_s")
        key = entry["direction"], entry["center"], cols
        plain = entry["itemsize"] == 2 and not (entry["residual"] or entry["option"])
        if not plain or cols not in TUNED_COLS or not ceiling or "triton" in entry or key in seen:
            continue
        seen.add(key)
        operation = "layer_norm" if entry["center"] else "rms_norm"
        rows = FEW_ROWS if ceiling < 4000 else ELEMENTS // cols
        yield msgspec.structs.replace(_case(operation, entry["direction"], cols), rows=rows), entry


@main.command(hidden=True)
@click.argument("n_cases", type=int)
def work(n_cases: int) -> None:
    """What ncu profiles: one call of every case."""
    import torch

    from rownorm_lab.measure.timing import call_for_ncu

    for planned in list(cases())[:n_cases]:
        with _forced(planned):
            call_for_ncu(_prepared(planned.case))
        torch.cuda.empty_cache()


def _prepared(case: Case) -> Any:
    from rownorm_lab.providers import all_providers, data

    [tensors] = data.rotation(case, 1, "cuda")
    return all_providers()["rownorm"].prepare(case, tensors)


def _call_once(planned: Planned) -> None:
    """Compile for the call and for the analysis; Triton keeps both on disk."""
    import torch

    with _forced(planned):
        _prepared(planned.case)()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        _analysis(planned.case)


def _count(file: Path, ncu: str, n_cases: int) -> None:
    command = [ncu, *PRINTING, *COUNTING, "--metrics", ",".join(METRICS)]
    command += ["--kernel-name-base", "function", "-k", "regex:^(forward|backward|column)_"]
    command += [sys.executable, __file__, "work", str(n_cases)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    write_whole(file, ran.stdout)
    if ran.returncode:
        raise click.ClickException(f"ncu failed: {(ran.stderr or ran.stdout).strip()[-2000:]}")


def _analysis(case: Case, ceiling: float | None = None) -> Analysis:
    from rownorm_lab.compiled.analysis import analyze
    from rownorm_lab.compiled.compile import compile_case, target_of
    from rownorm_lab.compiled.roofline import Ceiling

    roof = None if ceiling is None else Ceiling(ceiling, "measured at the same size")
    return analyze(compile_case(case, target_of("this")), ceiling=roof)


def _predicted(planned: Planned, found: Measured) -> Analysis:
    """The analysis with the ceiling that was measured, and the measured time."""
    with _forced(planned):
        return msgspec.structs.replace(_analysis(planned.case, found.ceiling), measured=found)


class Compared(NamedTuple):
    """One kernel: predicted and counted."""

    analysis: Analysis
    kernel: KernelAnalysis
    counted: KernelRecord


def _compared(analyses: list[Analysis], counted: list[KernelRecord]) -> list[Compared]:
    """The kernels of all cases in order, each with its launch."""
    kernels = [(one, kernel) for one in analyses for kernel in one.kernels]
    names = [kernel.kernel for _, kernel in kernels]
    if names != [record.kernel for record in counted]:
        raise click.ClickException(
            f"ncu profiled {[record.kernel for record in counted]}; expected {names}"
        )
    return [Compared(*pair, record) for pair, record in zip(kernels, counted, strict=True)]


def _sectors(kernel: KernelAnalysis, *kinds: str) -> int:
    return sum(one.sectors for one in kernel.tensors if one.kind in kinds)


def _line(one: Compared) -> list[str]:
    analysis, kernel, counted = one
    found = counted.metrics.get
    polls = any(tensor.kind == "poll" for tensor in kernel.tensors)
    loads = _sectors(kernel, "load", "copy", "poll"), found(f"{SECTORS}ld.sum", 0.0)
    stores = _sectors(kernel, "store"), found(f"{SECTORS}st.sum", 0.0)
    read, written = found("dram__bytes_read.sum", 0.0), found("dram__bytes_write.sum", 0.0)
    occupancy = found("sm__maximum_warps_per_active_cycle_pct", 0.0)
    return [
        analysis.case.title,
        analysis.plan.split(":")[0],
        kernel.kernel,
        _pair(kernel.memory_read / 1e6, read / 1e6),
        _pair(kernel.memory_written / 1e6, written / 1e6),
        _pair(*loads) + (" polls" if polls else ""),
        _pair(*stores),
        f"{kernel.registers} / {found('launch__registers_per_thread', 0.0):.0f}",
        f"{100 * kernel.occupancy:.1f} / {occupancy:.1f}",
    ]


def _pair(predicted: float, counted: float) -> str:
    text = f"{predicted:,.0f} / {counted:,.0f}"
    if predicted and counted and round(predicted) != round(counted):
        text += f" ({100 * (predicted / counted - 1):+.2f}%)"
    return text


def _verdicts(lines: list[Compared], analyses: list[Analysis]) -> list[str]:
    """What holds and what does not, in words."""
    big = [one for one in lines if one.kernel.memory_read > LARGE]
    good = [
        one
        for one in big
        if abs(one.kernel.memory_read / one.counted.metrics["dram__bytes_read.sum"] - 1) <= READS
    ]
    timed = [one for one in analyses if one.measured]
    on_time = [
        one
        for one in timed
        if one.measured and abs(one.predicted_seconds / one.measured.seconds - 1) <= LATE
    ]
    return [
        f"Reads from memory are within {percent(READS)} for {len(good)} of {len(big)} kernels that read more than "
        "256 MB.",
        f"Times are within {percent(LATE)} for {len(on_time)} of {len(timed)} cases.",
    ]


def _misses(lines: list[Compared]) -> list[str]:
    """Kernels whose counters differ from the prediction, with the reason where it is known."""
    found = []
    for analysis, kernel, counted in lines:
        where = f"{kernel.kernel} of {analysis.case.title}, {analysis.plan.split(':')[0]}"
        read = kernel.memory_read / counted.metrics["dram__bytes_read.sum"] - 1
        if abs(read) > READS and kernel.memory_read > LARGE:
            why = "the reason is not known"
            if kernel.passes > 1.5:
                why = (
                    "its rows in work exceed half of L2, so the prediction takes the whole second pass from memory; "
                    "in fact a part of it is still in L2"
                )
            found.append(f"{where}: reads are off by {percent(read)}: {why}.")
        sectors = _sectors(kernel, "load", "copy") / counted.metrics[f"{SECTORS}ld.sum"] - 1
        polls = any(tensor.kind == "poll" for tensor in kernel.tensors)
        if sectors and not polls:
            why = "the reason is not known"
            if analysis.case.cols * analysis.case.torch_dtype.itemsize % kernel.sector_bytes:
                why = (
                    "rows begin between sectors; copies of 16 bytes per thread are then split for 8 threads at a time, "
                    "which the prediction has, and a little more, which it has not"
                )
            found.append(f"{where}: sectors are off by {100 * sectors:.2f}%: {why}.")
    return found


def _time_line(one: Analysis) -> list[str]:
    assert one.measured is not None
    seconds, ceiling = one.measured.seconds, one.measured.ceiling or 0.0
    bound = max(one.kernels, key=lambda kernel: kernel.predicted_seconds).bound
    return [
        one.case.title,
        one.plan.split(":")[0],
        f"{ceiling / 1e9:,.0f}",
        duration(one.predicted_seconds),
        duration(seconds),
        f"{100 * (one.predicted_seconds / seconds - 1):+.1f}%",
        bound,
    ]


def _show(folder: Path, docs: Path | None) -> None:
    analyses = msgspec.json.decode((folder / ANALYSES).read_bytes(), type=list[Analysis])
    counted = parse((folder / COUNTERS).read_text())
    lines = _compared(analyses, counted)
    first, date = analyses[0], datetime.date.fromtimestamp((folder / COUNTERS).stat().st_mtime)
    assert first.measured is not None
    head = ["case", "regime", "kernel", "MB read", "MB written", "sectors loaded"]
    head += ["sectors stored", "registers", "occupancy, %"]
    times = ["case", "regime", "ceiling, GB/s", "predicted", "measured", "off by", "bound by"]
    text = "\n\n".join(
        [
            "# Predicted and measured",
            f"`rownorm analyze` on {first.measured.device}, Triton {first.triton}, {date}, {len(analyses)} cases. Each "
            "cell is predicted / counted by ncu. Written by `tools/analysis_accuracy.py`.",
            "\n".join(f"- {one}" for one in _verdicts(lines, analyses)),
            "## Counters",
            markdown(head, [_line(one) for one in lines]),
            "## What differs",
            "\n".join(f"- {one}" for one in _misses(lines)) or "Nothing.",
            "Writes are up to 3% below the prediction: the last lines of the output stay in L2 when a kernel ends. "
            "Programs of a grid plan load a word until it changes; each wait is predicted as one load.",
            "## Times",
            "Predicted from the ceiling that was measured at the same size.",
            markdown(times, [_time_line(one) for one in analyses]),
        ]
    )
    click.echo(text)
    if docs is not None:
        _, heading, section = (docs.read_text() if docs.exists() else "").partition(TUNED)
        write_whole(docs, f"{text}\n\n{heading}{section}".rstrip() + "\n")
        click.echo(f"wrote {docs}", err=True)


if __name__ == "__main__":
    main()
