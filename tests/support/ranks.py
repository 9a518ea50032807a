"""Processes that form a gloo group on the CPU, for tests of what runs on several devices."""

import datetime
import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import distributed

TIMEOUT = datetime.timedelta(
    seconds=60
)  # of a collective; a rank that waits for one that failed stops after it
# A server imports these once, and every rank is a fork of it.
PRELOADED = [
    "pytest",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.debug",
    "torch.distributed.tensor.experimental",
    "torch.distributed.tensor.parallel",
    "torch.fx.experimental.symbolic_shapes",
]


def run_on_ranks(n_ranks: int, function: Callable[..., None], *arguments: Any) -> None:
    """Run ``function(*arguments)`` in ``n_ranks`` new processes. An error of a rank is raised with its traceback.

    function: a function of a module in ``support``, because the processes import it by name.
    """
    multiprocessing.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        mp.start_processes(
            _rank, (n_ranks, store, function, arguments), n_ranks, start_method="forkserver"
        )


def _rank(
    rank: int, n_ranks: int, store: Path, function: Callable[..., None], arguments: tuple
) -> None:
    from rownorm.ops import execute

    execute.INTERPRETING = False  # the CPU path, as for users; the interpreter would be slow
    torch.set_num_threads(1)
    torch.manual_seed(20)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=n_ranks, timeout=TIMEOUT
    )
    try:
        function(*arguments)
    finally:
        distributed.destroy_process_group()
