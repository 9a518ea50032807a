"""``rownorm train``: train one of the models, save it, resume it."""

from __future__ import annotations

import math
import os
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...command_line.options import (
    EXISTING_FOLDER,
    FOLDER,
    count_option,
    examples,
    held,
    refuse_taken,
    say_loading,
    usage_errors,
)
from ...models import PARALLELS, SIZES, STAGES, TASKS

if TYPE_CHECKING:
    from ...models.checkpoint import Checkpoint
    from ...models.trainer import Trainer, TrainingRequest


@click.command(
    epilog=examples(
        "rownorm train llama",
        "rownorm train openfold --stage fused --steps 500 --out results/openfold",
        "rownorm train openfold --resume results/openfold --steps 1000",
        "rownorm train llama --size medium --amp bf16 --compile",
    )
)
@click.argument("task", type=click.Choice(TASKS))
@click.option(
    "--stage", type=click.Choice(STAGES), help="How the model computes. Default: rownorm."
)
@click.option("--size", type=click.Choice(SIZES), help="Default: tiny.")
@count_option(
    "--steps", "n_steps", default=200, help="All steps of the run, with those before --resume."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), help="Of parameters and data. Default: 0."
)
@count_option(
    "--samples", help="Samples of a step, over all processes. Default: as many as suit the size."
)
@click.option("--amp", type=click.Choice(["bf16"]), help="Train fp32 parameters under autocast.")
@click.option("--compile", "compiled", is_flag=True, help="Run the model through torch.compile.")
@click.option("--out", type=FOLDER, help="Save a checkpoint to this new folder.")
@click.option("--resume", type=EXISTING_FOLDER, help="Continue a run; save to the same folder.")
@count_option("--every", default=20, help="Steps between two lines of progress.")
@count_option(
    "--save-every",
    default=200,
    help="Steps between two checkpoints, if there is a folder for them; one is also saved at the end.",
)
@click.option(
    "--deterministic",
    is_flag=True,
    help="On a GPU, use only algorithms that give the same bits in every run. A CPU always does.",
)
@click.option(
    "--parallel",
    type=click.Choice(PARALLELS),
    help="Share the work among the processes that torchrun has started: the samples (ddp, fsdp), or every layer and "
    "every sequence (tensor; llama only).",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    task: str,
    stage: str | None,
    size: str | None,
    n_steps: int,
    seed: int | None,
    samples: int | None,
    amp: str | None,
    compiled: bool,
    out: Path | None,
    resume: Path | None,
    every: int,
    save_every: int,
    deterministic: bool,
    parallel: Any,
) -> None:
    """Train a tiny Llama on a synthetic language, a tiny OpenFold on alignments, or a tiny DiT on noisy images.

    A line of progress has the loss, the rate since the last line and, on a GPU, the peak of its memory. Data and
    parameters depend on the seed alone. A run that is resumed has the losses of one that was never
    interrupted; on a GPU, --deterministic is needed for that.

    Several GPUs: torchrun --nproc-per-node 8 -m rownorm_lab train llama --parallel fsdp

    --parallel tensor splits the heads and the sequences of llama, in every stage. The number of processes must divide
    its key and value heads: 2 in tiny and small, 4 in medium.
    """
    if os.environ.get("RANK", "0") == "0":  # the first of torchrun's processes
        say_loading()
    import torch

    from ...models.checkpoint import load, restore
    from ...models.parallel import world_of
    from ...models.tasks import TASKS as tasks
    from ...models.trainer import Trainer

    if out is not None:
        refuse_taken(out, "; --resume continues the run in it" if resume is None else "")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if deterministic:
        _use_deterministic_algorithms()
    with usage_errors():
        checkpoint = None if resume is None else load(resume)
        asked = {"task": task, "stage": stage, "size": size, "seed": seed, "samples": samples}
        request = _request(checkpoint, asked | {"amp": amp})
        config = tasks[request.task].configs[request.size]
        world = world_of(parallel, device, request.task, config, request.n_samples)
    try:
        trainer = Trainer(request, world, device, compiled)
        if checkpoint is not None:
            restore(trainer, checkpoint)
            _echo(trainer, f"resumes {checkpoint.request.describe()}")
        _echo(trainer, _title(trainer, n_steps))
        folder = out or resume
        one_writer = nullcontext() if folder is None or world.rank else held(folder)
        with one_writer:
            status = _train(trainer, n_steps, every, folder, save_every)
    finally:
        world.close()
    context.exit(status)


