"""The command line as a whole: help, unknown names, lazy imports, signals."""

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

import rownorm
from lab_support.lab_commands import TINY, TWO_PROVIDERS, invoke, refused
from rownorm_lab.data.case import DATA_SETS
from rownorm_lab.data.records import read
from rownorm_lab.main import COMMANDS, COURSE, cli, main

pytestmark = pytest.mark.usefixtures("command_line")


# ---- help ----


def test_help_lists_the_commands():
    ran = invoke("--help")
    assert ran.exit_code == 0
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", ran.output, re.MULTILINE)


@pytest.mark.parametrize(
    "name",
    [
        *("", *COMMANDS, "bars measure", "bars judge", "bars publish"),
        *(
            "study llama",
            "study openfold",
            "study dit",
            "study small",
            "study calls",
            "study dit-steps",
            "study cpu",
        ),
        *("fib export", "fib check", "fib run", "fib report", "fib apply"),
        *(
            "learn list",
            "learn start",
            "learn check",
            "learn hint",
            "learn solution",
            "learn submit",
        ),
    ],
)
def test_help_has_examples_that_parse(name):
    ran = invoke(*name.split(), "--help")
    assert ran.exit_code == 0
    found = re.findall(r"^ +(rownorm .+)$", ran.output.split("Examples:")[1], re.MULTILINE)
    assert found
    for example in found:
        assert example.startswith(f"rownorm {name}".rstrip())
        command, arguments = cli, example.split()[1:]
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(cli), arguments.pop(0))
        with command.make_context(name, arguments, resilient_parsing=True):
            pass


def test_version():
    assert invoke("--version").output.strip() == f"rownorm {rownorm.__version__}"


# ---- bad input: the nearest name, status 2, nothing written ----


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["benhc"], "did you mean bench?"),
        (["bench", "--suite", "coruse"], "did you mean course?"),
        (["compare", os.curdir, os.curdir, "--margin", "nan"], "nan is not a number"),
        (["bench", "--suite", "course,flashinfr"], "did you mean flashinfer?"),
        (["bench", "--op", "rmsnorm", "--shape", "2x8"], "did you mean rms_norm?"),
        (["bench", "--dtype", "bfloat16", "--shape", "2x8"], "did you mean bf16?"),
        (["bench", "--pass", "forwards", "--shape", "2x8"], "did you mean forward?"),
        (["bench", "--provider", "rownrom", "--shape", "2x8"], "did you mean rownorm?"),
        (["bench", "--shape", "2by8"], "write for example 4096x8192"),
        (["bench", "--shape", "2x8", "--activation", "sillu"], "did you mean silu?"),
        (["bench", "--shape", "2x8", "--residual-dtype", "fp32"], "has no residual"),
        (["bench", "--shape", "2x8", "--eps", "-1"], "eps must be positive"),
        (["bench", "--shape", "2x8", "--rounds", "0"], "x>=1"),
        (["bench"], "nothing to measure"),
        (["bench", "--suite", "quick", "--pre-bias"], "--pre-bias needs --shape"),
        (["bench", "--suite", "course", "--dtype", "bf16"], "layer_norm forward fp32"),
        (["bench", "--resume", "nowhere"], "does not exist"),
        (["bars", "measrue"], "did you mean measure?"),
        (["tune", "--width", "wide"], "a width is a number of columns"),
        (["tune", "--width", "0"], "a width is at least 1; got 0"),
        (["tune", "--option", "sillu"], "did you mean silu?"),
        (["check", "--op", "layernorm"], "did you mean layer_norm?"),
        (["check", "--provider", "toch"], "did you mean torch?"),
        (["check", "--data", "ofset"], "did you mean offset?"),
        (["report", "nowhere"], "does not exist"),
        (["compare", "nowhere", "nothing"], "does not exist"),
    ],
)
def test_bad_input(arguments, expected):
    assert expected in refused(*arguments)


def test_names_in_capitals():
    assert len(invoke("bench", "--suite", "Llama-3-8B", "--list").output.splitlines()) == 10
    ran = invoke("bench", "--shape", "2x8", "--activation", "SiLU", "--dtype", "FP32", "--list")
    assert ran.output.startswith("rms_norm (silu) forward fp32 2x8")


def test_help_of_check_names_the_data_sets():
    assert f"{', '.join(DATA_SETS)}." in " ".join(invoke("check", "--help").output.split())


def test_an_unknown_name_without_a_near_one_gets_the_list_alone():
    message = refused("bench", "--suite", "zzzz")
    assert "did you mean" not in message
    assert "course" in message


