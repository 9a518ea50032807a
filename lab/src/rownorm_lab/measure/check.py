"""Accuracy of every provider, operation, form, pass, dtype and data set against fp64.

``python -m rownorm_lab.measure.check REQUEST`` reads a ``CheckRequest`` as JSON and writes results as JSON lines. It is
the process that runs the kernels in Triton's interpreter when there is no GPU.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
import torch

from ..data.case import (
    DATA_SETS,
    DTYPES,
    FORMS,
    OPERATIONS,
    Case,
    Direction,
    Dtype,
    Operation,
    form_options,
)
from ..data.user_files import Source
from ..providers import (
    Provider,
    Refusal,
    all_providers,
    as_tuple,
    data,
    import_failure,
    interpreting,
    missing,
)
from ..providers.own import add_providers
from .accuracy import judge
from .bench import in_one_line
from .machine import prepare_interpreter

Status = Literal["ok", "over", "refused", "failed", "missing"]

# Widths that are and are not powers of two; on a GPU, one width for each regime.
SHAPES = ((64, 1024), (5, 777))
GPU_SHAPES = (*SHAPES, (300, 96), (16, 16384), (3, 100_000))
INTERPRETED_SHAPES = ((6, 256), (3, 77))
INTERPRETED = " (interpreter)"  # appended to the name of a provider


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table: the worst of all shapes."""

    provider: str
    operation: Operation
    form: str = "plain"  # of FORMS
    direction: Direction
    dtype: Dtype
    data: str
    status: Status = "ok"
    why: str = ""
    ours: bool = False
    own: bool = False  # the provider is of a user's file
    max_error: float | None = None
    mean_error: float | None = None
    max_ulp: float | None = None
    worst: str = ""  # the output with the largest error in ulp
    # Of the element closest to its limit: the share of its allowance, 0 with one rounding only; error; limit.
    allowance_used: float | None = None
    closest_ulp: float | None = None
    accepted_ulp: float | None = None
    truncated: bool = False  # bf16 in Triton's interpreter: a rounding is a whole step

    @property
    def ok(self) -> bool:
        """Whether the results are accurate enough, or were not required."""
        return self.status not in ("over", "failed")

    @property
    def norm(self) -> str:
        """The operation and its form: ``rms_norm gate_first``."""
        return self.operation if self.form == "plain" else f"{self.operation} {self.form}"

    def severity(self) -> tuple[bool, float, float]:
        """The order of results, the worst last."""
        return not self.ok, self.allowance_used or 0.0, self.max_ulp or 0.0


class CheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is checked; also sent to the process that interprets kernels."""

    operations: Sequence[Operation] = OPERATIONS
    dtypes: Sequence[Dtype] = DTYPES
    providers: Sequence[str] = ("rownorm",)
    forms: Sequence[str] = ("plain",)
    data_sets: Sequence[str] | None = None
    directions: Sequence[Direction] = ("forward", "backward")
    shapes: Sequence[tuple[int, int]] = SHAPES
    device: str = "cpu"
    sources: Sequence[Source] = ()  # of the providers in users' files

    def data_of(self, form: str) -> Sequence[str]:
        """The data sets of a form: those that were named, else all for plain norms and normal data for the others."""
        if self.data_sets is not None:
            return self.data_sets
        return tuple(DATA_SETS) if form == "plain" else ("normal",)


def check(
    operations: Sequence[Operation] = OPERATIONS,
    dtypes: Sequence[Dtype] = DTYPES,
    providers: Sequence[str] = ("rownorm", "torch"),
    *,
    forms: Sequence[str] = ("plain",),
    data_sets: Sequence[str] | None = None,
    directions: Sequence[Direction] = ("forward", "backward"),
    shapes: Sequence[tuple[int, int]] | None = None,
    device: str | None = None,
    kernels: bool = True,
) -> Iterator[CheckResult]:
    """Yield a result for every combination, as soon as it is known. Only add_ operations have a residual_gate.

    data_sets: None are all of them for plain norms, and normal data for other forms.
    shapes: None are those that suit the device. Without a GPU, and with ``kernels``, the kernels of rownorm, of the
    plain providers and of users' files are checked too, by Triton's interpreter in another process.
    """
    known = all_providers()
    for what, names, all_names in (
        ("provider", providers, known),
        ("data set", data_sets or (), DATA_SETS),
        ("form", forms, FORMS),
    ):
        for name in names:
            if name not in all_names:
                raise ValueError(f"unknown {what} {name!r}; known: {', '.join(all_names)}")
    on = device or ("cuda" if torch.cuda.is_available() else "cpu")
    cpu_shapes = INTERPRETED_SHAPES if on == "cpu" and interpreting() else SHAPES
    request = CheckRequest(
        operations=operations,
        dtypes=dtypes,
        providers=[name for name in providers if known[name].kind != "ceiling"],
        forms=forms,
        data_sets=data_sets,
        directions=directions,
        shapes=shapes or (GPU_SHAPES if on != "cpu" else cpu_shapes),
        device=on,
    )
    in_interpreter = on == "cpu" and kernels and not interpreting()
    plain = [name for name in request.providers if known[name].interpreted]
    here = [name for name in request.providers if not (in_interpreter and name in plain)]
    yield from _results(msgspec.structs.replace(request, providers=here))
    if in_interpreter:
        names = [name for name in request.providers if known[name].kind == "ours"] + plain
        small = msgspec.structs.replace(
            request,
            providers=names,
            shapes=shapes or INTERPRETED_SHAPES,
            sources=[source for name in names if (source := known[name].source)],
        )
        if names:
            yield from _interpreted(small)


def cannot_check(name: str) -> str | None:
    """Why a provider cannot be checked on this machine, and what to do; None if it can."""
    provider = all_providers()[name]
    if provider.kind == "ceiling":
        return "it computes no norm"
    return None if provider.interpreted else missing(provider)


def offered_operations(names: Sequence[str]) -> list[Operation]:
    """The operations that any of these providers offers, in their usual order."""
    known = all_providers()
    return [each for each in OPERATIONS if any(each in known[name].operations for name in names)]


def _results(request: CheckRequest) -> Iterator[CheckResult]:
    prepare_interpreter()
    providers = [all_providers()[name] for name in request.providers]
    kinds = itertools.product(
        providers, request.operations, request.forms, request.directions, request.dtypes
    )
    for provider, operation, form, direction, dtype in kinds:
        if form == "residual_gate" and not operation.startswith("add_"):
            continue
        for data_set in request.data_of(form):
            empty = CheckResult(
                provider=provider.name,
                operation=operation,
                form=form,
                direction=direction,
                dtype=dtype,
                data=data_set,
                ours=provider.kind == "ours",
                own=provider.kind == "own",
            )
            yield _result(empty, provider, request)


def _result(row: CheckResult, provider: Provider, request: CheckRequest) -> CheckResult:
    """The result filled in: the worst of all shapes that the provider accepts."""
    lacking = missing(provider, request.device)
    if lacking is not None:
        return msgspec.structs.replace(row, status="missing", why=lacking)
    found: list[CheckResult] = []
    refusals: list[str] = []
    for rows, cols in request.shapes:
        case = Case(
            operation=row.operation,
            direction=row.direction,
            rows=rows,
            cols=cols,
            dtype=row.dtype,
            **form_options(row.form, rows),
        )
        try:
            found.append(_judged(row, provider, case, request))
        except Refusal as refusal:
            refusals.append(str(refusal))
        except ImportError as error:
            return msgspec.structs.replace(row, status="missing", why=import_failure(error))
        except Exception as error:
            why = f"{rows}x{cols}: {in_one_line(error)}"
            return msgspec.structs.replace(row, status="failed", why=why)
    if not found:
        return msgspec.structs.replace(row, status="refused", why=refusals[0])
    return max(found, key=CheckResult.severity)


def _judged(row: CheckResult, provider: Provider, case: Case, request: CheckRequest) -> CheckResult:
    (t,) = data.rotation(case, 1, request.device, data=row.data)
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
        allowance_used=judged.closest.allowance_used,
        closest_ulp=judged.closest.ulp,
        accepted_ulp=judged.closest.accepted_ulp,
        truncated=case.dtype == "bf16" and request.device == "cpu" and interpreting(),
    )


def _interpreted(request: CheckRequest) -> Iterator[CheckResult]:
    """The results of a process with TRITON_INTERPRET=1, which Triton reads when it is imported."""
    command = [
        sys.executable,
        "-m",
        "rownorm_lab.measure.check",
        msgspec.json.encode(request).decode(),
    ]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=environment
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                row = msgspec.json.decode(line, type=CheckResult)
                yield msgspec.structs.replace(row, provider=row.provider + INTERPRETED)
            if process.wait() != 0:
                errors.seek(0)
                lines = errors.read().decode(errors="replace").strip().splitlines()
                why = lines[-1] if lines else f"exit status {process.returncode}"
                raise RuntimeError(f"the check in Triton's interpreter ended early: {why}")
        finally:
            process.kill()  # the caller may stop reading before the end


def main() -> None:
    """Check the request in the first argument; write results to stdout."""
    request = msgspec.json.decode(sys.argv[1], type=CheckRequest)
    add_providers(request.sources)
    for row in _results(request):
        sys.stdout.buffer.write(msgspec.json.encode(row) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
