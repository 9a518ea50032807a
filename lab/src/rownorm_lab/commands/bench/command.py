"""``rownorm bench``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ...command_line.options import (
    ALL_PROVIDERS,
    EXISTING_FOLDER,
    FOLDER,
    case_options,
    chosen_providers,
    count_option,
    examples,
    held,
    json_option,
    name_option,
    named_options,
    names_option,
    own_sources,
    print_json,
    provider_option,
    refuse_taken,
    say_loading,
    usage_errors,
    words_aside,
)
from ...command_line.ray import connected, ray_option
from ...data.case import ACTIVATIONS, DTYPES, GATE_ACTIVATIONS, OPERATIONS, Case
from ...data.shapes import SHAPE_EXAMPLES
from ...data.suites import SUITES
from ...data.user_files import is_place
from .selection import parse_shapes_option, select_cases

ROUNDS, QUICK_ROUNDS = 15, 7  # with fewer than 7, ``compare`` has no intervals for 50 cases
INTERPRETED_ROUNDS = 3
INTERPRETED_ELEMENTS = 1 << 18  # a call takes Triton's interpreter about 10 ms for each 1024
# Of a user's own provider, where none are named: on a GPU, on a CPU, in Triton's interpreter.
OWN_SHAPES, OWN_CPU_SHAPES, INTERPRETED_SHAPE = "4096x1024..16384", "512x256..4096", "16x1024"
NOTHING = "nothing to measure; for example: --suite quick, or --op rms_norm --shape 4096x8192"
SUITE_LIST = "\b\nSuites:\n" + "\n".join(f"  {s.name:15} {s.about}" for s in SUITES.values())


@click.command(
    "bench",
    epilog=examples(
        "rownorm bench --suite course",
        "rownorm bench --suite speed --op rms_norm --pass backward",
        "rownorm bench --op rms_norm,layer_norm --dtype bf16 --shape 4096x256..32768",
        "rownorm bench --op layer_norm --pre-bias --dtype fp32 --shape 512x8192 --provider rownorm,torch",
        "rownorm bench --op layer_norm --no-weight --sample-rows 1024 --shape 65536x3072",
        "rownorm bench --provider my_norm.py:rms_norm --shape 4096x1024..16384",
        "rownorm bench --suite llama-3-8b --list",
        "rownorm bench --resume results/2026-01-31-120000",
        "rownorm bench --suite speed-all --ray head-node:6379 --out results/all",
        before=f"{SUITE_LIST}\n\n",
    ),
)
@names_option(
    "--suite",
    "suites",
    what="suite",
    known=list(SUITES),
    help="A named list of cases; the suites are listed below.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="ROWSxCOLS",
    callback=parse_shapes_option,
    help=f"Sizes, lists and ranges: {SHAPE_EXAMPLES}. A range doubles, or goes in steps.",
)
@case_options(operations="rms_norm", directions="forward", dtypes="bf16")
@provider_option(ALL_PROVIDERS)
@click.option(
    "--bias/--no-bias", default=None, help="A bias after the norm. Default: LayerNorm only."
)
@click.option("--weight/--no-weight", default=None, help="A weight. Default: there is one.")
@click.option("--pre-bias", is_flag=True, default=None, help="A bias before the norm.")
@name_option("--activation", what="activation", known=ACTIVATIONS, help="After the norm")
@count_option(
    "--sample-rows",
    help="Scale and shift after the norm, shared by so many rows: y * (1 + scale) + shift.",
)
@click.option(
    "--residual-gate",
    is_flag=True,
    default=None,
    help="For add_ operations with --sample-rows: a factor of x, shared by as many rows.",
)
@name_option(
    "--gate-activation",
    what="activation",
    known=GATE_ACTIVATIONS,
    help="A gate, a factor of every element after this activation",
)
@click.option(
    "--gate-first", is_flag=True, default=None, help="The gate is before the norm, not after it."
)
@name_option("--residual-dtype", what="dtype", known=DTYPES, help="For add_ operations")
@click.option("--eps", type=float, help="Default: 1e-5.")
@click.option("--rounds", type=click.IntRange(min=1), help=f"Default: {ROUNDS}.")
@click.option("--quick", is_flag=True, help=f"{QUICK_ROUNDS} rounds; the quick suite by default.")
@click.option("--out", type=FOLDER, help="A new folder; default: results/DATE-TIME.")
@click.option(
    "--resume",
    type=EXISTING_FOLDER,
    metavar="FOLDER",
    help="Continue a run that was interrupted.",
)
@ray_option
@click.option("--list", "only_list", is_flag=True, help="Print the cases and stop.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    suites: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    operations: Sequence[str],
    directions: Sequence[str],
    dtypes: Sequence[str],
    providers: Sequence[str],
    rounds: int | None,
    quick: bool,
    out: Path | None,
    resume: Path | None,
    ray_address: str | None,
    only_list: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure: one record for each provider and case, written as soon as it is complete.

    --op, --pass and --dtype apply to the shapes of --shape. Of a --suite they select cases; by default all.
    Ctrl-C ends a run and keeps what was measured. --resume continues it, and retries what failed or was missing.
    --provider FILE.py:function measures a function of yours beside the others; docs/own-kernel.md explains it.
    With --ray, the GPUs of a cluster measure different cases at the same time; docs/method.md explains it.

    Exit status 1 if rownorm or your own provider failed or is wrong, or if nothing could be measured.
    """
    from ...data.runs import BenchRequest, new_name, read_request

    if resume is not None:
        _refuse_other_options(context, "resume", allowed=("ray_address", "as_json"))
        folder = resume
        with usage_errors():
            request = read_request(folder)
    else:
        if quick and not (suites or shapes):
            suites = ["quick"]
        own = any(is_place(part) for value in providers for part in value.split(","))
        if not (suites or shapes or own):
            raise click.UsageError(NOTHING)
        if not only_list:
            say_loading()
        names = chosen_providers(providers, beside_own=True) if own else []
        interpreted = _are_interpreted(names)
        if own and not (ray_address or only_list):
            _refuse_missing(names)
        if own and not (suites or shapes):
            shapes = _usual_shapes(interpreted, on_cluster=bool(ray_address))
        if shapes and not operations:
            operations = _operations_of(names)
        cases = select_cases(suites, shapes, operations, directions, dtypes, options)
        if not cases:
            raise click.UsageError(NOTHING)
        if only_list:
            if as_json:
                print_json({"cases": cases})
            else:
                click.echo("\n".join(f"{case.key}  {case.name}".rstrip() for case in cases))
            return
        if not names and (providers or not ray_address):
            names = chosen_providers(providers)
        usual_rounds = QUICK_ROUNDS if quick else ROUNDS
        if interpreted:
            usual_rounds = INTERPRETED_ROUNDS
            _refuse_large(cases)
        request = BenchRequest(
            cases=cases,
            providers=names,
            rounds=rounds or usual_rounds,
            sources=own_sources(names),
        )
        folder = out or new_name()
        refuse_taken(folder, f", or continue it: --resume {shlex.quote(str(folder))}")
    from .run import document, run_bench

    with (
        words_aside(as_json),
        connected(ray_address, len(request.cases)) as pool,
        held(folder),
    ):
        status = run_bench(folder, request, pool)
    if as_json:
        print_json(document(folder))
    context.exit(status)