# ---- as a process ----

LONG = (
    "--op",
    "rms_norm",
    "--dtype",
    "fp32",
    "--shape",
    "64x512..4096:64",
    *TWO_PROVIDERS,
    "--out",
    "made",
)


def start(*arguments):
    """``rownorm`` as a user starts it."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.Popen(
        [sys.executable, "-m", "rownorm_lab", *arguments],
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Background processes have Ctrl-C ignored, and their children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for_records(process, count):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if os.path.exists("made/records.jsonl"):
            with open("made/records.jsonl") as file:
                if len(file.readlines()) >= count:
                    return
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    pytest.fail("no records after a minute")


def test_a_run_resumes_after_signals():
    """SIGINT, then SIGKILL after --resume; each leaves a file that can be read and resumed."""
    process = start("bench", *LONG)
    wait_for_records(process, 2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "rownorm bench --resume made" in output
    first = read("made")
    assert len(first.records) >= 2
    assert not first.damaged

    process = start("bench", "--resume", "made")
    wait_for_records(process, len(first.records) + 2)
    process.kill()
    process.communicate(timeout=60)
    second = read("made")
    assert second.records[: len(first.records)] == first.records
    keys = [one.key for one in second.records]
    assert len(keys) >= len(first.records) + 2
    assert len(set(keys)) == len(keys), "a case was measured twice"


LIST_MODULES = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, sep="\\n", file=sys.stderr))
import rownorm_lab.main
rownorm_lab.main.main()
"""
HEAVY = {"torch", "triton", "numpy", "altair", "vl_convert", "rich"}


@pytest.mark.parametrize(
    ("arguments", "status", "loaded"),
    [
        ("", 2, []),
        ("--help", 0, []),
        ("--version", 0, []),
        *((f"{name} --help", 0, [name]) for name in COMMANDS),
        ("bench --suite course --list", 0, ["bench"]),
        ("bench --suite sede", 2, ["bench"]),
    ],
)
def test_help_and_lists_are_fast_and_import_only_their_command(arguments, status, loaded):
    """CPU time, because it does not depend on what else the machine runs."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run(
        [sys.executable, "-c", LIST_MODULES, *arguments.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ran.returncode == status, ran.stderr
    imported = set(ran.stderr.splitlines())
    assert "rownorm_lab.main" in imported
    assert not imported & HEAVY
    modules = {name: f"rownorm_lab.commands.{name}.command" for name in COMMANDS}
    modules["learn"] = COURSE
    assert imported & set(modules.values()) == {modules[name] for name in loaded}
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


def test_a_folder_that_cannot_be_created(monkeypatch, capsys):
    Path("file").touch()
    monkeypatch.setattr(
        sys, "argv", ["rownorm", "bench", *TINY, *TWO_PROVIDERS, "--out", "file/made"]
    )
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert capsys.readouterr().err == "loading torch\nError: file/made: Not a directory\n"


def test_measuring_imports_neither_altair_nor_peers():
    """Measuring needs click, msgspec and rich only."""
    program = """
import sys
for name in ("altair", "vl_convert", "pynvml", "amdsmi", "liger_kernel", "quack", "fla", "flashinfer", "triton"):
    sys.modules[name] = None
from rownorm_lab.main import cli
cli.main(["info"], standalone_mode=False)
import rownorm_lab.commands.bench.run, rownorm_lab.commands.check.table, rownorm_lab.measure.check
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "Providers" in ran.stdout


# ---- a word before torch, whose import takes seconds ----

FIRST_WORDS = {
    "analyze rms_norm --cols 64": "compiling for sm_90, gfx942",
    "bench --op rms_norm --shape 2x8": "loading torch",
    "check --op rms_norm": "loading torch",
    "source forward_resident": "loading torch and the compiler",
    "study llama --size tiny": "loading torch",
    "train llama": "loading torch",
    "tune --list --width 64": "loading torch and the compiler",
    "tune --study --width 64": "loading torch and the compiler",
}
SAYS_FIRST = """
import sys
sys.modules["torch"] = None
from click.testing import CliRunner
from rownorm_lab.main import cli
for line in sys.stdin:
    ran = CliRunner().invoke(cli, line.split())
    print(ran.stderr.partition("\\n")[0], getattr(ran.exception, "name", ran.output), sep="; ")
"""


def test_a_slow_command_says_something_before_torch_is_imported():
    ran = subprocess.run(
        [sys.executable, "-c", SAYS_FIRST],
        input="\n".join(FIRST_WORDS),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines() == [f"{words}; torch" for words in FIRST_WORDS.values()]
