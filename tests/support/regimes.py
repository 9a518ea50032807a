"""Settings that force every regime onto rows of a few dozen columns.

Each row takes several tiles, chunks or parts, and the last one is not full.
"""

import torch

from rownorm.launch import device_of, force

ON_GPU = torch.cuda.is_available()

HAS_CLUSTERS = ON_GPU and bool(device_of(0).clusters)

FORCED = {
    "tile": {"regime": "tile", "block_rows": 4},
    "resident": {"regime": "resident", "block_cols": 32},
    "cluster": {
        "regime": "cluster",
        "cluster_size": 2 if HAS_CLUSTERS else 1,
        "block_cols": 32,
        "num_warps": 1,
    },
    # The interpreter runs programs one after another, so there a row has one part, in a block of its own width.
    "grid": {"regime": "grid", "pipeline_depth": 2}
    | ({"block_cols": 32, "num_warps": 1} if ON_GPU else {}),
    "looped": {"regime": "looped", "block_cols": 32},
    "split": {"regime": "split", "block_cols": 32, "part_cols": 64},
}

REGIMES = tuple(FORCED)


def forced(regime: str, **settings):
    """Force plans of this regime, with blocks so small that small rows need several of them."""
    return force(**(FORCED[regime] | settings))
