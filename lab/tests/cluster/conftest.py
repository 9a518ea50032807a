"""A real Ray cluster on this host, without GPUs: two processes at once."""

import importlib
import os
import shutil
import tempfile
from pathlib import Path

import psutil
import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def pools():
    """The module ``rownorm_lab.cluster.pool``, which needs Ray."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'rownorm-lab[ray]'")
    return importlib.import_module("rownorm_lab.cluster.pool")


@pytest.fixture(scope="module")
def cluster(pools):
    """The address of a cluster. No process of it is left at the end, and other modules' processes do not count."""
    import ray
    from ray.cluster_utils import Cluster

    # Not below pytest's folder: the path of a socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    before = {one.pid for one in psutil.Process().children(recursive=True)}
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(TESTS), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        patch.setenv("RAY_TEST_FOLDER", str(folder))
        patch.setenv("RAY_TMPDIR", str(folder))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("TRITON_INTERPRET", "0")
        node = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 100 << 20}
        made = Cluster(initialize_head=True, head_node_args=node)
    yield made.address
    ray.shutdown()
    made.shutdown()
    children = psutil.Process().children(recursive=True)
    _, left = psutil.wait_procs([one for one in children if one.pid not in before], timeout=10)
    assert not [one.cmdline() for one in left]
    shutil.rmtree(folder)
