"""Settings that depend on the version of Triton: all of them are here.

Registers decide the speed of a plan that was tuned to their last one, and another version of the compiler allocates
them differently. ``tests/test_compile_targets.py`` checks every supported version for spills.
"""

from __future__ import annotations

import dataclasses

from ..launcher import VERSION
from ..problem import Problem
from .capacity import vector_cols
from .settings import Plan


def trusts(direction: str, option: str, measured_with: tuple[int, ...]) -> bool:
    """Whether a row of the table is used by this version of Triton.

    Not backward with a pre_bias by another version: its third column sum takes the last registers.
    """
    return measured_with == VERSION or (direction, option) != ("backward", "pre_bias")


def adjusted(plan: Plan, problem: Problem, measured_with: tuple[int, ...]) -> Plan:
    """A plan of the table for this version of Triton."""
    if measured_with == VERSION:
        return plan
    block_cols = plan.block_cols
    if VERSION >= (3, 9) and plan.regime == "cluster" and problem.dtype.itemsize == 2:
        # RMSNorm of 131072 columns: 60 registers with 16 bytes of a tile per thread, 80 with 32 bytes. Only with at
        # most 64 do four programs of 8 warps run on a multiprocessor.
        if problem.direction == "forward" and plan.num_stages == 1:
            block_cols = min(block_cols, vector_cols(plan, problem))
    # A limit that makes one version use fewer registers makes another one spill: Triton 3.9 spills 8 bytes in LayerNorm
    # of 65536 columns with the limit of 64, and uses 64 without it.
    return dataclasses.replace(plan, maxnreg=0, block_cols=block_cols)
