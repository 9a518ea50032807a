"""Settings that depend on the version of Triton: all of them are here.

A tuned plan often uses the last register of a thread, and versions of the compiler allocate registers differently.
``tests/kernels/test_compile_targets.py`` checks every supported version for spills.
"""

from __future__ import annotations

import dataclasses

from ..problem import Problem
from ..triton_version import VERSION as VERSION
from .capacity import next_power_of_2, vector_cols
from .settings import Plan

# Versions that compile every limit of registers in the table without a spill, to the same number of registers (one
# entry differs, by one). Without its limit, fp32 LayerNorm of 12289 to 16383 columns spills 8 bytes in both.
KEEP_LIMITS = ((3, 6), (3, 7))
# From this version on, a tile of 32 bytes per thread and tensor takes more registers than two of 16.
SMALLER_TILES = (3, 9)


def trusts(direction: str, option: str, measured_with: tuple[int, ...]) -> bool:
    """Whether this version of Triton uses an entry of the table.

    Another version does not use entries of backward with a pre_bias: a third column sum takes the last registers.
    """
    return measured_with == VERSION or (direction, option) != ("backward", "pre_bias")


def adjusted(plan: Plan, problem: Problem, measured_with: tuple[int, ...]) -> Plan:
    """A plan of the table for this version of Triton."""
    if measured_with == VERSION or (measured_with in KEEP_LIMITS and VERSION in KEEP_LIMITS):
        return plan
    # Triton 3.9 spills 8 bytes in LayerNorm of 65536 columns with the limit of 64, and uses 64 registers without it.
    # It spills 16 in fp32 LayerNorm of 8192 columns, and uses 40 without the limit and without prefetched parameters.
    prefetch = plan.prefetch_parameters and not plan.maxnreg
    block_cols = _cluster_tile(plan, problem)
    return dataclasses.replace(plan, maxnreg=0, prefetch_parameters=prefetch, block_cols=block_cols)


def _cluster_tile(plan: Plan, problem: Problem) -> int:
    """Columns of a tile. A forward cluster that prefetches nothing must not exceed 64 registers per thread, so that
    four programs of 8 warps run on a multiprocessor. RMSNorm of 131072 columns in Triton 3.9: 60 instead of 80.
    """
    alone = plan.regime == "cluster" and problem.direction == "forward" and plan.num_stages == 1
    if VERSION < SMALLER_TILES or not alone or problem.dtype.itemsize > 2:
        return plan.block_cols
    return min(plan.block_cols, vector_cols(plan, problem))


def widest_tile(problem: Problem) -> int:
    """Columns of the widest tile that the rules give one program: a whole row, with one exception.

    Backward of LayerNorm with 8192 columns for sm_100 in Triton 3.9: one tile spills 8 bytes, two of 4096 columns take
    232 registers.
    """
    is_new = VERSION >= SMALLER_TILES and problem.device.is_nvidia
    return 4096 if is_new and problem.direction == "backward" else next_power_of_2(problem.n_cols)
