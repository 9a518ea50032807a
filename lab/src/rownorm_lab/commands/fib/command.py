"""``rownorm fib``: export, check, run, report, apply."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...command_line.options import (
    EXISTING_FOLDER,
    FOLDER,
    SuggestingGroup,
    examples,
    held,
    json_option,
    name_option,
    names_option,
    print_json,
    refuse_taken,
    usage_errors,
)
from ...data.case import DTYPES, OPERATIONS
from ...data.texts import count

if TYPE_CHECKING:
    from ...fib.dataset import Dataset

CONVENTION_NAMES = ("course", "public")
DATASET = click.argument("folder", metavar="DIR", type=EXISTING_FOLDER)


@click.group(
    "fib",
    cls=SuggestingGroup,
    epilog=examples(
        "rownorm fib export results/fib",
        "rownorm fib check results/fib",
        "rownorm fib run results/fib",
        "rownorm fib report results/fib",
        "rownorm fib apply results/fib -- python app.py",
    ),
)
def command() -> None:
    """FlashInfer-Bench: rownorm's kernels as Solutions, with its own tools to time and apply them.

    Needs the package flashinfer-bench; rownorm info says how to install it. --for-flashinfer does not.
    """


def _sizes(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> tuple[int, ...]:
    """The callback of --cols and --batch: sizes, repeated or separated by commas."""
    try:
        sizes = [int(part) for value in values for part in value.split(",") if part.strip()]
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None
    if any(size < 1 for size in sizes):
        raise click.BadParameter("sizes are at least 1", context, parameter)
    return tuple(dict.fromkeys(sizes))


@command.command(
    epilog=examples(
        "rownorm fib export results/fib",
        "rownorm fib export results/wide --op rms_norm,layer_norm --cols 8192,16384 --dtype bf16",
        "rownorm fib export results/public --convention public",
        "rownorm fib export ~/flashinfer-trace --serve",
        "rownorm fib export results/flashinfer --for-flashinfer --cols 4096,5120 --eps 1e-5",
    )
)
@click.argument("folder", metavar="DIR", type=FOLDER)
@name_option("--convention", what="convention", known=CONVENTION_NAMES, help="Names and dtypes")
@names_option("--op", "operations", what="operation", known=OPERATIONS, help="Default: rms_norm.")
@names_option(
    "--dtype",
    "dtypes",
    what="dtype",
    known=DTYPES,
    help="Default: fp16; bf16 in the public convention.",
)
@click.option(
    "--cols",
    multiple=True,
    callback=_sizes,
    metavar="N,...",
    help="Widths. Default: 4096; public and --for-flashinfer: those of common models.",
)
@click.option(
    "--batch", multiple=True, callback=_sizes, metavar="N,...", help="Default: 1,8,32,128,512."
)
@click.option(
    "--eps",
    type=float,
    help="Default: 1e-6; 1e-5 for LayerNorm and public 4096, 8192. With --for-flashinfer: 1e-6 for all.",
)
@click.option(
    "--serve",
    is_flag=True,
    help="DIR is a dataset: add Solutions for those of its Definitions that rownorm computes.",
)
@click.option(
    "--for-flashinfer",
    is_flag=True,
    help="A dataset that FlashInfer applies. It ignores the eps of its caller: see above.",
)
@click.pass_context
def export(
    context: click.Context,
    /,
    folder: Path,
    convention: str | None,
    operations: Sequence[str],
    dtypes: Sequence[str],
    cols: Sequence[int],
    batch: Sequence[int],
    eps: float | None,
    serve: bool,
    for_flashinfer: bool,
) -> None:
    """Write a dataset: Definitions, Workloads, and three Solutions for each Definition.

    rownorm_NAME is self-contained: it holds the library's own source files and runs where rownorm is not installed.
    rownorm_package_NAME calls the installed rownorm. torch_NAME is the baseline. Without options, the Definition is
    rmsnorm_d4096: fp16, eps as an input, batches of 1 to 512.

    --for-flashinfer: a dataset for FlashInfer's own FLASHINFER_TRACE_APPLY=1, with its names of norms and one Solution
    for each, which calls the installed rownorm. WARNING: FlashInfer does not pass the caller's eps to a Solution, so
    every norm is computed with --eps, whatever the program asks for. Of the other options, it takes --cols.

    Exit status 1 if a Definition is skipped.
    """
    if for_flashinfer:
        if any((convention, operations, dtypes, batch, serve)):
            raise click.UsageError("--for-flashinfer takes --cols and --eps; leave out the others")
        refuse_taken(folder, "", "'DIR'")
        _check_eps(eps)
        from .flashinfer import export_for_flashinfer

        export_for_flashinfer(folder, cols, eps)
        return
    _require_package()
    from .export import export_new, serve_dataset

    if serve:
        if any((convention, operations, dtypes, cols, batch, eps)):
            raise click.UsageError(
                "--serve takes its Definitions from DIR; leave out the other options"
            )
        dataset = _read(folder)
        context.exit(serve_dataset(dataset))
    refuse_taken(folder, ", or --serve to add Solutions to a dataset", "'DIR'")
    _check_eps(eps)
    export_new(folder, convention or "course", operations, dtypes, cols, batch, eps)


def _check_eps(eps: float | None) -> None:
    if eps is not None and not 0 < eps < 1:
        raise click.BadParameter("must be between 0 and 1", param_hint="'--eps'")


@command.command(
    epilog=examples(
        "rownorm fib check results/fib", "rownorm fib check results/flashinfer --for-flashinfer"
    )
)
@DATASET
@json_option
@click.option(
    "--for-flashinfer", is_flag=True, help="Let FlashInfer load and apply it, and call each norm."
)
@click.pass_context
def check(context: click.Context, /, folder: Path, as_json: bool, for_flashinfer: bool) -> None:
    """Validate a dataset, build every Solution, and compare it with the reference on every workload.

    An error must be below 1e-3 of the value in fp16 and fp32, and at most one step in bf16. FlashInfer-Bench's looser
    verdict is shown beside it. Without a GPU the kernels run in Triton's interpreter: the default export takes a
    minute.

    --for-flashinfer needs flashinfer-python and says what its loader says: whether it takes the folder, and for each
    Solution whether a call of FlashInfer's function comes to it and gives what the Definition's reference gives.

    Exit status 1 if a file or a Definition is left out, or a Solution is wrong or fails.
    """
    import torch

    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    if for_flashinfer:
        from .flashinfer import check_for_flashinfer

        with usage_errors():
            context.exit(check_for_flashinfer(folder, device, as_json=as_json))
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    dataset = _read(folder)
    from ...fib.check import Checked
    from ...fib.check import check as check_all

    if device == "cpu":
        click.echo("There is no GPU here: kernels run in Triton's interpreter.", err=as_json)
    found: list[Checked] = []
    left_out = [*dataset.problems]
    for one in check_all(dataset, device):
        if isinstance(one, Checked):
            found.append(one)
            click.echo(str(one), err=as_json or one.status != "ok")
        else:
            left_out.append(one)
            _show([one])
    good = sum(one.status == "ok" for one in found)
    bad = len(left_out) + len(found) - good
    are = "is" if good == 1 else "are"
    click.echo(
        f"{count(good, 'result')} {are} right; {bad} wrong, failed or left out.", err=as_json
    )
    if as_json:
        results = [{**one._asdict(), "solution": one.solution.name} for one in found]
        print_json({"results": results, "left_out": [one._asdict() for one in left_out]})
    context.exit(int(bool(bad or not good)))


@command.command(
    epilog=examples("rownorm fib run results/fib", "rownorm fib run results/fib --resume")
)
@DATASET
@click.option("--definition", "definitions", multiple=True, help="Only these; default: all.")
@click.option("--resume", is_flag=True, help="Leave out what has a PASSED trace already.")
@click.option("--iterations", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=15, show_default=True)
@click.pass_context
def run(
    context: click.Context,
    /,
    folder: Path,
    definitions: Sequence[str],
    resume: bool,
    iterations: int,
    rounds: int,
) -> None:
    """Time every Solution with FlashInfer-Bench's runner on all GPUs, then with the lab's clock.

    Traces go to DIR/traces, where FlashInfer-Bench expects them, and to DIR/traces.json; the lab's device times to
    DIR/records.jsonl. A workload is written as soon as it is finished. Ctrl-C keeps it, and --resume goes on.

    Exit status 1 if a Solution of rownorm is not PASSED, 2 without a GPU.
    """
    import torch

    dataset = _read(folder)
    for name in definitions:
        if name not in dataset.content.definitions:
            raise click.BadParameter(f"{name} is not in {folder}", param_hint="'--definition'")
    if not torch.cuda.is_available():
        raise click.UsageError(
            "torch sees no GPU, and FlashInfer-Bench times on GPUs only. Without one, rownorm fib export, check, "
            "report and apply work."
        )
    context.with_resource(held(folder))
    from ...fib.run import run_dataset

    status = run_dataset(
        dataset, definitions=definitions, resume=resume, iterations=iterations, rounds=rounds
    )
    click.echo(f"Next: rownorm fib report {shlex.quote(str(folder))}")
    context.exit(status or int(bool(dataset.problems)))


@command.command(
    epilog=examples(
        "rownorm fib report results/fib",
        "rownorm fib report results/fib --out report --force",
        "rownorm fib report traces.json",
    )
)
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, path_type=Path))
@click.option("--out", type=FOLDER, help="Default: DIR/report.")
@click.option("--plots/--no-plots", default=True, help="Write plots/*.png as well.")
@click.option("--force", is_flag=True, help="Replace an existing report.")
@click.pass_context
def report(
    context: click.Context, /, folder: Path, out: Path | None, plots: bool, force: bool
) -> None:
    """Write the lab's report from the traces and device times of a dataset: report.html, plots, analysis.md.

    DIR is a dataset, a traces.json, or a folder with one.

    analysis.md has FlashInfer-Bench's latencies beside the lab's device times, and says why they differ. Traces of
    other authors are compared, too. Exit status 1 if something in DIR is left out.
    """
    listed = folder if folder.is_file() else folder / "traces.json"
    folder = listed.parent
    out = out or folder / "report"
    if not force:
        refuse_taken(out, ", or --force to replace the report in it")
    dataset = _read_traces(folder, listed)
    from ...page.write import PAGE
    from .report import write_report

    with usage_errors():
        files, left_out = write_report(
            dataset, out, plots=plots, on_step=lambda step: click.echo(step, err=True)
        )
    _show(left_out)
    click.echo(f"{count(len(files), 'file')} in {out}. Open {out / PAGE}")
    context.exit(int(bool(dataset.problems or left_out)))


@command.command(
    context_settings={"ignore_unknown_options": True},
    epilog=examples(
        "rownorm fib apply results/fib -- python app.py",
        "rownorm fib apply results/fib --log -- python -m my_package --batch 8",
    ),
)
@DATASET
@click.option("--log", is_flag=True, help="Print which Solution served each call, to stderr.")
@click.option("--any-author", is_flag=True, help="Take the fastest Solution; default: rownorm's.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def apply(
    context: click.Context, /, folder: Path, log: bool, any_author: bool, program: Sequence[str]
) -> None:
    """Run a Python program in which flashinfer_bench.apply uses the Solutions of a dataset.

    The program is ``python SCRIPT`` or ``python -m MODULE``, with its arguments. Inside another program, call
    rownorm_lab.fib.enable(DIR). Calls that no Solution can serve take the fallback that the program gave.

    The exit status is the program's.
    """
    import json

    python, *rest = program
    if not Path(python).name.startswith("python") or not rest:
        raise click.UsageError(
            f"the program must be python SCRIPT or python -m MODULE; got {' '.join(program)}. In other programs, call "
            "rownorm_lab.fib.enable."
        )
    _read(folder)
    from ...fib.applied import enable

    options: dict[str, Any] = {"log": log, **({"author": None} if any_author else {})}
    with usage_errors():
        enable(folder, **options).stop()  # so that errors are shown before the program starts
    interpreter = sys.executable if python in ("python", "python3") else python
    start = [interpreter, "-m", "rownorm_lab.fib.start", str(folder), json.dumps(options), *rest]
    context.exit(subprocess.run(start, check=False).returncode)


def _require_package() -> None:
    """A usage error with the command that installs it, if FlashInfer-Bench is missing."""
    from ...fib.package import missing

    if why := missing():
        raise click.UsageError(f"FlashInfer-Bench is missing: {why}")


def _read(folder: Path) -> Dataset:
    """The dataset; a line for each file that is left out. A usage error if the folder is no dataset."""
    _require_package()
    from ...fib.dataset import read

    with usage_errors():
        dataset = read(folder)
    _show(dataset.problems)
    return dataset


def _read_traces(folder: Path, listed: Path) -> Dataset:
    """The dataset with the traces of its folder traces/, else with those of the file ``listed``."""
    _require_package()
    from ...fib.dataset import DEFINITIONS
    from ...fib.traces import read_list

    if (folder / DEFINITIONS).is_dir():
        dataset = _read(folder)
        if dataset.content.traces or not listed.exists():
            return dataset
    elif not listed.exists():
        return _read(folder)  # it says what a dataset is
    with usage_errors():
        dataset = read_list(listed)
    _show(dataset.problems)
    return dataset


def _show(problems: Iterable[object]) -> None:
    for one in problems:
        click.echo(f"left out: {one}", err=True)
