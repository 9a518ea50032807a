"""``rownorm info``."""

import json
import re

import pytest
import torch
import triton

from lab_support.lab_commands import invoke
from rownorm.launch import native
from rownorm.ops import cpu_native
from rownorm_lab.commands.info.command import call_lines, plan_lines

pytestmark = pytest.mark.usefixtures("command_line")


@pytest.fixture
def unloaded_cpu(monkeypatch):
    """The extension for CPUs, as in a new process."""
    load = cpu_native.functools.cache(cpu_native._load.__wrapped__)
    monkeypatch.setattr(cpu_native, "_load", load)


def test_info():
    ran = invoke("info")
    assert ran.exit_code == 0, ran.output
    for expected in (torch.__version__, "rownorm", "liger", "ceiling", "Devices"):
        assert expected in ran.output
    if not torch.cuda.is_available():
        assert "There is no GPU here" in ran.output


@pytest.mark.parametrize(
    ("why_no_c", "why_no_cpp", "launches", "gradients"),
    [
        ("", "", "in C", "in C++"),
        ("", "it is being built", "in C", "in Python: it is being built"),
        ("there is no NVIDIA GPU", "", "in Python: there is no NVIDIA GPU", "in C++"),
    ],
)
def test_info_says_how_calls_are_made(why_no_c, why_no_cpp, launches, gradients, monkeypatch):
    monkeypatch.setattr(native, "reason", lambda: why_no_c)
    monkeypatch.setattr(native.node, "reason", lambda: why_no_cpp)
    lines = call_lines()
    assert {f"  launches   {launches}", f"  gradients  {gradients}"} <= set(lines)


@pytest.mark.usefixtures("unloaded_cpu")
def test_info_names_compiler_folder_and_what_a_failing_compiler_printed(monkeypatch, tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho my compiler, error 7\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    shared, private = tmp_path / "shared", tmp_path / "private"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(shared))
    monkeypatch.setenv("XDG_CACHE_HOME", str(private))
    lines = "\n".join(call_lines())
    (file,) = private.rglob("failed.txt")
    assert f"in PyTorch: RuntimeError: compiler failed: my compiler, error 7; see {file}" in lines
    assert f"compiler {compiler}: my compiler, error 7" in lines
    assert f"kept in    {private}/rownorm\n" in lines
    assert f"not used: {shared} can be written by its group or by others" in lines


def test_info_says_how_to_install_missing_providers():
    ran = invoke("info")
    try:
        import liger_kernel  # noqa: F401
    except ImportError:
        assert "pip install liger-kernel" in ran.output


def line_of(name, output):
    """The line with the state of a provider."""
    providers = output.split("\nProviders\n")[1]
    return next(line for line in providers.splitlines() if line.startswith(f"  {name} "))


def test_ready_means_that_a_small_call_ran(add_provider):
    def is_broken(case, t):
        raise RuntimeError("no cutlass_dsl")

    ran = invoke("info")
    assert line_of("rownorm", ran.output).endswith("ready")
    assert "ready" in line_of("torch", ran.output)
    assert "not tried" in line_of("torch.compile", ran.output)
    add_provider("rownorm", is_broken, kind="ours")
    ran = invoke("info")
    assert ran.exit_code == 0
    assert "does not work: a small call failed: RuntimeError: no cutlass_dsl" in ran.output


def test_all_are_tried_on_request(monkeypatch, add_provider):
    tried = []

    def fails(name):
        tried.append(name)
        return "cannot be imported: no libmissing.so" if name == "mine" else None

    monkeypatch.setattr("rownorm_lab.measure.trial.failure_in_a_process", fails)
    add_provider("mine", None, package="numpy")
    assert "installed" in line_of("mine", invoke("info").output)
    assert not tried
    ran = invoke("info", "--try")
    assert set(tried) >= {"mine", "torch.compile"}
    assert "does not work" in line_of("mine", ran.output)
    assert "ready" in line_of("torch.compile", ran.output)


def test_lines_fit_a_terminal(add_provider, monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "long," * 40)
    add_provider("mine", None, needs=("a", "b"), package="long-name " * 20)
    assert max(map(len, invoke("info").output.splitlines())) <= 100


def test_names_of_providers_leave_their_states_aligned():
    lines = re.findall(
        r"^  (\S+ +)(?:ready|missing:|installed)", invoke("info").output, re.MULTILINE
    )
    assert len(lines) > 10
    assert len(set(map(len, lines))) <= 2  # of providers, and of FlashInfer-Bench


def test_info_shows_where_plans_come_from(monkeypatch, tmp_path):
    shown = " ".join(invoke("info").output.split())
    assert "1 your own table (ROWNORM_TABLES names another folder): none, because" in shown
    assert "2 for sm_90, rownorm's table (tuned on NVIDIA H200 with Triton 3.6.0" in shown
    monkeypatch.setenv("ROWNORM_TABLES", str(tmp_path))
    shown = "".join(invoke("info").output.split())
    assert re.search(rf"{re.escape(str(tmp_path))}/(<arch>|sm_\d+)\.json", shown)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "sm_90.json: none"),
        ("{", "ignored: "),
        ('{"plans": []}', "must have the keys arch"),
    ],
)
def test_the_state_of_the_users_table_is_shown(monkeypatch, tmp_path, content, words):
    monkeypatch.setenv("ROWNORM_TABLES", str(tmp_path))
    if content is not None:
        (tmp_path / "sm_90.json").write_text(content)
    assert words in plan_lines("sm_90")[0]


def test_a_users_table_in_use_is_described(monkeypatch, tmp_path):
    head = dict.fromkeys(("device", "torch", "method"), "") | {"arch": "sm_90", "plans": []}
    head |= {"triton": "3.7.1", "date": "2026-01-31"}
    monkeypatch.setenv("ROWNORM_TABLES", str(tmp_path))
    (tmp_path / "sm_90.json").write_text(json.dumps(head))
    assert "0 entries, tuned with Triton 3.7.1, 2026-01-31" in plan_lines("sm_90")[0]
    assert "rownorm has no table for sm_80" in plan_lines("sm_80")[1]


def test_the_triton_here_and_that_of_the_table_are_shown():
    here = triton.__version__
    assert plan_lines("sm_90")[-1].startswith(
        f"  Triton {here} compiles the kernels; the table was measured with 3."
    )
    assert plan_lines("sm_80")[-1].endswith("nothing was measured (for sm_80)")
