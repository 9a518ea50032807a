"""``rownorm study small``, ``dit-steps``, ``calls``, ``host-forms``, ``cpu``: parts of ``rownorm bars``, whole studies.

They are measured, judged and published by the commands of ``rownorm bars``, which are called here by their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ...command_line.options import EXISTING_FOLDER, FOLDER, count_option, examples

ABOUT = {
    "small": (
        "Training steps of two small models, with bars.",
        "Time training steps of two small models with torch's norms, rownorm's, and rownorm's with the residual add. "
        "The models are like Llama (RMSNorm) and GPT-2 (LayerNorm). Each setting is one in which people train: bf16, "
        "autocast, a default device. A step is forward and backward.",
    ),
    "calls": (
        "Host cost of one eager call in every setting, with bars.",
        "Time what one eager call costs the host, rownorm's and torch's, forward alone and with backward. Each setting "
        "is one in which people call a norm: plain, autocast, a default device, a profiler, hooks on saved tensors, "
        "inference mode, checkpoints, modules.",
    ),
    "host-forms": (
        "Host cost of one call with a modulation or a gate, with bars.",
        "Time what one eager call with scale and shift, with a gated residual add or with a gate costs the host, and "
        "the call of the plain norm of the same shape, forward alone and with backward.",
    ),
    "dit-steps": (
        "Training steps of a DiT, with bars.",
        "Time training steps of stacks of DiT blocks, 1152 and 3072 wide, with PyTorch's operators and with rownorm's "
        "modulated norms, which also have the gate and the residual add. The settings are bf16, autocast, and blocks "
        "through torch.compile. A step is forward and backward.",
    ),
    "cpu": (
        "Norms of tensors on a CPU, with bars.",
        "Time norms of tensors on a CPU, rownorm's and torch's, forward alone and with backward, with 1 and 2 threads. "
        "The norms are LayerNorm and RMSNorm, each with a residual add and without, in fp32 and bf16. Nothing else "
        "should run on the machine.",
    ),
}
ALL = (
    "It is the part of this name of rownorm bars. Ctrl-C keeps what was measured, and the same command resumes it. "
    "rownorm report FOLDER shows it. Exit status 1 if a bar does not hold or something is missing."
)


def part_command(name: str) -> click.Command:
    """``rownorm study NAME``."""
    short, about = ABOUT[name]

    @click.command(
        name,
        short_help=short,
        help=f"{about}\n\n{ALL}",
        epilog=examples(
            f"rownorm study {name} --out results/first",
            f"rownorm study {name} --tiny",
            f"rownorm study {name} --read results/first --read results/second --publish docs/results",
        ),
    )
    @click.option("--out", type=FOLDER, help="The run folder. Default: results/DATE-TIME.")
    @click.option(
        "--read",
        type=EXISTING_FOLDER,
        multiple=True,
        help="Measure nothing; judge the run in this folder. Repeat it for several runs.",
    )
    @click.option("--publish", type=FOLDER, help=f"Write study-{name}.md into this folder as well.")
    @click.option("--tiny", is_flag=True, help="Tiny cases, which are not judged: a trial.")
    @count_option("--rounds", help="Rounds of each case.")
    @click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON, no table.")
    @click.pass_context
    def study(
        context: click.Context,
        /,
        out: Path | None,
        read: Sequence[Path],
        publish: Path | None,
        tiny: bool,
        rounds: int | None,
        as_json: bool,
    ) -> None:
        from ...data.runs import new_name

        if read and (out or tiny or rounds):
            raise click.UsageError(
                "--read measures nothing; it goes with --publish and --json only"
            )
        if publish and tiny:
            raise click.UsageError("a trial is not published; leave out --tiny or --publish")
        folders, status = list(read), 0
        if not folders:
            folders = [out or new_name()]
            measured = {"out": folders[0], "rounds": rounds}
            status = _bars(context, "measure", parts=(name,), tiny=tiny, **measured)
            if status == 130:
                context.exit(status)
        judged = {"folders": folders, "required": 1, "as_json": as_json}
        status = _bars(context, "judge", parts=(name,), tiny=tiny, **judged) or status
        if publish:
            _bars(context, "publish", folders=folders, out=publish, parts=(name,))
        context.exit(status)

    return study


def _bars(context: click.Context, name: str, /, **given: Any) -> int:
    """Call ``rownorm bars NAME`` with these values of its parameters, the others as usual; returns its exit status."""
    root = context.find_root().command
    assert isinstance(root, click.Group)
    bars = root.get_command(context, "bars")
    assert isinstance(bars, click.Group)
    try:
        context.invoke(bars.commands[name], **given)
    except click.exceptions.Exit as end:
        return end.exit_code
    return 0
