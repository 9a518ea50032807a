"""``rownorm analyze``: what it refuses, what it saves, and what the report shows of it."""

import msgspec
import pytest

from lab_support.analyses import made_up
from lab_support.lab_commands import invoke, refused, without_torch
from rownorm_lab.data.analyses import read, write
from rownorm_lab.data.analysis_tables import text_of

pytestmark = pytest.mark.usefixtures("command_line")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("rms_nrm --cols 8", "did you mean rms_norm?"),
        ("rms_norm", "Missing option '--cols'"),
        ("rms_norm --cols 0", "0 is not in the range"),
        ("rms_norm --cols 8 --target sm_75", "unknown target 'sm_75'"),
        ("rms_norm --cols 8 --blocks 100", "a block size is a power of two"),
        ("rms_norm --cols 8 --blocks 64,x", "got 'x'"),
        ("rms_norm --cols 8 --blocks 64 --pass backward", "plain looped kernel"),
        ("rms_norm --cols 8 --residual-dtype fp32", "has no residual"),
        ("rms_norm --cols 8 --ceiling 0", "--ceiling"),
        ("rms_norm --cols 8 --ceiling nan", "nan is not a number to calculate with"),
        ("rms_norm --cols 1073741825", "1<=x<=1073741824"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    assert message in refused("analyze", *arguments.split())


def test_without_a_gpu_it_says_what_to_do(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    told = refused("analyze", "rms_norm", "--cols", 8, "--measure")
    assert "torch sees no GPU" in told
    assert "Leave --measure out" in told


def test_help_needs_no_torch():
    ran = without_torch("analyze", "--help")
    assert ran.returncode == 0, ran.stderr
    assert "--blocks 64,128" in ran.stdout


def test_every_line_of_the_table_has_a_source():
    lines = text_of([made_up(), made_up(64, 2), made_up(256, 8)])
    table = lines[lines.index(next(line for line in lines if line.endswith("source"))) + 1 :]
    figures = [line for line in table if line.endswith(("compiler", "derived"))]
    assert len(figures) >= 18
    assert any(
        line.split()[:3] == ["over", "compulsory", "bytes"] and "2.00x" in line for line in figures
    )
    assert "8 bytes per load of a thread instead of 2" in "\n".join(table)
    assert "spills registers" in "\n".join(table)
    assert not any("measured time" in line for line in lines)


def test_analyses_are_saved_and_shown_in_the_report(tmp_path):
    write(tmp_path / "run", [made_up(), made_up(64, 2)])
    assert read(tmp_path / "run") == [made_up(), made_up(64, 2)]
    assert read(tmp_path) == []
    ran = invoke("report", "run")
    assert ran.exit_code == 0, ran.output
    page = (tmp_path / "run" / "report" / "report.html").read_text()
    assert "Compiled kernels" in page
    assert '<th>registers per thread</th><td class="number">40</td>' in page
    assert "There are no records" not in page


def test_a_damaged_analysis_is_refused(tmp_path):
    folder = tmp_path / "run"
    file = write(folder, [made_up()])
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    ran = invoke("report", "run")
    assert ran.exit_code == 2
    assert "cannot be read as an analysis" in ran.output
    file.write_bytes(whole.replace(b'"schema": 1', b'"schema": 99'))
    assert "another version" in invoke("report", "run").output


def test_nothing_is_overwritten(tmp_path):
    write(tmp_path / "run", [made_up()])
    ran = invoke("analyze", "rms_norm", "--cols", 8, "--out", "run")
    assert ran.exit_code == 2
    assert "analysis.json exists" in ran.output
    assert msgspec.json.decode((tmp_path / "run" / "analysis.json").read_bytes())
