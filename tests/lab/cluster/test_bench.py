"""``rownorm bench --ray`` with a real cluster."""

import os
import signal
import socket
import time

import pytest

from rownorm.lab.bench.selection import select_cases
from rownorm.lab.cli.progress import Display
from rownorm.lab.cluster.pool import Process
from rownorm.lab.results.records import read
from rownorm.lab.results.rows import results_of
from support.lab_commands import TWO_PROVIDERS, invoke

pytestmark = pytest.mark.usefixtures("command_line")
CASES = ("--op", "rms_norm", "--dtype", "fp32", "--shape", "2x8..64", "--rounds", "3")
HOST = socket.gethostname()


def test_an_interrupted_run_is_resumed_and_the_case_of_a_killed_process_measured_again(
    cluster, monkeypatch
):
    done, begin, killed = Display.case_done, Process.begin, []

    def interrupt(display, records):
        done(display, records)
        raise KeyboardInterrupt

    def kill_in_the_middle(process, job):
        begin(process, job)
        if "2x64" in job.name and not killed:
            killed.append(job.name)
            time.sleep(0.05)
            os.kill(process.about.pid, signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(Display, "case_done", interrupt)
        ran = invoke("bench", *CASES, *TWO_PROVIDERS, "--ray", cluster, "--out", "made")
    assert ran.exit_code == 130, ran.output
    kept = read("made").records
    assert len(kept) == 2

    monkeypatch.setattr(Process, "begin", kill_in_the_middle)
    ran = invoke("bench", "--resume", "made", "--ray", cluster)
    assert ran.exit_code == 0, ran.output
    assert f"{killed[0]}: its process on {HOST} was lost and it is tried again" in ran.output
    records = read("made").records
    assert records[:2] == kept
    cases = select_cases([], [(2, n) for n in (8, 16, 32, 64)], ["rms_norm"], [], ["fp32"], {})
    expected = [(case.key, name) for case in cases for name in ("rownorm", "torch")]
    assert sorted(one.key for one in records) == sorted(expected)
    assert all(one.status == "ok" and len(one.seconds) == 3 for one in records)
    assert {one.environment.node for one in records} == {HOST}
    (results,) = results_of(records)
    assert len(results.measured) == 8
    assert not results.notes
