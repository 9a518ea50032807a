"""``rownorm profile``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...command_line.options import (
    EXISTING_FOLDER,
    FOLDER,
    count_option,
    examples,
    held,
    name_option,
    names_option,
    print_json,
    refuse_taken,
    say,
    say_loading,
    unknown,
    usage_errors,
)
from ...data.case import DIRECTIONS, DTYPES, OPERATIONS, Case
from ...models import SIZES, STAGES, TASKS
from ...profilers.request import STEPS, ModelStep, ProfileRequest, Script

if TYPE_CHECKING:
    from ...data.profiles import Profile, ToolResult

TOOLS = ("chrome", "proton", "ncu", "rocprofv3")
COLS, ROWS = 4096, 8192
KERNELS = 5  # lines of a table of kernels
SOURCE_LINES = 3  # of each kernel
COMPARED = 12  # kernels and scopes of a comparison
_say_step = partial(say, err=True)
USAGE = "name one of OPERATION (for example rms_norm), --model or --script"


@click.command(
    "profile",
    epilog=examples(
        "rownorm profile rms_norm --cols 4096 --rows 8192 --out results/profile",
        "rownorm profile layer_norm --cols 1024 --pass forward --tools chrome,ncu",
        "rownorm profile --model llama --size small",
        "rownorm profile --script train.py --out results/mine -- --batch 8",
        "rownorm profile --read results/mine && rownorm report results/mine",
        "rownorm profile --compare results/before results/after",
    ),
)
@click.argument("arguments", metavar="[OPERATION] [-- ARGUMENTS]", nargs=-1, type=click.UNPROCESSED)
@count_option("--cols", help=f"Of a norm. Default: {COLS}.")
@count_option("--rows", help=f"Default: {ROWS}.")
@name_option("--dtype", what="dtype", known=DTYPES, help="Default: bf16. One of")
@name_option("--pass", "direction", what="pass", known=DIRECTIONS, help="Default: both. One of")
@click.option("--model", type=click.Choice(TASKS), help="Profile training steps of this model.")
@click.option("--size", type=click.Choice(SIZES), help="Default: medium on a GPU, tiny on a CPU.")
@click.option(
    "--stage",
    type=click.Choice([one for one in STAGES if one != "rownorm"]),
    help="The stage of PyTorch to profile beside rownorm's. Default: fused.",
)
@click.option(
    "--script",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Profile this script; what follows -- are its arguments.",
)
@count_option(
    "--steps",
    least=0,
    help=f"Optimizer steps of a script to profile; it is ended after them. 0: all of it. Default: {STEPS}.",
)
@names_option(
    "--tools",
    "tools",
    what="tool",
    known=TOOLS,
    help=f"{', '.join(TOOLS)}. Default: chrome, proton and the one of the GPU's vendor.",
)
@click.option("--out", type=FOLDER, help="Default: results/DATE-TIME.")
@click.option(
    "--read", "again", type=EXISTING_FOLDER, help="Run nothing; summarize this folder again."
)
@click.option(
    "--compare",
    "compared",
    nargs=2,
    type=EXISTING_FOLDER,
    metavar="A B",
    help="Run nothing; what changed from profile A to profile B.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the summary as JSON instead of tables."
)
@click.pass_context
def command(context: click.Context, /, arguments: Sequence[str], **given: Any) -> None:
    """Why is it as fast as it is? Profile a norm, a model or a script with every tool that is here.

    Writes Chrome traces of rownorm and of torch on the same work (triton_profile.json, pytorch_profile.json; they open
    in ui.perfetto.dev), then runs Proton, and ncu on NVIDIA or rocprofv3 on AMD. summary.md and summary.json say what
    they found: launch overhead, bandwidth, occupancy, sectors, kernels, the bottleneck and what to try. Each tool is
    ok, missing, denied or failed; a tool that is not there loses nothing of the others.

    With ncu, the source lines of norms and of a script's own Triton kernels are listed with what their warps wait for.
    Its files (ncu.ncu-rep opens in ncu-ui) contain source text.

    In a script the norms are found, with their share of a step and what rownorm would save. A script that crashes keeps
    what was recorded.

    Exit status 1 if a tool failed, if the script crashed, or if a tool of --tools is missing or denied.
    """
    if given["compared"] is not None:
        _refuse_others(given, arguments, "--compare compares two folders", "compared")
        first, second = given["compared"]
        _compare(first, second, given["as_json"])
        return
    if given["again"] is not None:
        _refuse_others(given, arguments, "--read summarizes a folder again", "again")
        folder: Path = given["again"]
        context.with_resource(held(folder))
        profile = _read_again(folder)
        interrupted = False
    else:
        request = _request(arguments, given)
        from ...data.runs import new_name

        folder = given["out"] or new_name()
        refuse_taken(folder)
        context.with_resource(held(folder))
        say_loading()
        profile, interrupted = _profiled(request, folder, given["tools"])
    from ...data.files import write_whole
    from ...data.profiles import encoded, write_profile
    from .publish import FILE, page

    write_profile(folder, profile)
    write_whole(folder / FILE, page(profile))
    if given["as_json"]:
        click.echo(encoded(profile))
    else:
        _show(profile)
    click.echo(f"wrote {folder / FILE}", err=True)
    context.exit(130 if interrupted else int(_has_failed(profile, given["tools"])))


def _request(arguments: Sequence[str], given: dict[str, Any]) -> ProfileRequest:
    """What is asked for; a usage error unless it is one thing."""
    script, model = given["script"], given["model"]
    if script is None and given["steps"] is not None:
        raise click.UsageError("--steps is for --script")
    if model is None and (given["size"] or given["stage"]):
        raise click.UsageError("--size and --stage are for --model")
    of_norm = [name for name in ("cols", "rows", "dtype", "direction") if given[name] is not None]
    if (script or model) and of_norm:
        flag = of_norm[0].replace("direction", "pass")
        raise click.UsageError(f"--{flag} is for a norm by itself, not for --model or --script")
    if (script and model) or (model and arguments):
        raise click.UsageError(USAGE)
    if script:
        steps = STEPS if given["steps"] is None else given["steps"]
        return ProfileRequest(script=Script(str(script), list(arguments), steps))
    if model:
        size, stage = given["size"] or _usual_size(), given["stage"] or "fused"
        return ProfileRequest(model=ModelStep(model, size, stage))
    if len(arguments) != 1:
        raise click.UsageError(USAGE)
    operation: Any = arguments[0]
    if operation not in OPERATIONS:
        message = (
            f"{unknown('operation', operation, OPERATIONS)}. A file of yours is --script FILE.py"
        )
        raise click.BadParameter(message, param_hint="'OPERATION'")
    return ProfileRequest(
        Case(
            operation=operation,
            direction=given["direction"] or "both",
            rows=given["rows"] or ROWS,
            cols=given["cols"] or COLS,
            dtype=given["dtype"] or "bf16",
        )
    )


def _usual_size() -> str:
    import torch

    return "medium" if torch.cuda.is_available() else "tiny"


def _refuse_others(given: dict[str, Any], arguments: Sequence[str], what: str, option: str) -> None:
    others = [name for name, value in given.items() if value and name not in (option, "as_json")]
    if others or arguments:
        raise click.UsageError(f"{what}; it goes with --json only")


def _compare(first: Path, second: Path, as_json: bool) -> None:
    """Print what changed between two profiles."""
    from ...data.profile_changes import change_tables, changes, largest, unlike
    from ...data.profiles import read_profile
    from ...data.tables import table_text

    with usage_errors():
        before, after = read_profile(first), read_profile(second)
    for folder, profile in ((first, before), (second, after)):
        if profile is None:
            raise click.UsageError(f"{folder} has no profile: rownorm profile --out writes one")
    assert before is not None
    assert after is not None
    found = changes(before, after)
    if as_json:
        print_json(found)
        return
    for line in unlike(before, after):
        say(f"Note: another {line}")
    say(f"{first} ({before.date}) and {second} ({after.date})")
    for table in change_tables(found, COMPARED):
        if table.lines:
            click.echo(table_text(table))
    if said := largest(found):
        click.echo("")
        say(said)


def _profiled(request: ProfileRequest, folder: Path, named: Sequence[str]) -> tuple[Profile, bool]:
    """(the profile, whether it was interrupted). What was recorded until then is summarized."""
    from ...data.profiles import ToolResult
    from ...device.environment import environment
    from ...profilers.request import Collected, write_collected, write_request
    from .summary import summarize

    here = environment()
    write_request(folder, request)
    results: list[ToolResult] = []
    interrupted = False
    for tool in named or usual_tools(here.kind):
        try:
            results.append(collected(tool, request, folder))
        except KeyboardInterrupt:
            results.append(ToolResult(tool, "failed", "interrupted"))
            interrupted = True
        write_collected(folder, Collected(here, results))
        if interrupted:
            break
    return summarize(request, folder, results, here, _say_step), interrupted


def usual_tools(kind: str) -> Sequence[str]:
    """The tools for a kind of device. Without a GPU all of them, so that the summary says what is missing."""
    other = {"cuda": "rocprofv3", "hip": "ncu"}.get(kind)
    return [tool for tool in TOOLS if tool != other]


def collected(tool: str, request: ProfileRequest, folder: Path) -> ToolResult:
    """Run one tool."""
    from ...profilers import chrome, ncu, proton, rocprof

    modules = {"chrome": chrome, "proton": proton, "ncu": ncu, "rocprofv3": rocprof}
    _say_step(f"{tool}: {request.title}")
    result: ToolResult = modules[tool].collect(request, folder)  # type: ignore[attr-defined]
    _say_step(f"{tool}: {result.status}" + (f", {result.why}" if result.why else ""))
    return result


def _read_again(folder: Path) -> Profile:
    """The summary of a folder from its files, with the date of the measurement; also of CSVs of rocprofv3 alone."""
    import msgspec

    from ...profilers.request import FILE, read_collected, read_request
    from .summary import summarize

    if not (folder / FILE).exists():
        from .rocprof_files import profile_of_files

        with usage_errors():
            return profile_of_files(folder)
    with usage_errors():
        request, before = read_request(folder), read_collected(folder)
    profile = summarize(request, folder, before.tools, before.environment, _say_step)
    return msgspec.structs.replace(profile, date=_measured_on(folder) or profile.date)


def _measured_on(folder: Path) -> str:
    """The date of the measurement: that of an earlier summary; empty without one."""
    from ...data.profiles import read_profile

    try:
        before = read_profile(folder)
    except ValueError:  # it is made again
        return ""
    return before.date if before else ""


def _show(profile: Profile) -> None:
    from ...data.profile_tables import (
        counter_table,
        figure_table,
        kernel_tables,
        line_texts,
        norm_table,
        said_of,
        scope_tables,
    )
    from ...data.tables import table_text

    say(f"{profile.title} on {profile.environment.describe()}")
    for tool in profile.tools:
        say(f"  {tool.tool:10} {tool.status:8} {said_of(tool)}", 22)
    first = [figure_table(profile), counter_table(profile)]
    then = [norm_table(profile), *scope_tables(profile), *kernel_tables(profile, KERNELS)]
    shown = [table_text(table) for table in first if table.lines]
    shown += line_texts(profile, SOURCE_LINES)
    shown += [table_text(table) for table in then if table.lines]
    click.echo("\n".join([*shown, ""]))
    say(f"Primary bottleneck: {profile.bottleneck}")
    for line in profile.advice:
        say(f"Next: {line}")


def _has_failed(profile: Profile, named: Sequence[str]) -> bool:
    return any(
        one.status == "failed" or (one.tool in named and one.status != "ok")
        for one in profile.tools
    )
