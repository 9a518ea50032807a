"""``rownorm compare``: verdicts and exit statuses."""

import pytest

from rownorm.lab.cases.case import Case
from rownorm.lab.compare.command import quantity
from rownorm.lab.results.compare import Comparison
from rownorm.lab.results.statistics import Ratio
from support.lab_commands import invoke, small_record, write_run

pytestmark = pytest.mark.usefixtures("command_line")


@pytest.mark.parametrize(
    ("slower", "options", "status", "verdict"),
    [
        (1.0, [], 0, "1 same"),
        (1.2, [], 1, "1 slower"),
        (0.8, [], 0, "1 faster"),
        (1.2, ["--fail-on", "never"], 0, "1 slower"),
        (1.2, ["--margin", "0.3"], 0, "1 same"),
        (1.2, ["--margin", "0.3", "--raw"], 0, "1 same"),
    ],
)
def test_compare(slower, options, status, verdict):
    write_run("base", small_record())
    write_run("new", small_record(slower=slower))
    ran = invoke("compare", "base", "new", *options)
    assert ran.exit_code == status, ran.output
    assert verdict in ran.output


def test_compare_unclear():
    write_run("base", small_record(seconds=[1e-5, 2e-5, 3e-5]))
    write_run("new", small_record(seconds=[1e-5, 2.1e-5, 3e-5]))
    assert invoke("compare", "base", "new").exit_code == 0
    assert invoke("compare", "base", "new", "--fail-on", "unclear").exit_code == 1


def test_compare_fails_when_a_result_went_wrong():
    write_run("base", small_record(), small_record(16))
    write_run(
        "new",
        small_record(),
        small_record(16, status="wrong", why="y is off", seconds=[], method=None),
    )
    ran = invoke("compare", "base", "new")
    assert ran.exit_code == 1
    assert "lost: rownorm rms_norm forward fp32 2x16: wrong: y is off" in ran.output


def test_compare_refuses_another_device_without_anyway():
    write_run("base", small_record())
    write_run("new", small_record(device="Another CPU"))
    ran = invoke("compare", "base", "new")
    assert ran.exit_code == 2
    assert "A CPU against Another CPU" in ran.output
    assert invoke("compare", "base", "new", "--anyway").exit_code == 0


def test_compare_of_nothing_in_common():
    write_run("base", small_record())
    write_run("new", small_record(16))
    ran = invoke("compare", "base", "new")
    assert ran.exit_code == 2
    assert "in common" in ran.output


def test_the_compared_quantity_is_named():
    one = Comparison(
        Case(operation="rms_norm", rows=1, cols=1), "rownorm", Ratio(1.0, 1.0, 1.0), "same", True
    )
    other = one._replace(by_ceiling=False)
    assert quantity([one]) == "times relative to the ceiling of their round"
    assert quantity([other]) == "times"
    assert quantity([one, other]).endswith("of their round, 1 by times")
