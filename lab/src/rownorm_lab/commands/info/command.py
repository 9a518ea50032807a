"""``rownorm info``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...command_line.options import examples, json_option, print_json, say
from ...data.records import EAGER
from ...data.tables import wrapped
from ...data.texts import binary_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from rownorm.inside import extension

    from ...data.records import Environment
    from ...device.facts import DeviceFacts
    from ...providers import Provider

    # What is done, how, and what is compiled for it.
    _Call = tuple[str, str, Callable[[], extension.Extension] | None]


@click.command("info", epilog=examples("rownorm info", "rownorm info --try"))
@click.option(
    "--try",
    "try_all",
    is_flag=True,
    help="Try a small call of every provider that is installed, for up to a minute each.",
)
@json_option
def command(try_all: bool, as_json: bool) -> None:
    """Show devices, versions and providers, and how to install the providers that are missing.

    A provider is ready if a small call ran just now. Without --try only rownorm, eager PyTorch and the ceiling are
    tried, because others import large packages and compile.
    """
    from ...device.environment import environment
    from ...device.facts import all_devices
    from ...fib import package
    from ...providers import all_providers

    here = environment()
    if as_json:
        print_json(
            {
                "devices": [device._asdict() for device in all_devices()],
                "environment": here,
                "plans": [" ".join(line.split()) for line in plan_lines(_arch(here))],
                "providers": [
                    {"name": one.name, "about": one.about, "state": state(one, try_all)}
                    for one in all_providers().values()
                ],
                "calls": [" ".join(line.split()) for line in call_lines()],
                "flashinfer_bench": package.state(),
            }
        )
        return
    click.echo("Devices")
    for index, device in enumerate(all_devices()):
        first, *rest = device_lines(device)
        click.echo("\n".join([f"  {index}  {first}", *(f"     {line}" for line in rest)]))
    if here.kind == "cpu":
        click.echo("There is no GPU here: bench measures the CPU path and marks its records so.")
    click.echo("\nVersions")
    names = ("rownorm", "torch", "triton", "python", "driver", "platform")
    shown = {name: getattr(here, name) for name in names} | here.settings
    width = max(map(len, shown))
    for name, value in shown.items():
        if value:
            say(f"  {name:{width}} {value}", width + 3, breaks_words=True)
    click.echo("\nPlans, the first that has one")
    for line in plan_lines(_arch(here)):
        say(line, 7)
    click.echo("\nProviders")
    for provider in all_providers().values():
        click.echo("\n".join(provider_lines(provider, try_all)))
    click.echo("\nCalls, and the extensions that they use")
    for line in call_lines():
        say(line, 13)
    click.echo("\nFor rownorm fib")
    say(f"  {'flashinfer-bench':16} {package.state()}", 19)


def _arch(here: Environment) -> str:
    """The architecture of the GPU; empty without one."""
    return here.arch if here.kind != "cpu" else ""


def call_lines() -> list[str]:
    """How rownorm launches kernels, records gradients and computes on a CPU; the compiler and the build for each."""
    from rownorm.inside import cpu_native, extension

    why = cpu_native.reason()
    cpu: _Call = ("CPU", f"in PyTorch: {why}" if why else "in C", cpu_native.description)
    try:
        gpu = _gpu_calls()
    except ImportError as error:  # without Triton there are no kernels
        gpu = [("launches", f"none: {error}", None)]
    lines = []
    for name, said, description in (*gpu, cpu):
        try:
            details = extension.describe(description()) if description else []
        except ImportError:  # a Triton for other GPUs, whose kernels are launched in Python
            details = []
        lines += [f"  {name:10} {said}", *(f"{'':13}{line}" for line in details)]
    first, *rest = extension.describe_folder()
    return [*lines, f"  {'kept in':10} {first}", *(f"{'':13}{line}" for line in rest)]


def _gpu_calls() -> list[_Call]:
    """Launches and gradients."""
    from rownorm.inside import native

    launches = f"in Python: {why}" if (why := native.reason()) else "in C"
    gradients = f"in Python: {why}" if (why := native.node.reason()) else "in C++"
    return [
        ("launches", launches, native.description),
        ("gradients", gradients, native.node.description),
    ]


def plan_lines(arch: str) -> list[str]:
    """Where plans come from, in order of precedence. arch: of the GPU; empty: all that rownorm has a table for."""
    try:
        from rownorm.inside import tables
    except ImportError as error:  # without Triton there are no kernels to plan for
        return [f"  none: {error}"]
    file = tables.own_file(arch or "<arch>")
    mine = f"none, because {tables.VARIABLE} is empty" if file is None else str(file)
    if file is not None and arch:
        mine += f": {_own_state(arch)}"
    sources = {
        one: tables.shipped_source(one) for one in ([arch] if arch else tables.shipped_archs())
    }
    shipped = [f"for {one}, {source}" for one, source in sources.items() if source]
    return [
        f"  1    your own table ({tables.VARIABLE} names another folder): {mine}",
        f"  2    {', '.join(shipped) or f'rownorm has no table for {arch}'}",
        "  3    rules",
        *(f"  Triton {tables.compiled_by(one)} (for {one})" for one in sources),
    ]


def _own_state(arch: str) -> str:
    """The state of the user's table: none, in use, or ignored."""
    from rownorm.inside import tables

    try:
        source = tables.own_source(arch)
    except ValueError as error:
        return f"ignored: {error}"
    if source is None:
        return "none"
    return f"{len(source.entries)} entries, tuned with Triton {source.triton}, {source.date}"


NAME_WIDTH = 19  # of the longest provider that is shipped


def provider_lines(provider: Provider, try_it: bool) -> list[str]:
    """The state of a provider, and what it is."""
    indent = 3 + NAME_WIDTH
    return [
        *wrapped(f"  {provider.name:{NAME_WIDTH}} {state(provider, try_it)}", indent),
        *wrapped(f"{'':{indent}}{provider.about}", indent),
    ]


def state(provider: Provider, try_it: bool) -> str:
    """Ready, installed, missing, or why it does not work."""
    from ...measure import trial
    from ...providers import missing, usual

    if why := missing(provider):
        return f"missing: {why}"
    version = f" {provider.version}".rstrip()
    compiles = provider.kind in ("peer", "plain") and provider.name != EAGER
    if compiles and not try_it:
        slow = "; compiles for minutes on a CPU"
        slow = "; only if it is named" if provider.on_request else slow
        slow = "" if provider.name in usual() else slow
        return f"installed{version}, not tried{slow}"
    failed = trial.failure_in_a_process(provider.name) if compiles else trial.failure(provider)
    return f"does not work{version}: {failed}" if failed else f"ready{version}"


def device_lines(device: DeviceFacts) -> list[str]:
    """What is known about a device; its name first."""
    peak = device.peak_bytes_per_second
    lines = [
        f"{device.name} ({device.kind}, {device.arch})",
        f"memory  {binary_size(device.memory_bytes)}",
    ]
    if device.kind == "cpu":
        return [*lines, f"cache   {binary_size(device.l2_bytes)}, the last level"]
    return [
        *lines,
        f"peak    {peak / 1e9:,.0f} GB/s ({device.peak_source})"
        if peak
        else f"peak    {device.peak_source}",
        f"L2      {binary_size(device.l2_bytes)}",
        f"SMs     {device.sms or 'unknown'}",
    ]
