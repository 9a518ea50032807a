"""``rownorm compare``: verdicts and exit statuses."""

import subprocess
import sys

import pytest

from lab_support.lab_commands import invoke, small_record, write_run
from rownorm_lab.commands.compare.table import quantity
from rownorm_lab.data.case import Case
from rownorm_lab.data.compare import Comparison
from rownorm_lab.data.records import Environment
from rownorm_lab.data.statistics import Ratio

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
    margin = options[options.index("--margin") + 1] if "--margin" in options else "0.03"
    assert f"(by times, margin {float(margin):.0%})" in ran.output


def test_compare_unclear():
    write_run("base", small_record(seconds=[1e-5, 2e-5, 3e-5]))
    write_run("new", small_record(seconds=[1e-5, 2.1e-5, 3e-5]))
    ran = invoke("compare", "base", "new")
    assert ran.exit_code == 3
    assert "Nothing could be decided" in ran.output
    assert invoke("compare", "base", "new", "--fail-on", "unclear").exit_code == 1
    assert invoke("compare", "base", "new", "--fail-on", "never").exit_code == 0


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
    assert "bench --provider old.py:rms_norm,new.py:rms_norm" in ran.output


def test_too_few_rounds_are_unclear_and_no_failure():
    write_run("base", small_record(seconds=[1e-5]))
    write_run("new", small_record(seconds=[1.539e-5]))
    ran = invoke("compare", "base", "new")
    assert ran.exit_code == 3, ran.output
    assert "too few rounds" in ran.output
    assert "1 case needs at least 4 rounds in both sets" in ran.output
    assert "0 slower, 1 unclear" in ran.output


def test_suspect_measurements_fail_only_on_request():
    write_run("base", small_record())
    write_run("new", small_record(slower=1.2, suspect=["spread of 40%"]))
    ran = invoke("compare", "base", "new")
    assert ran.exit_code == 0, ran.output
    assert "slower ?" in ran.output
    assert "? suspect" in ran.output
    assert invoke("compare", "base", "new", "--fail-on-suspect").exit_code == 1


def test_different_versions_and_settings_are_shown():
    older = Environment(device="A CPU", kind="cpu", torch="2.0")
    write_run("base", small_record(environment=older))
    settings = {"ROWNORM_DIRECT_LAUNCH": "0"}
    other = Environment(device="A CPU", kind="cpu", torch="3.0", settings=settings)
    write_run("new", small_record(environment=other))
    ran = invoke("compare", "base", "new")
    assert ran.exit_code == 0, ran.output
    assert "Versions and settings of base against new:" in ran.output
    assert "\n  torch: 2.0 against 3.0\n" in ran.output
    assert "\n  ROWNORM_DIRECT_LAUNCH: none against 0\n" in ran.output


def test_a_missing_control_is_said():
    write_run("base", small_record())
    assert "No control" in invoke("compare", "base", "base").output
    write_run("both", small_record(), small_record(provider="ceiling"))
    ran = invoke("compare", "both", "both")
    assert "No control" not in ran.output
    assert "noise: how far ceiling changed" in ran.output


def test_providers_are_those_of_the_records():
    write_run("base", small_record(), small_record(provider="mine"))
    assert invoke("compare", "base", "base", "--provider", "mine").exit_code == 0
    ran = invoke("compare", "base", "base", "--provider", "mein")
    assert ran.exit_code == 2
    assert "unknown provider 'mein'; did you mean mine? Known: rownorm, mine" in ran.output


def test_lines_fit_a_terminal():
    names = ("rownorm", "torch.compile", "ceiling")
    case = Case(
        operation="add_rms_norm", rows=65536, cols=8192, residual_dtype="fp32", name="a " * 99
    )
    write_run("base", *(small_record(provider=name, case=case) for name in names))
    ran = invoke("compare", "base", "base", "--provider", "rownorm,torch.compile")
    assert ran.exit_code == 0, ran.output
    assert max(map(len, ran.output.splitlines())) <= 100
    assert "add_rms_norm (fp32 residual) forward bf16, torch.compile\n" in ran.output


def test_compare_imports_no_torch():
    write_run("base", small_record(), small_record(provider="ceiling"))
    program = "import rownorm_lab.main; rownorm_lab.main.main()"
    watch = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))"
    ran = subprocess.run(
        [sys.executable, "-c", f"{watch}; {program}", "compare", "base", "base"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "1 same" in ran.stdout
    assert not {"torch", "triton", "numpy", "rich"} & set(ran.stderr.split())


def test_the_compared_quantity_is_named():
    one = Comparison(
        Case(operation="rms_norm", rows=1, cols=1),
        "rownorm",
        Ratio(1.0, 1.0, 1.0),
        None,
        "same",
        True,
    )
    other = one._replace(by_ceiling=False)
    assert quantity([one]) == "times relative to the ceiling of their round"
    assert quantity([other]) == "times"
    assert quantity([one, other]).endswith("of their round, 1 by times")
