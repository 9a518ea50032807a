"""How many clusters a GPU runs at once, and which threads of a cluster send sums."""

import subprocess
import sys

import pytest
import torch

from rownorm.launch import Device, cluster_capacity
from support.compiled import backward_ptx
from support.regimes import HAS_CLUSTERS


def test_without_a_driver_there_are_no_clusters(monkeypatch):
    def nothing(name):
        raise OSError(f"no {name}")

    monkeypatch.setattr(cluster_capacity.ctypes, "CDLL", nothing)
    assert cluster_capacity.resident_clusters(0) == ()


def test_without_driver_support_there_are_no_clusters(monkeypatch):
    class Refusing:
        def __getattr__(self, name):
            return lambda *arguments: 801  # CUDA_ERROR_NOT_SUPPORTED

    monkeypatch.setattr(cluster_capacity.ctypes, "CDLL", lambda name: Refusing())
    assert cluster_capacity.resident_clusters(0) == ()


def test_a_device_knows_its_clusters():
    device = Device("some GPU", "sm_90", 132, 32, ((66, 30, 15, 7), (132, 62, 30, 14)))
    sizes = (1, 2, 4, 8, 16, 32)
    assert [device.max_clusters(size) for size in sizes] == [132, 66, 30, 15, 7, 0]
    assert [device.max_clusters(size, 2) for size in sizes] == [264, 132, 62, 30, 14, 0]
    # Other numbers of programs per SM are multiples of known ones.
    assert [device.max_clusters(4, programs) for programs in (3, 4, 6)] == [90, 124, 186]
    assert Device("another", "sm_80", 108, 32).max_clusters(2) == 0


@pytest.mark.skipif(not HAS_CLUSTERS, reason="needs a GPU with clusters")
def test_the_driver_counts_whole_groups():
    counts = cluster_capacity.resident_clusters(0)
    n_sms = torch.cuda.get_device_properties(0).multi_processor_count
    assert len(counts) == len(cluster_capacity.SHARES)
    for share, row in zip(cluster_capacity.SHARES, counts, strict=True):
        for size, count, alone in zip(cluster_capacity.SIZES, row, counts[0], strict=True):
            assert share * alone <= count <= share * n_sms // size


@pytest.mark.skipif(not HAS_CLUSTERS, reason="needs a GPU with clusters")
def test_the_driver_answers_before_cuda_is_initialized():
    """The driver needs a context, which does not exist before the first tensor."""
    code = "from rownorm.launch import device_of; print(len(device_of(0).clusters))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(ran.stdout) == len(cluster_capacity.SHARES)


BY_WARPS = {  # cluster, warps, columns of a tile, columns of a row
    (2, 8, 1024, 8192): True,
    (16, 4, 512, 32768): False,  # more than there are message slots
}
MORE_BY_WARPS = {
    (2, 4, 512, 8191): True,  # no two columns of a thread are adjacent
    (8, 1, 256, 8192): False,  # one warp needs no barrier
    (8, 2, 2048, 16384): True,
    (8, 2, 256, 16384): True,
    (4, 4, 4096, 16384): True,
    (2, 8, 512, 2048): False,  # two columns per thread
}


@pytest.mark.parametrize(
    "cases", [BY_WARPS, pytest.param(MORE_BY_WARPS, marks=pytest.mark.exhaustive)], ids=["", "more"]
)
def test_each_warp_sends_its_sums_if_there_are_several_and_enough_message_slots(
    cases, triton_cache
):
    names = ("cluster_size", "num_warps", "block_cols")
    asked = [
        (case[3], {"regime": "cluster"} | dict(zip(names, case, strict=False))) for case in cases
    ]
    for (case, by_warps), ptx in zip(cases.items(), backward_ptx(asked, triton_cache), strict=True):
        assert ("complete_tx::bytes.f32" in ptx) == by_warps, case
        assert ("complete_tx::bytes.v2.f32" in ptx) != by_warps, case
        # There would be two if two threads shared a column: each would send the sums of both halves.
        assert ptx.count("st.async") == 1, case
