"""Accuracy of every provider, operation, pass, dtype and data set, against fp64.

python -m rownorm.lab.check REQUEST      a Request as JSON in, rows as JSON lines out: the kernels without a GPU
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec
import torch

from . import data
from .accuracy import judge
from .bench import in_one_line
from .cases import DTYPES, OPERATIONS, Case, Direction, Dtype, Operation
from .data import DATA_SETS
from .providers import Provider, Refusal, all_providers, as_tuple, broken, interpreting, missing

Status = Literal["ok", "over", "refused", "failed", "missing"]

# Widths around powers of two, and, where the kernels run at full speed, one for each way they hold a row.
SHAPES = ((64, 1024), (5, 777))
GPU_SHAPES = (*SHAPES, (300, 96), (16, 16384), (3, 100_000))
INTERPRETED_SHAPES = ((6, 256), (3, 77))
INTERPRETED = " (interpreter)"  # after the name of a provider


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table: the worst over the shapes that were tried."""

    provider: str
    operation: Operation
    direction: Direction
    dtype: Dtype
    data: str
    status: Status = "ok"
    why: str = ""
    ours: bool = False
    max_error: float | None = None
    mean_error: float | None = None
    max_ulp: float | None = None
    worst: str = ""  # the output with the largest error in ulp
    budget_used: float | None = None  # the largest error over its budget: 1 is all of it

    @property
    def ok(self) -> bool:
        """False where results are not as accurate as they must be, or did not come about."""
        return self.status not in ("over", "failed")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be checked; travels to the process that interprets kernels."""

    operations: Sequence[Operation] = OPERATIONS
    dtypes: Sequence[Dtype] = DTYPES
    providers: Sequence[str] = ("rownorm",)
    data_sets: Sequence[str] = tuple(DATA_SETS)
    directions: Sequence[Direction] = ("forward", "backward")
    shapes: Sequence[tuple[int, int]] = SHAPES
    device: str = "cpu"
    seed: int = 0


def check(
    operations: Sequence[Operation] = OPERATIONS,
    dtypes: Sequence[Dtype] = DTYPES,
    providers: Sequence[str] = ("rownorm", "torch"),
    *,
    data_sets: Sequence[str] = tuple(DATA_SETS),
    directions: Sequence[Direction] = ("forward", "backward"),
    shapes: Sequence[tuple[int, int]] | None = None,
    device: str | None = None,
    kernels: bool = True,
    seed: int = 0,
    told: Callable[[str], None] | None = None,
) -> Iterator[Row]:
    """Yield a row for every combination, as soon as it is known.

    shapes: None are those that suit the device. Without a GPU, and with ``kernels``, the kernels of rownorm and the
    plain ones are checked too, in Triton's interpreter, in a process of its own. told: what is being checked, in words.
    """
    known = all_providers()
    for name in providers:
        if name not in known:
            raise ValueError(f"unknown provider {name!r}; known: {', '.join(known)}")
    for name in data_sets:
        if name not in DATA_SETS:
            raise ValueError(f"unknown data set {name!r}; known: {', '.join(DATA_SETS)}")
    on = device or ("cuda" if torch.cuda.is_available() else "cpu")
    usual = INTERPRETED_SHAPES if on == "cpu" and interpreting() else SHAPES
    request = Request(
        operations=operations,
        dtypes=dtypes,
        providers=[name for name in providers if known[name].kind != "ceiling"],
        data_sets=data_sets,
        directions=directions,
        shapes=shapes or (GPU_SHAPES if on != "cpu" else usual),
        device=on,
        seed=seed,
    )
    apart = on == "cpu" and kernels and not interpreting()
    plain = [name for name in request.providers if known[name].interpreted]
    here = [name for name in request.providers if not (apart and name in plain)]
    yield from _rows(msgspec.structs.replace(request, providers=here), told)
    if apart:
        names = [name for name in request.providers if known[name].kind == "ours"] + plain
        small = msgspec.structs.replace(
            request, providers=names, shapes=shapes or INTERPRETED_SHAPES
        )
        if names:
            yield from _interpreted(small, told)


def _rows(request: Request, told: Callable[[str], None] | None = None) -> Iterator[Row]:
    providers = [all_providers()[name] for name in request.providers]
    for provider, operation in itertools.product(providers, request.operations):
        if told is not None:
            told(f"{provider.name} {operation}")
        rest = itertools.product(request.directions, request.dtypes, request.data_sets)
        for direction, dtype, kind in rest:
            asked = Row(
                provider=provider.name,
                operation=operation,
                direction=direction,
                dtype=dtype,
                data=kind,
                ours=provider.kind == "ours",
            )
            yield _row(asked, provider, request)


def _row(row: Row, provider: Provider, request: Request) -> Row:
    """The row with its figures: the worst of all shapes that the provider takes."""
    lacking = missing(provider, request.device)
    if lacking is not None:
        return msgspec.structs.replace(row, status="missing", why=lacking)
    found: list[Row] = []
    refusals: list[str] = []
    for rows, cols in request.shapes:
        case = Case(
            operation=row.operation, direction=row.direction, rows=rows, cols=cols, dtype=row.dtype
        )
        try:
            found.append(_judged(row, provider, case, request))
        except Refusal as refusal:
            refusals.append(str(refusal))
        except ImportError as error:
            return msgspec.structs.replace(row, status="missing", why=broken(error))
        except Exception as error:
            why = f"{rows}x{cols}: {in_one_line(error)}"
            return msgspec.structs.replace(row, status="failed", why=why)
    if not found:
        return msgspec.structs.replace(row, status="refused", why=refusals[0])
    return max(found, key=lambda each: (not each.ok, each.budget_used or 0.0))


def _judged(row: Row, provider: Provider, case: Case, request: Request) -> Row:
    (t,) = data.rotation(case, 1, request.device, data=row.data, seed=request.seed)
    outputs = as_tuple(provider.prepare(case, t)())
    judged = judge(case, t, outputs, strict=row.ours)
    row = msgspec.structs.replace(
        row,
        status="ok" if judged.ok else "over",
        why=f"{case.rows}x{case.cols}: {judged.why}" if judged.why else "",
    )
    if judged.accuracy is None:
        return row
    return msgspec.structs.replace(
        row,
        max_error=judged.accuracy.max_error,
        mean_error=judged.accuracy.mean_error,
        max_ulp=judged.accuracy.max_ulp,
        worst=judged.accuracy.worst,
        budget_used=judged.budget_used,
    )


def _interpreted(request: Request, told: Callable[[str], None] | None) -> Iterator[Row]:
    """The same in a process whose Triton interprets kernels: it reads the setting when it is imported."""
    if told is not None:
        told("kernels in Triton's interpreter")
    command = [sys.executable, "-m", "rownorm.lab.check", msgspec.json.encode(request).decode()]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=environment
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                row = msgspec.json.decode(line, type=Row)
                yield msgspec.structs.replace(row, provider=row.provider + INTERPRETED)
            if process.wait() != 0:
                errors.seek(0)
                said = errors.read().decode(errors="replace").strip().splitlines()
                why = said[-1] if said else f"exit status {process.returncode}"
                raise RuntimeError(f"the check in Triton's interpreter ended early: {why}")
        finally:
            process.kill()  # whoever reads the rows may have had enough


def main() -> None:
    """Check what the argument asks for; rows go to stdout."""
    request = msgspec.json.decode(sys.argv[1], type=Request)
    for row in _rows(request):
        sys.stdout.buffer.write(msgspec.json.encode(row) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
