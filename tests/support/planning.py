"""Problems to plan, devices to plan for, and what holds for every plan."""

import dataclasses
import importlib

import torch

from rownorm import launch
from rownorm.launch import Plan, Problem
from rownorm.launch.device import INTERPRETER
from rownorm.launch.planning import REGIMES, table
from rownorm.launch.resources import TARGETS
from rownorm.program import Program

# The package: its name in rownorm.launch is that of the function.
planner = importlib.import_module("rownorm.launch.planning")

H200 = TARGETS["sm_90"].device  # the device of the table
BLACKWELL = TARGETS["sm_100"].device  # clusters, but no table: plans come from rules
AMPERE = TARGETS["sm_80"].device  # no clusters
MI300X = TARGETS["gfx942"].device
DEVICES = (H200, BLACKWELL, AMPERE, MI300X, INTERPRETER)
DTYPES = (torch.bfloat16, torch.float32, torch.float64)
WIDEST = 1 << 20
WIDTHS = sorted({max(1, (1 << k) + d) for k in range(21) for d in (-1, 0, 1)} - {WIDEST + 1})
ROWS = (0, 1, 2, 7, 128, 1000, 32768, 1 << 20, (1 << 31) + 1)


def problem(direction="forward", n_rows=100, n_cols=1000, dtype=torch.float16, on=H200, **changes):
    """A plain LayerNorm, with ``changes``."""
    sums = 2 if direction == "backward" else 0
    plain = Problem(direction, n_rows, n_cols, dtype, None, True, sums, on)
    return dataclasses.replace(plain, **changes)


def calls(asked: Problem):
    """The kernel calls of a problem."""
    program = Program(asked.center, 1e-5)
    layouts = [launch.rows.RowLayout(asked.n_cols)] * (2 if asked.direction == "forward" else 3)
    return getattr(launch, asked.direction).calls(asked, launch.plan(asked), program, *layouts)


def compiled_for(asked: Problem) -> set[tuple]:
    """What the kernels of a problem are compiled for."""
    return {
        (
            one.kernel.__name__,
            one.num_warps,
            str(sorted(one.constants.items(), key=str)),
            one.maxnreg,
        )
        for one in calls(asked)
    }


def table_with(*rows: dict) -> table.Table:
    """A table for the H200 with these rows, each for bf16 RMSNorm forward unless it says otherwise."""
    plain = {"direction": "forward", "center": False, "itemsize": 2, "residual": 0, "option": ""}
    head = dict.fromkeys(table.TEXTS, "") | {
        "arch": "sm_90",
        "device": "NVIDIA H200",
        "triton": "3.6.0",
    }
    plans = [{**plain, "gb_per_s": 1, **row} for row in rows]
    return table.Table(table.parse({**head, "plans": plans}, "test", "sm_90"))


def assert_sound(asked: Problem, plan: Plan) -> None:
    """The tiles of a plan cover the row once, its sizes can be compiled, and its reason is given."""
    assert plan.regime in REGIMES
    assert plan.reason
    assert plan.programs_per_sm >= 1
    for size in (plan.block_rows, plan.block_cols, plan.num_warps):
        assert size >= 1
        assert size & (size - 1) == 0, plan
    assert plan.num_warps * asked.device.warp_size <= 1024
    if plan.regime == "cluster":
        per_thread = plan.chunks * plan.block_cols // (plan.num_warps * asked.device.warp_size)
        residual = asked.residual_dtype.itemsize if asked.residual_dtype else 0
        thread_bytes = per_thread * (asked.dtype.itemsize + residual)
        assert thread_bytes <= (384 if residual else 128), f"{asked.n_cols} columns: {plan}"
    if plan.regime in ("tile", "resident", "cluster"):
        covered = plan.cluster_size * plan.chunks * plan.block_cols
        assert asked.n_cols <= covered < 2 * max(asked.n_cols, plan.cluster_size * plan.block_cols)
        assert (plan.cluster_size > 1) <= (plan.regime == "cluster")
        assert (plan.block_rows > 1) == (plan.regime == "tile")
    elif plan.regime == "grid":
        assert_grid(asked, plan)
    else:
        assert plan.block_rows == 1
        assert plan.part_cols % plan.block_cols == 0
        assert plan.part_cols >= min(plan.block_cols, asked.n_cols)
        assert (plan.part_cols < asked.n_cols) == (plan.regime == "split")


def assert_grid(asked: Problem, plan: Plan) -> None:
    """All programs of a grid run at once, one row at a time."""
    n_parts = -(-asked.n_cols // plan.part_cols)
    assert 16 <= plan.part_cols <= max(16, plan.block_cols)
    assert plan.part_cols % 16 == 0
    assert (n_parts - 1) * plan.part_cols < asked.n_cols
    assert plan.n_programs * n_parts <= asked.device.n_sms * plan.programs_per_sm
    assert plan.pipeline_depth >= 1
    assert plan.block_rows == 1
    threads = plan.num_warps * asked.device.warp_size * plan.programs_per_sm
    assert (plan.maxnreg or 255) * threads <= 65536
