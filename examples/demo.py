"""Every operator against PyTorch and fp64; the plan it gets at real sizes; its kernels compiled for two GPUs.

    python examples/demo.py

Needs no GPU: kernels then run in Triton's interpreter, which is chosen when Triton is imported. Compiling needs a
Triton that does not interpret, so the two halves are two processes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor

import rownorm
from rownorm.explain import explain
from rownorm.program import Program

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, COLS = 37, 520
BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64
PARAMETERS = ("pre_bias", "weight", "bias")


class Case(NamedTuple):
    """An operation with the parameters and options it is called with."""

    function: Callable[..., object]
    parameters: tuple[str, ...] = ("weight",)
    options: dict[str, object] = {}  # noqa: RUF012 (never changed)
    residual: torch.dtype | None = None
    regime: str | None = None

    @property
    def title(self) -> str:
        options = [
            f"{value}" if isinstance(value, str) else name for name, value in self.options.items()
        ]
        extras = [*self.parameters, *options, *([self.regime] if self.regime else [])]
        return f"{self.function.__name__}: {', '.join(extras) or 'plain'}"

    @property
    def program(self) -> Program:
        center = "layer_norm" in self.function.__name__
        return Program(center, 1e-5, **self.options)  # type: ignore[arg-type]


CHECKS = (
    Case(rownorm.layer_norm, ()),
    Case(rownorm.layer_norm, ("weight", "bias")),
    Case(rownorm.layer_norm, PARAMETERS, {"activation": "gelu"}),
    Case(rownorm.rms_norm, ()),
    Case(rownorm.rms_norm),
    Case(rownorm.rms_norm, ("weight",), {"activation": "relu"}),
    Case(rownorm.rms_norm, ("weight",), {"weight_shift": 1.0, "activation": "gelu_tanh"}),
    Case(rownorm.rms_norm, ("weight",), {"rounding": "llama"}),
    Case(rownorm.rms_norm, PARAMETERS, {"activation": "silu"}),
    Case(rownorm.add_layer_norm, ("weight", "bias"), residual=FP32),
    Case(rownorm.add_rms_norm, residual=FP32),
    Case(rownorm.add_rms_norm, ("pre_bias", "weight"), residual=FP32),
    *(
        Case(rownorm.layer_norm, ("weight", "bias"), regime=regime)
        for regime in ("tile", "resident", "looped", "split")
    ),
)


def in_torch(
    case: Case, x: Tensor, residual: Tensor | None, given: dict[str, Tensor]
) -> tuple[Tensor, ...]:
    """The same result from PyTorch's own functions, one after the other."""
    program, n_cols = case.program, x.shape[-1]
    h = x + given["pre_bias"] if "pre_bias" in given else x
    h = h if residual is None else h + residual
    weight, bias = (
        (given[name].to(h.dtype) if name in given else None) for name in ("weight", "bias")
    )
    if weight is not None:
        weight = weight + program.weight_shift
    if program.center:
        z = F.layer_norm(h, (n_cols,), weight, bias, program.eps)
    elif program.rounding == "llama":
        assert weight is not None
        z = F.rms_norm(h, (n_cols,), None, program.eps) * weight
    else:
        z = F.rms_norm(h, (n_cols,), weight, program.eps)
    if bias is not None and not program.center:
        z = z + bias
    match program.activation:
        case None:
            y = z
        case "gelu_tanh":
            y = F.gelu(z, approximate="tanh")
        case activation:
            y = getattr(F, activation)(z)
    return (y.to(x.dtype),) if residual is None else (y.to(x.dtype), h)


def in_rownorm(
    case: Case, x: Tensor, residual: Tensor | None, given: dict[str, Tensor]
) -> tuple[Tensor, ...]:
    rows = (x,) if residual is None else (x, residual)
    made = case.function(*rows, **given, eps=case.program.eps, **case.options)
    return made if isinstance(made, tuple) else (made,)


