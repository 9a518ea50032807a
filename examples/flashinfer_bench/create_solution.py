"""Write the dataset for rmsnorm_d4096: Definition, Workloads, and the Solutions that hold rownorm's kernels.

    python examples/flashinfer_bench/create_solution.py results/fib

The same as ``rownorm fib export results/fib``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rownorm_lab.commands.fib.export import export_new
from rownorm_lab.data.runs import is_taken


def main() -> None:
    """Write the dataset into a new folder."""
    parser = argparse.ArgumentParser(description="Write the dataset for rmsnorm_d4096.")
    parser.add_argument("folder", type=Path, help="a new folder")
    folder = parser.parse_args().folder
    if is_taken(folder):
        parser.error(f"{folder} exists and is not empty")
    export_new(folder, "course", (), (), (), (), None)


if __name__ == "__main__":
    main()