def _operations_of(names: Sequence[str]) -> list[str]:
    """What users' own providers offer, if none of them offers the operation that is measured by default."""
    if not names:
        return []
    from ...providers import all_providers

    known = all_providers()
    offered = {one for name in names if known[name].source for one in known[name].operations}
    return [] if "rms_norm" in offered else [one for one in OPERATIONS if one in offered]


def _are_interpreted(names: Sequence[str]) -> bool:
    """Whether Triton's interpreter runs a user's own provider."""
    if not names:
        return False
    from ...providers import all_providers, is_interpreted

    chosen = [all_providers()[name] for name in names]
    return any(one.source and is_interpreted(one) for one in chosen)


def _usual_shapes(interpreted: bool, on_cluster: bool) -> Sequence[tuple[int, int]]:
    """The shapes of a user's own provider where none are named; they are printed."""
    import torch

    from ...data.shapes import parse_shapes

    usual = OWN_SHAPES if on_cluster or torch.cuda.is_available() else OWN_CPU_SHAPES
    usual = INTERPRETED_SHAPE if interpreted else usual
    click.echo(f"No --shape is given: --shape {usual}", err=True)
    return parse_shapes(usual)


def _refuse_missing(names: Sequence[str]) -> None:
    """Refuse a user's own provider that cannot run here; for Triton kernels without a GPU, say what does work."""
    from ...providers import all_providers, missing

    for one in (all_providers()[name] for name in names):
        if one.source is None or (why := missing(one)) is None:
            continue
        if not one.interpreted:
            raise click.UsageError(f"{one.name} cannot be measured here: {why}")
        path = Path(one.source.file)
        near = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        place = shlex.quote(f"{near}:{one.source.name}")
        raise click.UsageError(
            f"{one.name} has Triton kernels, and there is no GPU here to time them. What works here:\n"
            f"  rownorm check --provider {place}\n"
            f"  rownorm analyze {shlex.quote(str(near))}:KERNEL    (its predicted time)\n"
            f"  TRITON_INTERPRET=1 rownorm bench --provider {place} --shape {INTERPRETED_SHAPE}"
            "    (only to try it out)"
        )


def _refuse_large(cases: Sequence[Case]) -> None:
    """Refuse a case that takes Triton's interpreter minutes."""
    for case in cases:
        if case.rows * case.cols > INTERPRETED_ELEMENTS:
            raise click.UsageError(
                f"{case.rows}x{case.cols} would take Triton's interpreter minutes, and its times mean nothing. "
                f"With TRITON_INTERPRET=1, use a small shape: --shape {INTERPRETED_SHAPE}"
            )


def _refuse_other_options(context: click.Context, option: str, allowed: Sequence[str]) -> None:
    """Refuse every option of the command line but ``option``, which is used, and ``allowed``."""
    named = named_options(context).items()
    others = [flag for name, flag in named if name not in (option, *allowed)]
    if others:
        raise click.UsageError(
            f"--{option} uses the options that the run was started with; {', '.join(others)} cannot be changed",
            context,
        )
