"""Variants of the kernels that ``finish`` decides, and that the calls take from the plan."""

import pytest
import torch

from rownorm import launch
from rownorm.kernels.exchange.cluster import MAX_SENDERS
from rownorm.launch import force
from rownorm.launch.planning import cluster
from support.planning import AMPERE, BLACKWELL, H200, MI300X, calls, problem

FORWARD = ("evict_first", "load_eviction", "pack_x", "pack_residual", "vector_width", "kept_chunks")
BACKWARD = ("sum_rows", "load_dy_with_h", "latency_hidden", "scalar_statistics", "send_per_warp")


@pytest.mark.parametrize("on", [H200, BLACKWELL, AMPERE, MI300X], ids=lambda on: on.arch)
@pytest.mark.parametrize("n_cols", [64, 1000, 4096, 12288, 65536, 1 << 20])
@pytest.mark.parametrize(
    ("direction", "names"), [("forward", FORWARD), ("backward", BACKWARD)], ids=str
)
def test_kernels_are_compiled_for_the_variants_of_the_plan(direction, names, n_cols, on):
    for n_rows in (1, 4096):
        asked = problem(direction, n_rows, n_cols, torch.bfloat16, on)
        plan = launch.plan(asked)
        steps = calls(asked)
        for name in (*names, "block_parts"):
            assert steps[0].constants[name.upper()] == getattr(plan, name)
        adds_up = steps[-1].kernel.__name__ == "column_sums"
        assert adds_up == (plan.sums_tile is not None)


def test_few_rows_leave_no_partial_sums():
    def sums_tile(n_rows, n_cols, **changes):
        return launch.plan(problem("backward", n_rows, n_cols, torch.bfloat16, **changes)).sums_tile

    assert sums_tile(4, 4096) is None
    assert sums_tile(4096, 4096, n_column_sums=0) is None
    assert sums_tile(4096, 4096) == (512, 8, 8)
    assert sums_tile(4096, 4096, on=MI300X) == (128, 32, 4)
    assert sums_tile(4096, 65536) == (32, 128, 4)
    with force(regime="looped", n_programs=1):  # its kernels never store the sums themselves
        assert sums_tile(4096, 4096) == (512, 8, 8)


def test_results_leave_l2_first_unless_a_later_load_hits_a_cache():
    def evicts(n_cols, **settings):
        changes = {"residual_dtype": settings.pop("residual_dtype", None)}
        with force(**settings):
            return launch.plan(
                problem("forward", 4096, n_cols, torch.bfloat16, **changes)
            ).evict_first

    two_stages = {"regime": "cluster", "cluster_size": 2, "num_stages": 2}
    assert evicts(65536, **two_stages)
    assert not evicts(65536, **two_stages, residual_dtype=torch.bfloat16)
    assert not evicts(65536, **(two_stages | {"num_stages": 1}))
    assert not evicts(8192, regime="looped", block_cols=4096)
    assert evicts(8200, regime="looped", block_cols=4096)
    assert evicts(16384, regime="looped", block_cols=4096)
    assert evicts(1024, regime="resident", prefetch_parameters=True)
    assert not evicts(1024, regime="resident", prefetch_parameters=False)


def test_the_rows_of_two_tensors_are_prefetched_without_a_hint():
    with force(regime="cluster", cluster_size=4, num_stages=2):
        plain = problem("forward", 4096, 65536, torch.bfloat16)
        added = problem("forward", 4096, 65536, torch.bfloat16, residual_dtype=torch.bfloat16)
        assert launch.plan(plain).load_eviction == "evict_last"
        assert launch.plan(added).load_eviction == ""


def test_parameters_stay_in_registers_that_nothing_else_needs():
    def kept(num_stages=2, **changes):
        settings = {"regime": "cluster", "cluster_size": 4, "num_warps": 16, "block_cols": 2048}
        with force(**settings, num_stages=num_stages):
            return launch.plan(
                problem("forward", 4096, 65536, torch.bfloat16, **changes)
            ).kept_chunks

    assert kept() == 2  # 8 numbers for each of 512 threads
    assert kept(num_stages=1) == 0
    for changes in ({"activation": "silu"}, {"pre_bias": True}, {"residual_dtype": torch.bfloat16}):
        assert kept(**changes) == 0


def test_16_bit_numbers_are_packed_where_a_thread_has_pairs():
    def packs(block_cols, on=H200):
        with force(regime="cluster", cluster_size=2, num_warps=8, block_cols=block_cols):
            asked = problem(
                "forward", 4096, 65536, torch.bfloat16, on, residual_dtype=torch.float32
            )
            plan = launch.plan(asked)
            return plan.pack_x, plan.pack_residual, plan.vector_width

    assert packs(2048) == (True, False, 8)
    assert packs(512) == (True, False, 2)
    assert packs(256) == (False, False, 1)


def test_statistics_are_scalars_of_one_row_with_an_activation():
    def are_scalars(**changes):
        asked = problem("backward", 4096, 4096, torch.bfloat16, **{"activation": "silu"} | changes)
        return launch.plan(asked).scalar_statistics

    with force(regime="resident"):
        assert are_scalars()
        assert not are_scalars(activation=None)
        assert not are_scalars(center=False)
    with force(regime="tile", block_rows=2):
        assert not are_scalars()


def test_warps_send_their_own_sums_where_there_are_slots_for_them():
    assert MAX_SENDERS.value == cluster.MOST_SENDERS

    def sends(cluster_size, num_warps, block_cols):
        settings = {"cluster_size": cluster_size, "num_warps": num_warps, "block_cols": block_cols}
        with force(regime="cluster", **settings):
            return launch.plan(problem("backward", 4096, 16384, torch.bfloat16)).send_per_warp

    assert sends(4, 4, 512)
    assert not sends(4, 1, 512)  # nothing to save
    assert not sends(1, 4, 512)
    assert not sends(16, 4, 512)  # 64 senders
    assert not sends(4, 4, 256)  # 2 columns for each thread
