"""``rownorm race``."""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...command_line.options import examples, say_loading, usage_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...interpreter.findings import Recording


class CannotRun(click.ClickException):
    """Nothing was recorded; exit status 1 is for findings."""

    exit_code = 2


HINT = "'FILE[:FUNCTION]'"
FIRST_S, EACH_S = 2.0, 10.0  # when progress is said
LONG_S = 30.0  # from there on, what is quicker is said
PAGE = click.Path(dir_okay=False, path_type=Path)


@click.command(
    "race",
    epilog=examples(
        "rownorm race my_kernel.py",
        "rownorm race my_kernel.py:try_backward",
        "rownorm race my_kernel.py --map",
        "rownorm race my_kernel.py:large --meta",
        "rownorm race my_kernel.py --out race.html",
    ),
)
@click.argument("target", metavar="FILE[:FUNCTION]")
@click.option(
    "--map",
    "show_map",
    is_flag=True,
    help="Print which program wrote which elements, and lanes, masks and sectors.",
)
@click.option("--out", type=PAGE, help="Write a page with the map of every launch.")
@click.option(
    "--meta",
    is_flag=True,
    help="Make every tensor without contents, to try the addresses of sizes that no machine holds.",
)
@click.option(
    "--views",
    is_flag=True,
    help="A kernel must stay inside of the tensors that it was given, not only inside of their storages.",
)
@click.option(
    "--orders",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="How many times each launch is repeated with its programs in another order.",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    target: str,
    show_map: bool,
    out: Path | None,
    meta: bool,
    views: bool,
    orders: int,
) -> None:
    """Find races and accesses out of bounds of Triton kernels, without a GPU.

    FUNCTION (default: main) is called without arguments. It makes its tensors and launches kernels, of any kind and
    any number; tensors for a GPU are made on the CPU. Kernels run in Triton's interpreter, which records every access.
    Findings: two programs write one address without an atomic; one program reads what another writes in the same
    launch; an active lane leaves its tensor; an offset passes 2^31 in int32; two lanes of one store write different
    values to one address; the bits of a result change with the order of the programs. Exit status 1 if there is a
    finding. docs/race.md has what is not seen.
    """
    from ...data.files import write_whole

    with usage_errors(HINT):
        file, name = _place(target)
    say_loading("torch and Triton's interpreter")
    _choose_interpreter()
    with usage_errors(HINT):
        function = _loaded(file, name, meta)
    recording = _recorded(function, meta, views, orders)
    from .table import lines

    click.echo("\n".join(lines(f"{file.name}:{function.__name__}", recording, show_map)))
    if out is not None:
        from .page import page

        write_whole(out, page(f"{file.name}:{function.__name__}", recording))
        click.echo(f"page: {out}")
    context.exit(int(bool(recording.findings)))


def _choose_interpreter() -> None:
    """Triton chooses its interpreter when it is imported."""
    if "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
    from triton import knobs

    if not knobs.runtime.interpret:
        raise CannotRun(
            "Triton was imported before its interpreter was chosen. Set TRITON_INTERPRET=1"
        )


def _place(target: str) -> tuple[Path, str]:
    """The file and the name of ``FILE[:FUNCTION]``; ValueError if there is no such file."""
    path, separator, name = target.rpartition(":")
    if not separator:
        path, name = target, "main"
    file = Path(path)
    if not file.is_file():
        why = f"{path} is a folder" if file.is_dir() else f"there is no file {path}"
        raise ValueError(f"{why}; name a Python file")
    return file, name


def _loaded(file: Path, name: str, meta: bool) -> Callable[[], object]:
    """The function of a file; ValueError that says what to do."""
    import inspect

    from ...data.user_files import imported
    from ...interpreter.devices import instead_of_a_gpu

    with instead_of_a_gpu("meta" if meta else "cpu"):
        module = imported(file)
    function: Callable[[], object] | None = getattr(module, name, None)
    if not inspect.isfunction(function):
        raise ValueError(
            f"{file} has no function {name}. Name one that makes tensors and launches kernels: "
            f"rownorm race {file}:try_it"
        )
    needed = [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if needed:
        raise ValueError(
            f"{name} needs {', '.join(needed)}. Name a function without arguments that makes tensors and calls it"
        )
    return function


def _recorded(function: Callable[[], object], meta: bool, views: bool, orders: int) -> Recording:
    from ...interpreter.devices import instead_of_a_gpu
    from ...interpreter.record import recorded

    with (
        instead_of_a_gpu("meta" if meta else "cpu"),
        recorded(orders=orders, views_only=views, progress=_Progress(meta)) as recording,
    ):
        try:
            function()
        except Exception as error:
            traceback.print_exc()
            raise CannotRun(f"{function.__name__} raised {type(error).__name__}") from error
    if not recording.launches:
        raise CannotRun(f"{function.__name__} launched no Triton kernel")
    return recording


class _Progress:
    """Says how far a launch is that takes more than two seconds."""

    def __init__(self, meta: bool) -> None:
        self.meta = meta
        self.start = self.said = 0.0
        self.advised = False

    def __call__(self, kernel: str, place: int, total: int) -> None:
        now = time.monotonic()
        if place == 0:
            self.start, self.said = now, now + FIRST_S - EACH_S
        if now - self.said < EACH_S:
            return
        self.said = now
        left = (now - self.start) / max(1, place) * (total - place)
        click.echo(f"{kernel}: {place:,} of {total:,} programs, {left:.0f} s left", err=True)
        if left > LONG_S and not self.meta and not self.advised:
            self.advised = True
            click.echo(
                "A few programs are enough: use smaller sizes. With --meta a few programs of large ones are run.",
                err=True,
            )
