"""The dataset and its times: python benchmark.py (on a machine with a GPU) writes traces.json and records.jsonl."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


def write_dataset(folder):
    """Write Definition, workloads for batch 1, 8, 32, 128, 512, your Solution and the PyTorch baseline."""
    raise NotImplementedError("write_dataset")


def main():
    """Time it; copy the traces, and the device times of the same Solutions."""
    import tempfile

    import torch

    if not torch.cuda.is_available():
        sys.exit("Nothing was measured: torch sees no GPU.")
    from rownorm_lab.fib.dataset import read
    from rownorm_lab.fib.run import run_dataset

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "dataset"
        write_dataset(folder)
        status = run_dataset(read(folder), definitions=(), resume=False, rounds=10, iterations=50)
        for name in ("traces.json", "records.jsonl"):
            (HERE / name).write_bytes((folder / name).read_bytes())
    sys.exit(status)


if __name__ == "__main__":  # FlashInfer-Bench starts processes that import this file
    main()
