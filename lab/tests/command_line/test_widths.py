"""Lines of a terminal of 80 and of 100 characters: nothing is wider than it."""

import msgspec
import pytest

from lab_support import bars_records
from lab_support.analyses import launches, made_up
from lab_support.lab_commands import invoke
from rownorm_lab.commands.analyze import command as analyze
from rownorm_lab.commands.tune import listing, static
from rownorm_lab.compiled import compile
from rownorm_lab.data import own_analyses

pytestmark = pytest.mark.usefixtures("command_line")
STUDIES = ("small", "calls", "host-forms", "dit-steps")


@pytest.fixture(params=[80, 100])
def fits(request, monkeypatch):
    """A function that runs a command in such a terminal and fails if a line is too wide; returns what it printed."""
    monkeypatch.setenv("COLUMNS", str(request.param))

    def check(*arguments):
        ran = invoke(*arguments)
        assert ran.exit_code == 0, ran.output
        assert [line for line in ran.stdout.splitlines() if len(line) > request.param] == []
        return ran.stdout

    return check


def test_info(fits, add_provider, monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "long," * 40)
    add_provider("mine", None, needs=("a", "b"), package="long-name " * 20)
    assert "long-name" in fits("info")


def test_analyze(fits, monkeypatch):
    several = [made_up(), *(made_up(block, block // 64) for block in (64, 128, 256, 512))]
    first = msgspec.structs.replace(several[0], reason="one reason and " * 20)
    monkeypatch.setattr(analyze, "analyses_of", lambda *_: [[first, *several[1:]]])
    printed = fits("analyze", "rms_norm", "--cols", 64)
    assert " ".join(printed.split()).count("one reason") == 20
    assert printed.count("loop 512") > 1  # the head of a column, and a finding


@pytest.mark.parametrize("width", [80, 100])
def test_analyses_of_a_users_kernel(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = own_analyses.text_of(launches(6))
    assert max(map(len, lines)) <= width
    assert "BLOCK 384" in "\n".join(lines)


def test_tune_list(fits, monkeypatch):
    found = static.CompiledCandidate(128, 64, 2, 0.25, "spills", "64 bytes of a thread")
    monkeypatch.setattr(compile, "INTERPRETING", False)
    monkeypatch.setattr(listing, "compiled", lambda *_: found)
    arguments = ("--op", "rms_norm", "--width", 16384, "--dtype", "bf16", "--pass", "forward")
    printed = fits("tune", "--list", *arguments, "--target", "sm_90")
    assert "left out: 64 bytes of a thread" in " ".join(printed.split())


@pytest.mark.parametrize("name", STUDIES)
def test_studies_with_bars(fits, tmp_path, monkeypatch, name):
    part = bars_records.only(monkeypatch, name)
    folder = bars_records.write_run(tmp_path / "run", bars_records.good_records(part))
    printed = fits("study", name, "--read", folder)
    assert "hold in every run" in printed
    # A bar that is cut in two lines is whole.
    assert all(bar.limit in printed for bar in part.bars)
