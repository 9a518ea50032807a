"""LayerNorm by rownorm and by PyTorch: check both, time both over several widths, write traces and plots.

    python examples/layer_norm_kernel.py --help

``triton_layerNorm_kernel(X, weight, bias)`` can also be imported. The traces open in ui.perfetto.dev or chrome://tracing.
The plots need altair and vl-convert-python, which the lab brings.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

import rownorm

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
ROWS = 4096 if ON_GPU else 64
WIDTHS = [256 << i for i in range(8)] if ON_GPU else [256, 2048, 16384]
PLOTS = {"bandwidth.png": "GB/s", "time.png": "ms"}  # file: what it shows against the width
TRACES = ("triton_profile.json", "pytorch_profile.json")


def triton_layerNorm_kernel(X: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """LayerNorm over the last dimension of X. X: (..., n_cols); weight, bias: (n_cols,)."""
    return rownorm.layer_norm(X, weight, bias, eps=eps)


def pytorch_layer_norm(X: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """The same by PyTorch."""
    return F.layer_norm(X, weight.shape, weight, bias, eps)


def inputs(rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Random X, weight and bias."""
    X = torch.randn(rows, width, dtype=dtype, device=DEVICE)
    weight, bias = torch.randn(2, width, dtype=dtype, device=DEVICE)
    return X, weight, bias


def error(y: Tensor, X: Tensor, weight: Tensor, bias: Tensor) -> float:
    """Largest difference from LayerNorm in fp64."""
    exact = pytorch_layer_norm(X.double(), weight.double(), bias.double())
    return (y.double() - exact).abs().max().item()


def seconds(function: Callable[[], Tensor]) -> float:
    """The median time of one call: device time with a cold cache on a GPU, wall-clock time on a CPU."""
    if ON_GPU:
        from triton.testing import do_bench

        return float(do_bench(function, return_mode="median")) * 1e-3
    return float(Timer("f()", globals={"f": function}).blocked_autorange(min_run_time=0.1).median)


def compare(
    rows: int, widths: Sequence[int], dtype: torch.dtype
) -> tuple[bool, list[dict[str, Any]]]:
    """Print a line for each width. Return whether every result is as accurate as PyTorch's, and what was measured."""
    measured: list[dict[str, Any]] = []
    print(f"{'':>8} {'max error':^21} {'ms':^19} {'GB/s':^19} {'speed-':>7}")
    print(
        f"{'columns':>8}"
        + f" {'rownorm':>10} {'PyTorch':>10}"
        + f" {'rownorm':>9} {'PyTorch':>9}" * 2
        + "      up"
    )
    right = True
    for width in widths:
        tensors = inputs(rows, width, dtype)
        ours, theirs = triton_layerNorm_kernel(*tensors), pytorch_layer_norm(*tensors)
        errors = error(ours, *tensors), error(theirs, *tensors)
        rounding = torch.finfo(dtype).eps * ours.abs().max().item()
        right &= errors[0] <= 1.25 * errors[1] + rounding
        times = (
            seconds(partial(triton_layerNorm_kernel, *tensors)),
            seconds(partial(pytorch_layer_norm, *tensors)),
        )
        moved = 2 * ours.nbytes  # X is read, the result written
        print(
            f"{width:8} {errors[0]:10.2e} {errors[1]:10.2e} {times[0] * 1e3:9.4f} {times[1] * 1e3:9.4f} "
            f"{moved / times[0] / 1e9:9.1f} {moved / times[1] / 1e9:9.1f} {times[1] / times[0]:7.2f}",
            flush=True,
        )
        measured += [
            {"columns": width, "by": name, "ms": one * 1e3, "GB/s": moved / one / 1e9}
            for name, one in zip(("rownorm", "PyTorch"), times, strict=True)
        ]
    return right, measured


def write_plots(folder: Path, measured: list[dict[str, Any]]) -> None:
    """Write bandwidth and time against the number of columns."""
    try:
        import altair as alt
        import vl_convert
    except ImportError as missing:
        print(f"no plots: {missing}; pip install altair vl-convert-python")
        return
    for name, figure in PLOTS.items():
        chart = (
            alt.Chart(alt.Data(values=measured), title=f"LayerNorm, {figure}")
            .mark_line(point=True)
            .encode(
                x=alt.X("columns:Q", scale=alt.Scale(type="log", base=2)),
                y=alt.Y(f"{figure}:Q", scale=alt.Scale(type="log" if figure == "ms" else "linear")),
                color="by:N",
            )
            .properties(width=480, height=300)
        )
        (folder / name).write_bytes(vl_convert.vegalite_to_png(chart.to_dict(), scale=2))
        print(f"wrote {folder / name}")


def write_traces(folder: Path, rows: int, width: int, dtype: torch.dtype) -> None:
    """Write a Chrome trace of ten calls of each."""
    tensors = inputs(rows, width, dtype)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * ON_GPU
    folder.mkdir(parents=True, exist_ok=True)
    for name, function in zip(TRACES, (triton_layerNorm_kernel, pytorch_layer_norm), strict=True):
        function(*tensors)
        with profile(activities=activities) as trace:
            for _ in range(10):
                function(*tensors)
            if ON_GPU:
                torch.cuda.synchronize()
        trace.export_chrome_trace(str(folder / name))
        print(f"wrote {folder / name}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Check and time LayerNorm by rownorm and by PyTorch."
    )
    parser.add_argument("--rows", type=int, default=ROWS, help=f"(default here: {ROWS})")
    parser.add_argument(
        "--widths", type=int, nargs="+", default=WIDTHS, metavar="N", help="columns, one or more"
    )
    dtypes = ("float16", "bfloat16", "float32", "float64")
    parser.add_argument("--dtype", choices=dtypes, default="float32", help="(default: float32)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("traces"),
        help="folder for traces and plots (default: traces)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite existing traces and plots")
    options = parser.parse_args()
    existing = [name for name in (*TRACES, *PLOTS) if (options.out / name).exists()]
    if existing and not options.force:
        parser.error(
            f"{', '.join(existing)} already in {options.out}: choose another --out, or --force"
        )

    dtype = getattr(torch, options.dtype)
    where = (
        torch.cuda.get_device_name()
        if ON_GPU
        else "a CPU: no GPU kernel runs, these are CPU timings"
    )
    print(f"LayerNorm, {options.rows} rows, {options.dtype}, on {where}")
    right, measured = compare(options.rows, options.widths, dtype)
    write_traces(options.out, options.rows, options.widths[-1], dtype)
    write_plots(options.out, measured)
    print("rownorm is as accurate as PyTorch" if right else "rownorm is LESS accurate than PyTorch")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
