"""Jobs on the processes of a cluster: what they send, lost processes, and clusters that cannot be used."""

import json
import sys

import msgspec
import psutil
import pytest

from rownorm.lab.cluster import pool as pools
from rownorm.lab.cluster.pool import Job, Pool, differences
from rownorm.lab.cluster.worker import Worker
from support.lab_commands import TINY, refused
from support.tuning import HERE

pytestmark = pytest.mark.usefixtures("command_line")


def job(name, arguments=b""):
    return Job(name, f"support.cluster_jobs:{name}", lambda: arguments)


def test_jobs_are_done_whatever_happens_to_their_processes(cluster, tmp_path):
    several = [Job(f"echo {n}", "support.cluster_jobs:echo", lambda: b"echo") for n in range(3)]
    several += [job("killed"), job("killed_once", bytes(tmp_path / "killed"))]
    answers = Job("answers and is killed", "support.cluster_jobs:killed_late", single=True)
    several += [answers, job("fails"), job("lost_once", bytes(tmp_path / "lost"))]
    said = []
    with Pool(cluster, most=9) as pool:
        assert len(pool.processes) == 2
        assert pool.environment.kind == "cpu"
        assert pool.describe().startswith("2 CPUs of 1 host, ")
        messages = list(pool.run(several, said.append))
        pids = [one.about.pid for one in pool.processes if one.about]
    found = {one.name: [m for m in messages if m.job is one] for one in several}
    for n in range(3):
        first, second, end = found[f"echo {n}"]
        assert first.content == b"echo"
        assert second.content.startswith(b"from ")
        assert (end.content, end.failure) == (None, "")
    assert found["killed"][-1].failure.startswith("lost its process 3 times, last on ")
    assert [one.content for one in found["killed_once"]][-2:] == [b"ended", None]
    answer, end = found["answers and is killed"]
    assert (answer.content, end.content, end.failure) == (b"begun", None, "")
    assert found["fails"][-1].failure == "ValueError: no settings can be used"
    pid, again, _ = [one.content for one in found["lost_once"]]
    assert pid != again
    assert len([one for one in said if one.startswith("killed: ")]) == 2
    assert any("tried again: the GPU is gone" in one for one in said)
    assert pids
    _, left = psutil.wait_procs([psutil.Process(p) for p in pids if psutil.pid_exists(p)], 10)
    assert not left


def test_another_version_on_a_node_is_named(cluster, monkeypatch):
    monkeypatch.setattr(pools, "__version__", "99")
    message = refused("bench", "--op", "rms_norm", "--shape", "2x8", "--ray", cluster)
    assert "and here is 99. Install rownorm 99" in " ".join(message.split())


def test_a_node_without_rownorm_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "rownorm.lab.cluster.here", None)
    about = json.loads(Worker().about(pools.__version__))
    assert "rownorm.lab.cluster.here" in about["problem"]
    assert about["node"]


def test_devices_of_another_kind_are_not_mixed():
    elsewhere = msgspec.structs.replace(HERE, node="b", gpu="1")
    assert differences(HERE, elsewhere) == []
    other = msgspec.structs.replace(elsewhere, device="NVIDIA H100")
    assert differences(HERE, other) == ["device is NVIDIA H100, not NVIDIA H200"]


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for command in (("bench", *TINY), ("tune",)):
        assert "pip install 'rownorm[ray]'" in refused(*command, "--ray", "local")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "cannot be reached: Connection refused"),
        ("ray://127.0.0.1:10001", "an address is HOST:PORT"),
        ("6379", "an address is HOST:PORT"),
    ],
)
def test_a_cluster_that_is_not_there(address, message):
    assert message in " ".join(refused("bench", *TINY, "--ray", address).split())
