"""The learner's own table: predicted and measured times, bytes, bandwidth, occupancy and errors of an RMSNorm by width.

Times are of this machine's GPU if there is one, and those of an H200 that the lab's page ships. A measured time is
shown for a width that was predicted first.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rownorm_lab.data.case import Case, Dtype
from rownorm_lab.data.records import EAGER
from rownorm_lab.data.tables import columns
from rownorm_lab.measure.accuracy import exact_values

from .calls import compile_call, measured_call
from .catalog import exercises
from .grades import Failure
from .judge import TriedCase, tensors_of
from .learner import Learner
from .measured import MINE

FILE, PREDICTIONS = "rmsnorm.py", "predictions.toml"
WIDTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
ROWS = 32768
RECORDED: Dtype = "fp16"  # the part of the recordings, and the dtype of the table
TRIED_ROWS = 4  # for the error, in the interpreter


class Line(NamedTuple):
    """One width. Times in seconds; None: not known, or not predicted yet."""

    cols: int
    megabytes: float
    predicted: float | None
    mine: float | None
    recorded: float | None
    recorded_torch: float | None
    gb_per_s: float | None
    occupancy: float
    error: float
    torch_error: float


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


def lines(folder: Path, gpu: bool, widths: Sequence[int] = WIDTHS) -> Iterator[Line]:
    """A line for each width, as soon as it is known. Failure if the function is wrong or does not compile."""
    predicted = _predictions(folder)
    recorded = recordings()
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
            found = compile_call(compiled, _call(compiled), case).analyses
            mine = None
            if gpu and guess:
                mine = measured_call(on_gpu, _call(on_gpu), case, (EAGER,))[MINE]
            known = recorded.get(cols, {}) if guess else {}
            seconds = mine or known.get("rownorm")
            yield Line(
                cols=cols,
                megabytes=case.compulsory_bytes / 1e6,
                predicted=guess,
                mine=mine,
                recorded=known.get("rownorm"),
                recorded_torch=known.get("torch"),
                gb_per_s=case.compulsory_bytes / seconds / 1e9 if seconds else None,
                occupancy=min(one.occupancy for one in found),
                **_errors(interpreted, cols),
            )


def _call(learner: Learner) -> Any:
    function = learner.function(FILE, "rms_norm")
    return lambda case, t: function(t.x, t.weight, case.eps)


def _errors(learner: Learner, cols: int) -> dict[str, float]:
    """The largest errors beside fp64, over the largest value: the function's and torch's."""
    case = _case(cols, TRIED_ROWS)
    t = tensors_of(TriedCase(case), learner)
    learner.begin_step(30.0)
    got = {
        "error": _call(learner)(case, t),
        "torch_error": torch.nn.functional.rms_norm(t.x, (cols,), t.weight, case.eps),
    }
    exact = torch.cat([one["y"].values for _, one in exact_values(case, t)])
    size = exact.abs().max()
    return {name: ((one.double() - exact).abs().max() / size).item() for name, one in got.items()}


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


HEAD = ("columns", "MB", "you predict, µs", "measured, µs", "H200, µs", "torch, H200, µs", "GB/s", "occupancy", "error",
        "torch's error")  # fmt: skip


def shown(found: Sequence[Line]) -> list[str]:
    """The table in words."""

    def micro(seconds: float | None) -> str:
        return f"{seconds * 1e6:.1f}" if seconds else "-"

    return columns(
        HEAD,
        [
            (
                str(one.cols),
                f"{one.megabytes:.1f}",
                micro(one.predicted),
                micro(one.mine),
                micro(one.recorded),
                micro(one.recorded_torch),
                f"{one.gb_per_s:,.0f}" if one.gb_per_s else "-",
                f"{one.occupancy:.0%}",
                f"{one.error:.1e}",
                f"{one.torch_error:.1e}",
            )
            for one in found
        ],
    )