def outputs_and_gradients(
    compute: Callable[..., tuple[Tensor, ...]],
    case: Case,
    tensors: dict[str, Tensor],
    dtype: torch.dtype | None,
) -> dict[str, Tensor]:
    """Every output and gradient by name; ``dtype`` replaces that of the tensors."""
    leaves = {
        name: t.detach().to(dtype or t.dtype).requires_grad_()
        for name, t in tensors.items()
        if name[0] != "d"
    }
    given = {name: leaves[name] for name in PARAMETERS if name in leaves}
    outputs = compute(case, leaves["x"], leaves.get("residual"), given)
    cotangents = [tensors[f"d{name}"].to(o.dtype) for name, o in zip("yh", outputs, strict=False)]
    torch.autograd.backward(outputs, cotangents)
    made = dict(zip("yh", outputs, strict=False))
    return made | {f"d{name}": leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def errors(case: Case, dtype: torch.dtype) -> tuple[dict[str, tuple[float, float]], bool]:
    """(ours, PyTorch's) largest error of each tensor relative to its largest value; whether ours are small enough."""
    torch.manual_seed(7)
    tensors = {name: torch.randn(ROWS, COLS, device=DEVICE).to(dtype) for name in ("x", "dy", "dh")}
    tensors |= {name: torch.randn(COLS, device=DEVICE).to(dtype) for name in case.parameters}
    if case.residual is not None:
        tensors["residual"] = torch.randn(ROWS, COLS, device=DEVICE).to(case.residual)
    exact = outputs_and_gradients(in_torch, case, tensors, FP64)
    theirs = outputs_and_gradients(in_torch, case, tensors, None)
    if case.regime is None:
        ours = outputs_and_gradients(in_rownorm, case, tensors, None)
    else:
        from rownorm.launch import force

        blocks = {"block_cols": 128, "part_cols": 256} if case.regime in ("looped", "split") else {}
        with force(regime=case.regime, **blocks):
            ours = outputs_and_gradients(in_rownorm, case, tensors, None)

    found, small = {}, True
    for name, oracle in exact.items():
        largest = oracle.abs().max()
        pair = [
            ((made[name].double() - oracle).abs().max() / largest).item() for made in (ours, theirs)
        ]
        # The bound of the library's tests: 1.25 times PyTorch's error and one rounding. Triton's interpreter
        # cuts bf16 off where a GPU rounds it, which costs one more.
        roundings = 2 if DEVICE == "cpu" and dtype == BF16 else 1
        small &= pair[0] <= 1.25 * pair[1] + roundings * torch.finfo(ours[name].dtype).eps
        found[name] = (pair[0], pair[1])
    return found, small


def check_accuracy() -> int:
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else "Triton's interpreter, on the CPU"
    print(f"1. Every operator, forward and backward, {ROWS} x {COLS}, in {where}")
    print(
        "   Largest error against fp64, relative to the largest value: rownorm's | PyTorch's own\n"
    )
    print(f"{'':55} {'output':^17} {'gradient of x':^17} {'of parameters':^17}")
    failures = 0
    numpy.seterr(
        over="ignore"
    )  # the interpreter computes with numpy, which would warn where a GPU does not
    for case in CHECKS:
        for dtype in (FP32, BF16):
            found, small = errors(case, dtype)
            failures += not small
            columns = []
            for names in (("y", "h"), ("dx", "dresidual"), [f"d{name}" for name in PARAMETERS]):
                pairs = [found[name] for name in names if name in found]
                worst = max(pairs, key=lambda pair: pair[0] - pair[1], default=None)
                columns.append(f"{worst[0]:.1e} | {worst[1]:.1e}" if worst else "")
            cells = " ".join(f"{column:^17}" for column in columns)
            print(
                f"{case.title:46} {str(dtype)[6:]:8} {cells} {'ok' if small else 'TOO LARGE'}",
                flush=True,
            )
    checks = 2 * len(CHECKS)
    print(f"\naccuracy: {checks - failures} of {checks} as accurate as PyTorch")
    return failures


PROBLEMS = (
    (Case(rownorm.rms_norm), 32768, 256, BF16),
    (Case(rownorm.rms_norm), 32768, 4096, BF16),
    (Case(rownorm.layer_norm, ("weight", "bias")), 32768, 8192, BF16),
    (Case(rownorm.layer_norm, ("pre_bias", "weight", "bias")), 4096, 1000, FP32),
    (Case(rownorm.add_rms_norm, residual=FP32), 16384, 7168, BF16),
    (Case(rownorm.add_layer_norm, ("weight", "bias"), residual=BF16), 16384, 4096, BF16),
    (Case(rownorm.rms_norm), 4096, 65536, BF16),
    (Case(rownorm.layer_norm, ("weight", "bias")), 1, 1048576, BF16),
)


def show_plans() -> int:
    from rownorm.launch.resources import TARGETS, compile_backward, compile_forward

    print("2. The plan of real problems, and what the compiler makes of their kernels\n")
    n_kernels = spilling = 0
    for arch in ("sm_90", "gfx942"):
        target = TARGETS[arch]
        for case, n_rows, n_cols, dtype in PROBLEMS:
            x = torch.empty(n_rows, n_cols, dtype=dtype, device="meta")
            residual = None if case.residual is None else x.to(case.residual)
            given = {
                name: torch.empty(n_cols, dtype=dtype, device="meta") for name in case.parameters
            }
            rows = (x,) if residual is None else (x, residual)
            explained = explain(case.function, *rows, **given, **case.options, device=arch)
            title, *plans = str(explained).splitlines()
            print(f"{title}, {', '.join(case.parameters)}", *plans, sep="\n")
            pre_bias, weight, bias = (given.get(name) for name in PARAMETERS)
            for compile_pass in (compile_forward, compile_backward):
                compiled = compile_pass(x, residual, pre_bias, weight, bias, case.program, target)
                for kernel in compiled.kernels:
                    n_kernels += 1
                    spilling += kernel.spills > 0
                    print(
                        f"    {kernel.kernel:16} {kernel.num_warps:3} warps {kernel.registers:4} registers "
                        f"{kernel.spills:4} B spilled {kernel.shared:6} B shared "
                        f"{kernel.load_bytes:3} B loads {kernel.store_bytes:3} B stores",
                        flush=True,
                    )
            print()
    print(f"kernels: {n_kernels} compiled, {spilling} with spills")
    return spilling


def run_both() -> int:
    """Each half in a process of its own, with and without the interpreter."""
    start = time.perf_counter()
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    interpreting = environment if DEVICE == "cuda" else environment | {"TRITON_INTERPRET": "1"}
    failed = []
    for half, variables in (("accuracy", interpreting), ("kernels", environment)):
        status = subprocess.run(
            [sys.executable, __file__, half], env=variables, check=False
        ).returncode
        failed += [half] if status else []
        print(flush=True)
    verdict = f"FAILED: {' and '.join(failed)}" if failed else "all is well"
    print(f"demo: {verdict} ({time.perf_counter() - start:.0f} s)")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Show rownorm at work; exit status 1 if anything is wrong."
    )
    parser.add_argument(
        "half", nargs="?", choices=("accuracy", "kernels"), help="only one half (default: both)"
    )
    halves = {"accuracy": check_accuracy, "kernels": show_plans, None: run_both}
    return 1 if halves[parser.parse_args().half]() else 0


if __name__ == "__main__":
    sys.exit(main())
