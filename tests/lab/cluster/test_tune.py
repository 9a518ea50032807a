"""``rownorm tune --ray``: a real cluster, whose processes take their times from the fake clock."""

import functools
import json

from rownorm.lab.cluster.pool import Pool
from rownorm.lab.tune.compiling import Ahead
from rownorm.lab.tune.jobs import _no_timer, searched_on
from rownorm.lab.tune.journal import read as read_trials
from rownorm.lab.tune.run import run_tune
from rownorm.lab.tune.saved import TuneRequest
from support.tuning import H200, HERE, FakeClock

REQUESTED = TuneRequest(
    environment=HERE,
    operations=["rms_norm"],
    directions=["forward", "backward"],
    dtypes=["bf16"],
    widths=[1024, 2048],
)


def plans_in(folder):
    return json.loads((folder / "sm_90.json").read_text())["plans"]


def test_the_trials_of_all_processes_are_in_one_journal(cluster, tmp_path, capsys):
    """One process is killed in the middle of a row. The table is that of one process, and nothing is tried twice."""
    with Pool(cluster, most=4) as pool:
        elsewhere = functools.partial(
            searched_on, pool, REQUESTED, 0, function="support.cluster_jobs:search_with_fake_clock"
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
