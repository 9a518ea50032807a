"""Time the Solutions of a dataset on a GPU, and write traces.json and analysis.md.

    python examples/flashinfer_bench/benchmark.py results/fib

The same as ``rownorm fib run results/fib`` and ``rownorm fib report results/fib``. The ``traces.json`` and
``analysis.md`` beside this file were made so on an H200.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from rownorm_lab.commands.fib.report import write_report
from rownorm_lab.fib.dataset import read
from rownorm_lab.fib.run import run_dataset


def main() -> None:
    """Run, then report."""
    parser = argparse.ArgumentParser(description="Time the Solutions of a dataset.")
    parser.add_argument("folder", type=Path, help="what create_solution.py has written")
    folder = parser.parse_args().folder
    if not torch.cuda.is_available():
        parser.error("torch sees no GPU, and FlashInfer-Bench times on GPUs only")
    dataset = read(folder)
    status = run_dataset(dataset, definitions=(), resume=False, rounds=15, iterations=50)
    files, _ = write_report(dataset, folder / "report", plots=True, on_step=print)
    print(*files, sep="\n")
    sys.exit(status)


if __name__ == "__main__":  # FlashInfer-Bench starts processes that import this file
    main()
