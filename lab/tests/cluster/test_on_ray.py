"""Jobs, ``bench`` and ``tune`` on a real cluster, with processes that are killed.

One file, because every process of pytest-xdist that runs one of these tests starts a cluster.
"""

import functools
import json
import os
import signal
import socket
import time

import psutil
import pytest

from lab_support.lab_commands import TWO_PROVIDERS, invoke
from lab_support.tuning import H200, HERE, FakeClock
from rownorm_lab.command_line.progress import Display
from rownorm_lab.commands.bench.selection import select_cases
from rownorm_lab.commands.tune.compiling import Ahead
from rownorm_lab.commands.tune.jobs import _no_timer, searched_on
from rownorm_lab.commands.tune.journal import read as read_trials
from rownorm_lab.commands.tune.run import run_tune
from rownorm_lab.data.measurements import results_of
from rownorm_lab.data.records import read
from rownorm_lab.data.tunings import TuneRequest

HOST = socket.gethostname()
CASES = ("--op", "rms_norm", "--dtype", "fp32", "--shape", "2x8..64", "--rounds", "3")
REQUESTED = TuneRequest(
    environment=HERE,
    operations=["rms_norm"],
    directions=["forward", "backward"],
    dtypes=["bf16"],
    widths=[1024, 2048],
)


@pytest.mark.exhaustive  # processes that are lost import everything again; the test below loses one
def test_jobs_are_done_whatever_happens_to_their_processes(pools, cluster):
    jobs = {
        name: pools.Job(name, f"lab_support.cluster_jobs:{name.split()[0]}", lambda: b"hello")
        for name in ("echo 1", "always_lost", "echo 2", "fails", "echo 3")
    }
    jobs["lost_late"] = pools.Job("lost_late", "lab_support.cluster_jobs:lost_late", single=True)
    said = []
    with pools.Pool(cluster, most=9) as pool:
        assert len(pool.processes) == 2
        assert pool.environment.kind == "cpu"
        assert pool.describe().startswith("2 CPUs of 1 host, ")
        messages = list(pool.run(jobs.values(), said.append))
        processes = [psutil.Process(one.about.pid) for one in pool.processes if one.about]
    found = {name: [m for m in messages if m.job is job] for name, job in jobs.items()}
    for n in range(3):
        hello, pid, end = found[f"echo {n + 1}"]
        assert hello.content == b"hello"
        assert pid.content.startswith(b"from ")
        assert (end.content, end.failure) == (None, "")
    assert found["always_lost"][-1].failure.startswith(f"lost its process 3 times, last on {HOST}")
    assert [one.partition(":")[0] for one in said] == ["always_lost"] * 2
    assert found["fails"][-1].failure == "ValueError: no settings can be used"
    assert [one.content for one in found["lost_late"]] == [b"all", None]
    assert not psutil.wait_procs(processes, timeout=10)[1]


@pytest.mark.usefixtures("command_line")
def test_the_case_of_a_killed_process_is_measured_again(pools, cluster, monkeypatch):
    killed = _kill_in_the_middle(pools, monkeypatch)
    ran = invoke("bench", *CASES, *TWO_PROVIDERS, "--ray", cluster, "--out", "made")
    assert ran.exit_code == 0, ran.output
    assert f"{killed[0]}: its process on {HOST} was lost and it is tried again" in ran.output
    _check_every_case()


@pytest.mark.exhaustive
@pytest.mark.usefixtures("command_line")
def test_an_interrupted_run_is_resumed(pools, cluster, monkeypatch):
    done = Display.case_done

    def interrupt(display, records):
        done(display, records)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Display, "case_done", interrupt)
        ran = invoke("bench", *CASES, *TWO_PROVIDERS, "--ray", cluster, "--out", "made")
    assert ran.exit_code == 130, ran.output
    kept = read("made").records
    assert len(kept) == 2

    killed = _kill_in_the_middle(pools, monkeypatch)
    ran = invoke("bench", "--resume", "made", "--ray", cluster)
    assert ran.exit_code == 0, ran.output
    assert f"{killed[0]}: its process on {HOST} was lost and it is tried again" in ran.output
    assert read("made").records[:2] == kept
    _check_every_case()


def _kill_in_the_middle(pools, monkeypatch):
    """The process of one case is killed while it measures; the case's name is in the list, as soon as it is."""
    begin, killed = pools.Process.begin, []

    def kill_in_the_middle(process, job):
        begin(process, job)
        if "2x64" in job.name and not killed:
            killed.append(job.name)
            time.sleep(0.05)
            os.kill(process.about.pid, signal.SIGKILL)

    monkeypatch.setattr(pools.Process, "begin", kill_in_the_middle)
    return killed


def _check_every_case():
    """Each was measured once, with both providers, on this host."""
    records = read("made").records
    cases = select_cases([], [(2, n) for n in (8, 16, 32, 64)], ["rms_norm"], [], ["fp32"], {})
    expected = [(case.key, name) for case in cases for name in ("rownorm", "torch")]
    assert sorted(one.key for one in records) == sorted(expected)
    assert all(one.status == "ok" and len(one.seconds) == 3 for one in records)
    assert {one.environment.node for one in records} == {HOST}
    (results,) = results_of(records)
    assert len(results.measured) == 8
    assert not results.notes


def plans_in(folder):
    return json.loads((folder / "sm_90.json").read_text())["plans"]


@pytest.mark.exhaustive
def test_the_trials_of_all_processes_are_in_one_journal(pools, cluster, tmp_path, capsys):
    """One process is killed in the middle of a row. The table is that of one process, and nothing is tried twice."""
    with pools.Pool(cluster, most=4) as pool:
        elsewhere = functools.partial(
            searched_on,
            pool,
            REQUESTED,
            0,
            function="lab_support.cluster_jobs:search_with_fake_clock",
        )
        run = functools.partial(
            run_tune, tmp_path / "cluster", REQUESTED, H200, Ahead(0, None), _no_timer
        )
        assert run(limit_s=0, elsewhere=elsewhere) == 3
        assert run(elsewhere=elsewhere) == 0
    assert "was lost and it is tried again" in capsys.readouterr().out
    assert run_tune(tmp_path / "one", REQUESTED, H200, Ahead(0, None), FakeClock().of) == 0
    assert plans_in(tmp_path / "cluster") == plans_in(tmp_path / "one")
    trials, damaged = read_trials(tmp_path / "cluster")
    assert not damaged
    assert len({one.key for one in trials}) == len(trials)
    assert {one.key for one in trials} == {one.key for one in read_trials(tmp_path / "one")[0]}
    assert all(one.where for one in trials)
