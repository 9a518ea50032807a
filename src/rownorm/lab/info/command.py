"""``rownorm info``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..cli.options import examples
from ..texts import binary_size

if TYPE_CHECKING:
    from ..device.facts import DeviceFacts


@click.command("info", epilog=examples("rownorm info"))
def command() -> None:
    """Show devices, versions and providers, and how to install the providers that are missing."""
    from ..device.environment import environment
    from ..device.facts import all_devices
    from ..providers import all_providers, missing, usual

    click.echo("Devices")
    for index, device in enumerate(all_devices()):
        first, *rest = device_lines(device)
        click.echo("\n".join([f"  {index}  {first}", *(f"     {line}" for line in rest)]))
    here = environment()
    if here.kind == "cpu":
        click.echo("There is no GPU here: bench measures the CPU path and marks its records so.")
    click.echo("\nVersions")
    for name in ("rownorm", "torch", "triton", "python", "driver", "platform"):
        if value := getattr(here, name):
            click.echo(f"  {name:10} {value}")
    for name, value in here.settings.items():
        click.echo(f"  {name:10} {value}")
    click.echo("\nProviders")
    for provider in all_providers().values():
        why = missing(provider)
        state = f"missing: {why}" if why else f"ready {provider.version}".rstrip()
        if provider.name not in usual():
            state += "; compiles for minutes on a CPU, so it runs there only if --provider names it"
        click.echo(f"  {provider.name:14} {state}\n{'':17}{provider.about}")


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
