"""``rownorm tune``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...command_line.options import (
    ARCHS,
    EXISTING_FOLDER,
    FOLDER,
    case_options,
    count_option,
    examples,
    finite,
    held,
    json_option,
    name_option,
    named_options,
    refuse_taken,
    say_loading,
    split_names,
    usage_errors,
    words_aside,
)
from ...command_line.own_kernel import OwnOptions, own_kernel_options
from ...command_line.ray import connected, ray_option
from ...data.case import ACTIVATIONS, DTYPES
from ...data.user_files import is_place, source_of

if TYPE_CHECKING:
    from ...cluster.pool import Pool
    from ...data.records import Environment
    from ...data.tunings import TuneRequest

WIDTHS = (
    *(128, 256, 512, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192, 12288),
    *(16384, 32768, 65536, 131072, 262144),
)
OPTIONS = ("pre_bias", "activation", *ACTIVATIONS)
BLOCKS = "64,128,256,512,1024,2048,4096"
_CASES = ("widths", "operations", "dtypes")
_OWN = ("over", *OwnOptions._fields)  # options of a user's kernel
USES = {  # options that each of these uses beside itself
    "kernel": (*_OWN, "out", "target", "as_json"),
    "study": (*_CASES, "out", "blocks", "target", "as_json"),
    "only_list": (*_CASES, "directions", "residual_dtype", "option", "target", "as_json"),
    "resume": ("workers", "limit_s", "ray_address", "as_json"),
    "verify": ("out", "workers", "limit_s", "ray_address", "as_json"),
}
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


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
    return tuple(widths)


@click.command(
    "tune",
    epilog=examples(
        "rownorm tune --width 4096 --op rms_norm --dtype bf16 --out results/tuned",
        "rownorm tune --resume results/tuned",
        "rownorm tune --width 4096 --op rms_norm --pass forward --dtype bf16 --list",
        "rownorm tune --dtype bf16 --option activation --width 4096,8192 --update sm_90.json",
        "rownorm tune --study --width 4096 --out results/blocks && rownorm report results/blocks",
        "rownorm tune --verify 24 --limit-s 280 --out results/verified",
        "rownorm tune --dtype bf16 --ray head-node:6379 --out results/tuned",
        "rownorm tune my_norm.py:my_kernel --over BLOCK=64..1024 --over num_warps=1,2,4,8",
    ),
)
@click.argument("kernel", required=False, metavar="[FILE.py:kernel]")
@click.option(
    "--over",
    multiple=True,
    metavar="NAME=VALUES",
    help="FILE.py:kernel: values of a constant or of num_warps, num_stages: 64,128 or 64..1024, which doubles.",
)
@own_kernel_options
@click.option("--out", type=FOLDER, help="A new folder; default: results/DATE-TIME.")
@click.option(
    "--resume", type=EXISTING_FOLDER, metavar="FOLDER", help="Continue a search that was ended."
)
@click.option(
    "--update",
    type=FILE,
    help="A table of this GPU whose other entries are copied into the new one.",
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
@count_option(
    "--workers",
    default=14,
    least=0,
    help="Processes that compile, with --ray for each GPU; 0: compile in the one that measures.",
)
@click.option(
    "--limit-s",
    type=click.FloatRange(min=0),
    callback=finite,
    help="Begin no entry after so many seconds; status 3.",
)
@ray_option
@click.option("--list", "only_list", is_flag=True, help="Compile the candidates and show them.")
@click.option(
    "--study",
    is_flag=True,
    help="Time against block size, and RMSNorm + ReLU fused and in two steps. No GPU: predicted.",
)
@click.option(
    "--blocks", metavar="N,N,...", default=BLOCKS, show_default=True, help="With --study."
)
@name_option(
    "--target", what="target", known=ARCHS, help="--list and --study without a GPU: default sm_90"
)
@click.option(
    "--verify",
    type=click.IntRange(min=1),
    metavar="N",
    help="Search N entries of the shipped table again and compare. Status 1 if one is over 1% slower.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    kernel: str | None,
    over: Sequence[str],
    out: Path | None,
    resume: Path | None,
    update: Path | None,
    widths: Sequence[int],
    operations: Sequence[str],
    directions: Sequence[str],
    dtypes: Sequence[str],
    residual_dtype: str | None,
    option: str | None,
    workers: int,
    limit_s: float | None,
    ray_address: str | None,
    only_list: bool,
    study: bool,
    blocks: str,
    target: str | None,
    verify: int | None,
    as_json: bool,
    **own: Any,
) -> None:
    """Find the fastest launch settings on this GPU and write the table that plans come from.

    With FILE.py:kernel and --over: the constants of a kernel of yours, every combination, predicted beside measured;
    without a GPU predicted only. docs/own-kernel.md explains it.

    Candidates are compiled in parallel. Those that spill or do not suit a multiprocessor are left out, the results of
    the others are checked against fp64, and each is timed as rownorm bench does it. The table is FOLDER/<arch>.json;
    rownorm uses it with ROWNORM_TABLES=FOLDER, or from ~/.config/rownorm/tables. Ctrl-C keeps what was measured.
    With --ray, the GPUs of a cluster, which must be of one kind, search different entries at the same time.
    docs/tuning.md explains it.
    """
    _refuse_others(context)
    if kernel is not None:
        if not is_place(kernel):
            raise click.UsageError(
                f"{kernel!r} is not FILE.py:kernel, a kernel of yours; for rownorm's kernels give no argument"
            )
        with usage_errors():
            source_of(kernel)
        if not over:
            raise click.UsageError(
                "name what to vary of the kernel: --over BLOCK=64..1024 --over num_warps=2,4,8"
            )
    if kernel or study or only_list:
        say_loading("torch and the compiler")
    if out is not None and (kernel or study):
        if study:
            refuse_taken(out)
        context.with_resource(held(out))
    if kernel is not None:
        from .own import tune_own

        context.exit(tune_own(kernel, OwnOptions(**own), over, target, out, as_json))
    if study:
        from .block_study import run_study

        context.exit(run_study(widths, operations, dtypes, blocks, target, out, as_json))
    import msgspec

    from ...data.records import Environment
    from ...data.runs import new_name
    from ...data.tunings import TuneRequest
    from ...device.environment import environment
    from .run import studies_of

    # With --ray, the environment is that of the cluster, and this process leaves the GPU alone.
    nowhere = Environment(device="", kind="cpu")
    request = TuneRequest(
        environment=nowhere if ray_address else environment(),
        operations=list(operations or ("rms_norm", "layer_norm")),
        directions=list(directions or ("forward", "backward")),
        dtypes=list(dtypes or ("bf16", "fp32")),
        widths=list(widths or WIDTHS),
        residual_dtype=residual_dtype,
        option=option or "",
        update=str(update.resolve()) if update else "",
    )
    if {"bf16", "fp16"} <= set(request.dtypes):
        raise click.UsageError("bf16 and fp16 share the entries of a table: tune one of them")
    if only_list:
        from .listing import run_list

        context.exit(run_list(request, target, as_json))
    local, folder = request.environment, resume or out or new_name()
    if resume is not None:
        request = _resumed(resume)
    else:
        refuse_taken(folder, f", or continue it: --resume {shlex.quote(str(folder))}")
    with connected(ray_address, verify or len(studies_of(request))) as pool:
        here = pool.environment if pool else local
        if resume is not None:
            _refuse_changed(folder, request, here)
        elif verify is not None:
            request = _verifying(verify, here)
        request = msgspec.structs.replace(request, environment=here)
        with words_aside(as_json):
            status = _run(request, folder, workers, limit_s, pool)
    table = folder / f"{here.arch}.json"
    if as_json and table.exists():
        click.echo(table.read_text(encoding="utf-8"))
    context.exit(status)


def _refuse_others(context: click.Context) -> None:
    """Refuse options that what is asked for does not use."""
    mode = next((name for name in USES if context.params.get(name)), "")
    flags = named_options(context)
    others = [
        flags[name]
        for name in context.params
        if name in flags
        and name != mode
        and ((name not in USES[mode]) if mode else name in ("blocks", "target", *_OWN))
    ]
    if others:
        where = f"{flags[mode]} does not use" if mode else "only --list and --study use"
        if not mode and set(others) & {flags.get(name) for name in _OWN}:
            where = "only FILE.py:kernel uses"
        raise click.UsageError(f"{where} {', '.join(others)}", context)


def _resumed(folder: Path) -> TuneRequest:
    from ...data.tunings import REQUEST, TuneRequest, read

    with usage_errors():
        request = read(folder, REQUEST, TuneRequest)
    if request is None:
        raise click.UsageError(f"{folder} is not a folder that tune has written: no {REQUEST}")
    return request


def _refuse_changed(folder: Path, request: TuneRequest, here: Environment) -> None:
    if changed := request.environment.differences(here):
        raise click.UsageError(
            f"{folder} was measured differently: {'; '.join(changed)}. Start a new folder."
        )


def _verifying(n: int, here: Environment) -> TuneRequest:
    from rownorm.inside import TARGETS, tables

    from ...data.tunings import TuneRequest
    from .verify import drawn

    table = tables.shipped_file(here.arch)
    if table is None:
        raise click.UsageError(
            f"--verify: rownorm ships no table for {here.arch or 'a CPU'}, the device of this machine"
        )
    return TuneRequest(environment=here, verify=drawn(table, TARGETS[here.arch].device, n))


def _run(
    request: TuneRequest, folder: Path, workers: int, limit_s: float | None, pool: Pool | None
) -> int:
    from .run import run_tune
    from .table import read_base

    if request.environment.kind == "cpu":
        raise click.UsageError(
            "there is no GPU here to tune for. Without one, --list shows the candidates and --study predicts times"
        )
    try:
        if request.update:
            read_base(Path(request.update), request.environment)
    except ValueError as error:
        raise click.UsageError(f"--update: {error}") from None
    with held(folder):
        if pool is not None:
            from .jobs import run_on

            return run_on(pool, folder, request, workers, limit_s)
        from .gpu import gpu_here

        gpu = gpu_here(workers)
        return run_tune(folder, request, gpu.device, gpu.ahead, gpu.timer_of, limit_s)