def _saved(trainer: Trainer, folder: Path) -> Path:
    """Save a checkpoint. A full disk ends the run with a message; the last checkpoint is kept."""
    from ...models.checkpoint import FILE, save

    try:
        return save(trainer, folder)
    except OSError as error:
        why = error.strerror or str(error)
        kept = f" The one before is kept: {folder / FILE}." if (folder / FILE).exists() else ""
        raise click.ClickException(
            f"the checkpoint of step {trainer.step_number} could not be written to {folder}: {why}.{kept}"
        ) from None


def _request(checkpoint: Checkpoint | None, asked: dict[str, Any]) -> TrainingRequest:
    """What is trained: the options, and for those that are not given the checkpoint's; ValueError if they conflict."""
    from ...models.trainer import TrainingRequest

    given = {name: value for name, value in asked.items() if value is not None}
    if checkpoint is None:
        usual: dict[str, Any] = {"size": "tiny", "stage": "rownorm", "seed": 0}
        return TrainingRequest(**usual | given)
    saved = checkpoint.request
    for name in ("task", "size", "seed", "samples"):
        before = saved.n_samples if name == "samples" else getattr(saved, name)
        if given.get(name, before) != before:
            raise ValueError(
                f"the checkpoint has {name} {before}, not {given[name]}; "
                f"resume with {before}, or train from the start with --out"
            )
    return saved._replace(**{name: given[name] for name in ("stage", "amp") if name in given})


def _title(trainer: Trainer, n_steps: int) -> str:
    import torch

    n_parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    where = torch.cuda.get_device_name() if trainer.device == "cuda" else "CPU"
    steps = f"steps {trainer.step_number + 1} to {n_steps}"
    if trainer.step_number >= n_steps:
        steps = f"nothing to do: {trainer.step_number} steps are done, give more with --steps"
    processes = "" if trainer.world.size == 1 else f", {trainer.world.size} processes"
    return f"{trainer.request.describe()}; {n_parameters / 1e6:.2f} M parameters, {where}{processes}; {steps}"


def _train(trainer: Trainer, n_steps: int, every: int, folder: Path | None, save_every: int) -> int:
    """Train until n_steps are done, with a line of progress and a checkpoint after so many steps, and at the end.

    Ctrl-C ends it after the present step, and that state is saved, too; another Ctrl-C ends it at once. Return the exit
    status: 130 if it was interrupted.
    """
    start, before = time.perf_counter(), trainer.step_number
    with _interrupts(alone=trainer.world.size == 1) as interrupted:
        while trainer.step_number < n_steps and not interrupted:
            trainer.step()
            done = trainer.step_number
            if done in (1, n_steps) or done % every == 0:
                _echo(trainer, _line(trainer, n_steps, start, before))
                start, before = time.perf_counter(), done
            if folder is not None and (done == n_steps or done % save_every == 0):
                _echo(trainer, f"saved {_saved(trainer, folder)}")
                start, before = time.perf_counter(), done
    if not interrupted:
        return 0
    kept = ""
    if folder is not None and trainer.step_number and math.isfinite(trainer.losses[-1]):
        path = _saved(trainer, folder)
        kept = f"; saved {path}, --resume {shlex.quote(str(path.parent))} continues"
    _echo(trainer, f"interrupted after step {trainer.step_number}{kept}")
    return 130


@contextmanager
def _interrupts(alone: bool) -> Iterator[list[int]]:
    """A list that Ctrl-C adds to, in place of an exception in the middle of a step. The second one is an exception.

    alone: one of several processes cannot end after a step of its own: a checkpoint needs all of them.
    """
    seen: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: Any) -> None:
        seen.append(number)
        signal.signal(signal.SIGINT, before)

    if not alone or threading.current_thread() is not threading.main_thread():
        yield seen
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def _line(trainer: Trainer, n_steps: int, start: float, before: int) -> str:
    """A line of progress, with the rate since the step ``before``. A loss that is not finite ends the run."""
    import torch

    loss = trainer.losses[-1]  # it waits for the device
    if not math.isfinite(loss):
        raise click.ClickException(
            f"the loss is {loss} after step {trainer.step_number}; this state is not saved"
        )
    rate = trainer.units(trainer.step_number - before) / (time.perf_counter() - start)
    step = f"{trainer.step_number:>{len(str(n_steps))}}/{n_steps}"
    digits = 0 if rate >= 100 else 1
    line = f"step {step}  loss {loss:.4f}  {rate:,.{digits}f} {trainer.task.unit}/s"
    if trainer.device == "cuda":
        line += f"  peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB"
    return line


def _echo(trainer: Trainer, text: str) -> None:
    if trainer.world.rank == 0:
        click.echo(text)


def _use_deterministic_algorithms() -> None:
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
