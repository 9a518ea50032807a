"""The command ``rownorm``: a group that imports a command when it is called.

``rownorm NAME`` is the object ``command`` of ``commands/NAME/command.py``, and of the course for ``learn``. To add a
command, add that file and one line to ``COMMANDS``. A ``command.py`` imports at its top only what its help needs, which
is neither torch nor rownorm; the rest is imported inside the function.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from .command_line.options import SuggestingGroup, examples
from .command_line.plain import use_plain_characters
from .version import __version__

COMMANDS = {  # name: one line for ``rownorm --help``; in the order in which they are used
    "info": "Devices, versions and providers; how to install what is missing.",
    "check": "Accuracy of every provider against fp64.",
    "bench": "Measure speed; write records.",
    "analyze": "What compiled kernels do, without a GPU: registers, occupancy, sectors, predicted time.",
    "profile": "Chrome traces, Proton, ncu or rocprofv3 of a norm, a model or a script; one summary.",
    "source": "A kernel's source beside its machine code.",
    "race": "Who reads and writes what, without a GPU: races and bounds of any Triton kernel.",
    "report": "Records to an HTML page, plots and an analysis.",
    "compare": "Two sets of records: faster, same or slower.",
    "bars": "Measure and judge the figures that must hold on an H200.",
    "patch": "Which norms of a model rownorm.patch swaps, which it leaves, and why.",
    "fib": "FlashInfer-Bench: export kernels as Solutions, check, run, report, apply.",
    "train": "Train a tiny Llama, OpenFold or DiT on synthetic data, with torch's norms or rownorm's.",
    "study": "Training steps of these and of two small models, and the host cost of a call; some with bars.",
    "learn": "Exercises: write norm kernels in Triton, graded by real checks.",
    "tune": "Find the fastest launch settings on this GPU; write a table.",
}

COURSE = "rownorm_course.command"


class LazyGroup(SuggestingGroup):
    """The commands of ``COMMANDS``, each imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = COURSE if cmd_name == "learn" else f"{__package__}.commands.{cmd_name}.command"
        command: click.Command = import_module(module).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def show_version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    """The callback of ``--version``."""
    if wanted and not context.resilient_parsing:
        click.echo(f"rownorm {__version__}")
        context.exit()


@click.group(
    "rownorm",
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=examples(
        "rownorm info",
        "rownorm check --quick",
        "rownorm bench --suite quick --out results/first",
        "rownorm report results/first",
    ),
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Check and measure LayerNorm and RMSNorm on this machine: accuracy, speed, and distance from the limit."""


def main() -> None:
    """Run the command line. Exit status 2 is a usage error, 130 is Ctrl-C."""
    use_plain_characters()
    # Both are read when torch is loaded. By default threads spin at a barrier, which costs a time slice whenever
    # another process runs on the machine, and the profiler prints lines of its own.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        status = cli.main(prog_name="rownorm", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe closed it: rownorm bench --list | head
        sys.stderr.close()
        sys.exit(1)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "triton":
            raise
        from rownorm.inside import missing

        sys.exit(missing())
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"Error: {where}{error.strerror or error}", err=True)
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)
