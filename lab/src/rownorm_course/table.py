"""The learner's own table: predicted and measured times, bytes, bandwidth, occupancy and errors of an RMSNorm by width.

Times are of this machine's GPU if there is one, and those of an H200 that the lab's page ships. A measured time is
shown for a width that was predicted first.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import torch

from rownorm_lab.data.case import Case, Dtype
from rownorm_lab.data.records import EAGER
from rownorm_lab.data.tables import columns

from .calls import measured_call
from .catalog import exercises
from .checks.rmsnorm import NORM
from .grades import Failure
from .judge import TriedCase, exact_results, tensors_of
from .learner import Learner
from .measured import MINE

PREDICTIONS = "predictions.toml"
WIDTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
ROWS = 32768
RECORDED: Dtype = "fp16"  # the part of the recordings, and the dtype of the table
TRIED_ROWS = 4  # for the error, in the interpreter
HEAD = ("columns", "MB", "you predict, µs", "measured, µs", "H200, µs", "torch, H200, µs", "GB/s", "occupancy", "error",
        "torch's error")  # fmt: skip


def recordings() -> dict[int, dict[str, float]]:
    """Seconds on an H200 by width and provider, of RMSNorm forward with 32768 rows of fp16."""
    data = json.loads(files("rownorm_lab").joinpath("page/data/h200.json").read_text("utf-8"))
    part = next(one for one in data["parts"] if one["name"] == RECORDED)
    found = {}
    for operation, direction, _, rows, cols, rates, *_ in part["cases"]:
        if (operation, direction, rows) == ("rms_norm", "forward", ROWS):
            moved = _case(cols).compulsory_bytes
            rated = zip(part["providers"], rates, strict=True)
            found[cols] = {name: moved / (rate * 1e9) for name, rate in rated if rate}
    return found


def _case(cols: int, rows: int = ROWS) -> Case:
    return Case(operation="rms_norm", rows=rows, cols=cols, dtype=RECORDED, eps=1e-6)


def table(folder: Path, gpu: bool, widths: Sequence[int] = WIDTHS) -> list[str]:
    """A line for each width. Failure if the function is wrong or does not compile."""
    predicted, recorded = _predictions(folder), recordings()
    lines = []
    with (
        Learner(folder, 2, "interpret", 0) as interpreted,
        Learner(folder, 2, "compile", 0) as compiled,
        Learner(folder, 2, "gpu", 0) as on_gpu,
    ):
        for cols in widths:
            for one in (compiled, on_gpu):
                one.begin_step(exercises()[2].limit_s)
            guess = predicted.get(cols)
            case = _case(cols)
            occupancy = min(one.occupancy for one in NORM.compiled(compiled, case).analyses)
            mine = None
            if gpu and guess:
                mine = measured_call(on_gpu, NORM.call(on_gpu), case, (EAGER,))[MINE]
            known = recorded.get(cols, {}) if guess else {}
            seconds = mine or known.get("rownorm")
            times = (guess, mine, known.get("rownorm"), known.get("torch"))
            lines.append(
                (
                    str(cols),
                    f"{case.compulsory_bytes / 1e6:.1f}",
                    *(f"{one * 1e6:.1f}" if one else "-" for one in times),
                    f"{case.compulsory_bytes / seconds / 1e9:,.0f}" if seconds else "-",
                    f"{occupancy:.0%}",
                    *(f"{one:.1e}" for one in _errors(interpreted, cols)),
                )
            )
    return columns(HEAD, lines)


def _errors(learner: Learner, cols: int) -> list[float]:
    """The largest errors beside fp64, over the largest value: the function's and torch's."""
    case = _case(cols, TRIED_ROWS)
    t = tensors_of(TriedCase(case), learner)
    learner.begin_step(30.0)
    mine = NORM.call(learner)(case, t)
    of_torch = torch.nn.functional.rms_norm(t.x, (cols,), t.weight, case.eps)
    exact = exact_results(case, t)["y"]
    size = exact.abs().max()
    return [((one.double() - exact).abs().max() / size).item() for one in (mine, of_torch)]


def _predictions(folder: Path) -> dict[int, float]:
    """Seconds by width; a width without a number is left out."""
    path = folder / PREDICTIONS
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8")).get("microseconds", {})
    except FileNotFoundError:
        raise Failure(f"{path} is not there: rownorm learn start 2 writes it") from None
    except tomllib.TOMLDecodeError as error:
        raise Failure(f"{path} cannot be read: {error}") from None
    found = {}
    for name, value in given.items():
        cols = name.removeprefix("cols_")
        if not cols.isdecimal() or not isinstance(value, int | float):
            raise Failure(f"{path}: {name} = {value!r}, expected cols_WIDTH = a number")
        if value > 0:
            found[int(cols)] = value * 1e-6
    return found
