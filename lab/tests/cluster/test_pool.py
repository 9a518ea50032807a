"""Clusters that cannot be used, and why."""

import json
import sys

import msgspec
import pytest

from lab_support.lab_commands import TINY, refused
from lab_support.tuning import HERE
from rownorm.version import __version__
from rownorm_lab.cluster import ClusterError
from rownorm_lab.cluster.worker import Worker

pytestmark = pytest.mark.usefixtures("command_line")


@pytest.fixture
def about_of(pools):
    """A function that makes the ``About`` of a process."""

    def make(environment=HERE, node="a"):
        return pools.About(node, 1, msgspec.structs.replace(environment, node=node))

    return make


def test_another_version_on_a_node_is_named(pools, about_of):
    there = msgspec.json.decode(Worker().about("99"), type=pools.About)
    with pytest.raises(
        ClusterError,
        match=r"cannot use rownorm: its version is .*, not 99. On every node: pip install",
    ):
        pools.common_environment([about_of(), there])


def test_a_node_without_rownorm_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "rownorm_lab.cluster.here", None)
    about = json.loads(Worker().about(__version__))
    assert "rownorm_lab.cluster.here" in about["problem"]
    assert about["node"]


def test_devices_of_another_kind_are_not_mixed(pools, about_of):
    assert pools.common_environment([about_of(), about_of(node="b")]) == HERE
    other = msgspec.structs.replace(HERE, device="NVIDIA H100")
    with pytest.raises(
        ClusterError, match=r"on b device is NVIDIA H100, not NVIDIA H200 as on a. Their times"
    ):
        pools.common_environment([about_of(), about_of(other, node="b")])


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for command in (("bench", *TINY), ("tune",)):
        assert "pip install 'rownorm-lab[ray]'" in refused(*command, "--ray", "local")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "cannot be reached: Connection refused"),
        ("ray://127.0.0.1:10001", "an address is HOST:PORT"),
        ("6379", "an address is HOST:PORT"),
    ],
)
def test_a_cluster_that_is_not_there(pools, address, message):
    assert message in " ".join(refused("bench", *TINY, "--ray", address).split())
