"""The command line: what it refuses, what it writes, how it ends, and how it goes on."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import torch
from click.testing import CliRunner

from rownorm.lab import choices, commands, runs
from rownorm.lab.cases import Case
from rownorm.lab.cli import cli, main
from rownorm.lab.records import Environment, Method, Record, Writer, read

COMMANDS = ("info", "check", "bench", "report", "compare")
TINY = ("--op", "rms_norm", "--dtype", "fp32", "--shape", "2x8,16", "--rounds", "3")
WHO = ("--provider", "rownorm,torch")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    """Commands write where they are started; whatever a test leaves is in its own folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def cpu_path(monkeypatch, without_interpreter):
    """Without the interpreter, and without thousands of calls in a round."""
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr("rownorm.lab.timing.CPU_ROUND", 2e-4)


def invoke(*arguments):
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def refused(*arguments):
    """The message of a command that must exit with 2 and write nothing."""
    ran = invoke(*arguments)
    assert ran.exit_code == 2, ran.output
    assert os.listdir() == []
    return ran.output


# ---- help ----


def test_help_lists_the_commands():
    ran = invoke("--help")
    assert ran.exit_code == 0
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", ran.output, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_has_examples_that_parse(name):
    ran = invoke(name, "--help")
    assert ran.exit_code == 0
    found = re.findall(r"^    rownorm (.+)$", ran.output.split("Examples:")[1], re.MULTILINE)
    assert found
    for example in found:
        command, *arguments = example.split()
        assert command == name
        with cli.commands[name].make_context(name, list(arguments), resilient_parsing=True):
            pass


def test_version():
    import rownorm

    assert invoke("--version").output.strip() == f"rownorm {rownorm.__version__}"


# ---- bad input: the nearest name, status 2, nothing written ----


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["benhc"], "did you mean bench?"),
        (["bench", "--suite", "sede"], "did you mean seed?"),
        (["compare", os.curdir, os.curdir, "--margin", "nan"], "nan is no number"),
        (["bench", "--suite", "seed,flashinfr"], "did you mean flashinfer?"),
        (["bench", "--op", "rmsnorm", "--shape", "2x8"], "did you mean rms_norm?"),
        (["bench", "--dtype", "bfloat16", "--shape", "2x8"], "did you mean bf16?"),
        (["bench", "--pass", "forwards", "--shape", "2x8"], "did you mean forward?"),
        (["bench", "--provider", "rownrom", "--shape", "2x8"], "did you mean rownorm?"),
        (["bench", "--shape", "2by8"], "write for example 4096x8192"),
        (["bench", "--shape", "2x8", "--activation", "sillu"], "did you mean silu?"),
        (["bench", "--shape", "2x8", "--residual-dtype", "fp32"], "has no residual"),
        (["bench", "--shape", "2x8", "--eps", "-1"], "eps must be positive"),
        (["bench", "--shape", "2x8", "--rounds", "0"], "x>=1"),
        (["bench"], "say what to measure"),
        (["bench", "--suite", "quick", "--pre-bias"], "--pre-bias needs --shape"),
        (["bench", "--suite", "seed", "--dtype", "bf16"], "layer_norm forward fp32"),
        (["bench", "--resume", "nowhere"], "does not exist"),
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
    from rownorm.lab.data import DATA_SETS

    assert f"{', '.join(DATA_SETS)}." in " ".join(invoke("check", "--help").output.split())


def test_a_strange_name_gets_the_known_ones_and_no_guess():
    message = refused("bench", "--suite", "zzzz")
    assert "did you mean" not in message
    assert "seed" in message


# ---- info ----


def test_info():
    ran = invoke("info")
    assert ran.exit_code == 0, ran.output
    for expected in (torch.__version__, "rownorm", "liger", "ceiling", "Devices"):
        assert expected in ran.output
    if not torch.cuda.is_available():
        assert "There is no GPU here" in ran.output


def test_info_says_how_to_get_what_is_missing():
    ran = invoke("info")
    try:
        import liger_kernel  # noqa: F401
    except ImportError:
        assert "pip install liger-kernel" in ran.output


# ---- check ----

SMALL = ("--op", "rms_norm", "--dtype", "fp32", "--data", "normal", "--pass", "forward")


def test_check_passes():
    ran = invoke("check", *SMALL, *WHO)
    assert ran.exit_code == 0, ran.output
    assert re.search(r"^rownorm rms_norm forward\n  fp32 +normal ", ran.output, re.MULTILINE)
    assert re.search(r"^rownorm: (\d+) of \1 within budget", ran.output, re.MULTILINE)


def test_quick_check_is_brief():
    """One line of figures, the worst, for each provider, operation and pass."""
    one = ("--op", "rms_norm", "--dtype", "fp32", "--pass", "forward", "--provider", "torch")
    ran = invoke("check", "--quick", *one)
    assert ran.exit_code == 0, ran.output
    assert len(re.findall(r"^  fp32 ", ran.output, re.MULTILINE)) == 1


def test_check_fails_when_rownorm_is_wrong(monkeypatch):
    from rownorm.lab import providers

    ours = providers.all_providers()["rownorm"]

    def spoiled(case, t):
        call = ours.make(case, t)
        return lambda: call() * 1.001

    monkeypatch.setitem(providers._registry, "rownorm", ours._replace(make=spoiled))
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # so that no other process is started for it
    ran = invoke("check", *SMALL, *WHO)
    assert ran.exit_code == 1
    assert "TOO LARGE" in ran.output


# ---- bench ----


def test_list_prints_the_cases_and_writes_nothing(tmp_path):
    ran = invoke("bench", "--suite", "seed", "--list")
    assert ran.exit_code == 0
    assert len(ran.output.splitlines()) == 8
    assert ran.output.startswith("layer_norm forward fp32 4096x256 ")
    assert os.listdir() == []


def test_options_choose_among_the_cases_of_a_suite():
    ran = invoke("bench", "--suite", "speed", "--op", "rms_norm", "--pass", "backward", "--list")
    assert len(ran.output.splitlines()) == 12
    assert all(line.startswith("rms_norm backward") for line in ran.output.splitlines())


def test_suites_and_shapes_together_and_each_case_once():
    both = ("--op", "rms_norm,layer_norm", "--pass", "forward,both")
    ran = invoke("bench", *both, "--shape", "2x8", "--shape", "1..2x8", "--list")
    assert len(ran.output.splitlines()) == 8


def test_options_of_a_shape():
    options = ("--pre-bias", "--activation", "silu", "--no-bias", "--residual-dtype", "fp32")
    ran = invoke("bench", "--op", "add_layer_norm", "--shape", "2x8", *options, "--list")
    assert "add_layer_norm (fp32 residual, no bias, pre_bias, silu) forward bf16 2x8" in ran.output


def test_bench_writes_records_and_a_table():
    ran = invoke("bench", *TINY, "--provider", "rownorm,torch,ceiling,liger", "--out", "made")
    assert ran.exit_code == 0, ran.output
    reading = read("made")
    assert not reading.damaged
    assert len(reading.records) == 8
    ok = [one for one in reading.records if one.status == "ok"]
    assert {one.provider for one in ok} >= {"rownorm", "torch", "ceiling"}
    assert all(len(one.seconds) == 3 for one in ok)
    assert len({one.run for one in reading.records}) == 1
    for expected in ("GB/s", "of ceiling", "over the fastest peer", "made/records.jsonl"):
        assert expected in ran.output
    if not torch.cuda.is_available():
        assert ran.output.count("these are CPU timings") == 1
        assert "liger missing, 2 cases" in ran.output


def test_bench_makes_a_new_folder_each_time():
    for _ in range(2):
        assert invoke("bench", *TINY, *WHO).exit_code == 0
    assert len(os.listdir("results")) == 2


def test_bench_does_not_touch_a_folder_that_is_there(tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "mine").write_text("mine")
    ran = invoke("bench", *TINY, *WHO, "--out", "made")
    assert ran.exit_code == 2
    assert "exists and is not empty; choose another, or go on with it: --resume made" in ran.output
    assert os.listdir("made") == ["mine"]


def test_resume_measures_what_is_left_and_nothing_twice():
    assert invoke("bench", *TINY, *WHO, "--out", "made").exit_code == 0
    lines = Path("made/records.jsonl").read_text().splitlines(keepends=True)
    cut = "".join(lines[:2]) + lines[2][:50]  # killed while the third was written
    Path("made/records.jsonl").write_text(cut)
    ran = invoke("bench", "--resume", "made")
    assert ran.exit_code == 0, ran.output
    now = Path("made/records.jsonl").read_text().splitlines(keepends=True)
    assert now[:2] == lines[:2]
    reading = read("made")
    assert [number for number, _ in reading.damaged] == [3]
    keys = [one.key for one in reading.records]
    assert len(set(keys)) == len(keys) == 4

    before = Path("made/records.jsonl").read_text()
    assert invoke("bench", "--resume", "made").exit_code == 0
    assert Path("made/records.jsonl").read_text() == before


def test_resume_takes_no_other_options():
    assert invoke("bench", *TINY, *WHO, "--out", "made").exit_code == 0
    ran = invoke("bench", "--resume", "made", "--suite", "seed", "--rounds", "3")
    assert ran.exit_code == 2
    assert "--suite, --rounds cannot be changed" in ran.output


@pytest.mark.parametrize("plan", [None, "{", '{"cases": 3}'])
def test_resume_of_something_else(plan, tmp_path):
    (tmp_path / "other").mkdir()
    if plan is not None:
        (tmp_path / "other" / runs.PLAN).write_text(plan)
    ran = invoke("bench", "--resume", "other")
    assert ran.exit_code == 2
    assert "plan.json" in ran.output


def test_resume_on_another_device(tmp_path):
    plan = runs.Plan(cases=[made().case], providers=["torch"], rounds=3)
    folder = written("other", made(device="NVIDIA H900"))
    runs.write_plan(folder, plan)
    ran = invoke("bench", "--resume", "other")
    assert ran.exit_code == 2
    assert "was measured differently: device: NVIDIA H900, now " in ran.output


def test_resume_with_other_settings(monkeypatch):
    assert invoke("bench", *TINY, *WHO, "--out", "made").exit_code == 0
    here = commands.environment()
    changed = msgspec.structs.replace(here, settings={**here.settings, "threads": "77"})
    monkeypatch.setattr(commands, "environment", lambda: changed)
    ran = invoke("bench", "--resume", "made")
    assert ran.exit_code == 2
    assert "threads: " in ran.output
    assert "now 77. Start a new folder" in ran.output


def test_resume_with_a_provider_that_is_not_known():
    folder = Path("made")
    folder.mkdir()
    runs.write_plan(folder, runs.Plan(cases=[made().case], providers=["torhc"], rounds=3))
    ran = invoke("bench", "--resume", "made")
    assert ran.exit_code == 2
    assert "made/plan.json: unknown provider 'torhc'; did you mean torch?" in ran.output


@pytest.mark.parametrize("status", ["failed", "missing"])
def test_resume_tries_again_what_may_work_now(status):
    assert invoke("bench", *TINY, "--provider", "rownorm,torch", "--out", "made").exit_code == 0
    first, *others = read("made").records
    os.remove("made/records.jsonl")
    with Writer(Path("made/records.jsonl")) as writer:
        for one in (
            msgspec.structs.replace(first, status=status, why="then", seconds=[]),
            *others,
        ):
            writer.write(one)
    ran = invoke("bench", "--resume", "made")
    assert ran.exit_code == 0, ran.output
    assert "[1/1" in ran.output
    again = read("made").records
    assert len(again) == len(others) + 2
    assert (again[-1].key, again[-1].status) == (first.key, "ok")
    assert "Nothing is left to measure" in invoke("bench", "--resume", "made").output


def test_resume_leaves_out_who_is_still_missing(monkeypatch):
    monkeypatch.setattr("rownorm.lab.bench.missing", lambda *_: "needs more")
    monkeypatch.setattr("rownorm.lab.commands.missing", lambda *_: "needs more")
    ran = invoke("bench", *TINY, *WHO, "--out", "made")
    assert ran.exit_code == 1
    assert "nothing could be measured" in ran.output
    before = Path("made/records.jsonl").read_text()
    ran = invoke("bench", "--resume", "made")
    assert ran.exit_code == 1
    assert Path("made/records.jsonl").read_text() == before


def test_bench_fails_where_rownorm_does(monkeypatch):
    def broken(*_):
        raise RuntimeError("oh dear")

    ours = commands.all_providers()["rownorm"]
    monkeypatch.setattr(type(ours), "prepare", broken)
    ran = invoke("bench", *TINY, *WHO, "--out", "made")
    assert ran.exit_code == 1
    assert "oh dear" in ran.output


def test_ctrl_c_keeps_what_was_measured(monkeypatch):
    bench = commands.bench

    def interrupted(*arguments, **options):
        records = bench(*arguments, **options)
        yield next(records)
        yield next(records)
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "bench", interrupted)
    ran = invoke("bench", *TINY, *WHO, "--out", "made")
    assert ran.exit_code == 130
    assert "rownorm bench --resume made" in ran.output
    assert len(read("made").records) == 2


def test_a_full_disk_keeps_what_was_measured(monkeypatch):
    write, count = Writer.write, []

    def full(self, record):
        count.append(1)
        if len(count) > 2:
            raise OSError(28, "No space left on device")
        write(self, record)

    monkeypatch.setattr(Writer, "write", full)
    ran = invoke("bench", *TINY, *WHO, "--out", "made")
    assert ran.exit_code == 1
    assert "No space left on device" in ran.output
    assert "--resume made" in ran.output
    assert len(read("made").records) == 2


def test_cases_that_differ_in_eps_alone_are_one():
    """Their times are the same; in results they would be in one place."""
    both = choices.cases(["llama-3-8b", "qwen3"], [], ["rms_norm"], ["forward"], [], {})
    places = [(case.kind, case.rows, case.cols) for case in both]
    assert len(set(places)) == len(places)
    names = " ".join(case.name for case in both)
    assert "Llama-3-8B" in names
    assert "Qwen3-8B" in names
    assert any("Llama-3-8B" in case.name and "Qwen3-8B" in case.name for case in both)


# ---- report and compare, from records that were made up ----

METHOD = Method(timer="cpu_clock", rotation=2, calls=4, rounds=5, cold=False)


def made(cols=8, device="A CPU", provider="rownorm", slower=1.0, **fields):
    case = Case(operation="rms_norm", rows=2, cols=cols, dtype="fp32")
    seconds = [slower * 1e-5 * (1 + i / 1000) for i in range(5)]
    given = {"method": METHOD, "seconds": seconds, "run": "one"} | fields
    environment = Environment(device=device, kind="cpu")
    return Record(case=case, provider=provider, environment=environment, **given)


def written(folder, *records):
    path = Path(folder)
    path.mkdir()
    with Writer(path / "records.jsonl") as writer:
        for one in records:
            writer.write(one)
    return path


def test_report():
    written("made", made(), made(16), made(provider="torch"))
    ran = invoke("report", "made", "--no-plots")
    assert ran.exit_code == 0, ran.output
    assert "made/report/report.html" in ran.output
    assert "<html" in Path("made/report/report.html").read_text()
    assert os.path.exists("made/report/analysis.md")
    assert sorted(os.listdir("made")) == ["records.jsonl", "report"]


def test_report_replaces_only_when_told():
    written("made", made())
    os.makedirs("out/plots")
    Path("out/report.html").write_text("old")
    Path("out/plots/roofline.png").write_text("old")
    Path("out/plots/old-speedup-rms_norm.png").write_text("old")
    Path("out/notes").write_text("mine")
    ran = invoke("report", "made", "--out", "out", "--no-plots")
    assert ran.exit_code == 2
    assert "--force" in ran.output
    assert Path("out/report.html").read_text() == "old"
    ran = invoke("report", "made", "--out", "out", "--no-plots", "--force")
    assert ran.exit_code == 0, ran.output
    assert "<html" in Path("out/report.html").read_text()
    assert Path("out/notes").read_text() == "mine"
    assert not os.path.exists("out/plots")
    assert sorted(os.listdir()) == ["made", "out"]


def test_report_replaces_nothing_but_a_report():
    written("made", made())
    os.makedirs("out/plots")
    Path("out/plots/mine.png").write_text("mine")
    ran = invoke("report", "made", "--out", "out", "--no-plots", "--force")
    assert ran.exit_code == 2
    assert "holds no report" in ran.output
    Path("out/report.html").write_text("old")
    assert invoke("report", "made", "--out", "out", "--no-plots", "--force").exit_code == 0
    assert Path("out/plots/mine.png").read_text() == "mine"


def test_report_uses_the_good_lines_of_a_damaged_file():
    path = written("made", made())
    with open(path / "records.jsonl", "a") as file:
        file.write("oh dear\n")
    ran = invoke("report", "made", "--no-plots")
    assert ran.exit_code == 0, ran.output
    assert "made: line 2 cannot be used: not JSON" in ran.output


def test_report_of_nothing():
    os.mkdir("made")
    Path("made/records.jsonl").touch()
    ran = invoke("report", "made")
    assert ran.exit_code == 2
    assert "no record can be read from made" in ran.output
    assert os.listdir("made") == ["records.jsonl"]
    written("other", made())
    for pair in (("made", "other"), ("other", "made")):
        assert "no record can be read from made" in invoke("compare", *pair).output


def test_report_of_several_needs_a_place():
    written("a", made())
    written("b", made(16))
    assert "--out" in invoke("report", "a", "b").output
    assert invoke("report", "a", "b", "--out", "both", "--no-plots").exit_code == 0


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
    written("base", made())
    written("new", made(slower=slower))
    ran = invoke("compare", "base", "new", *options)
    assert ran.exit_code == status, ran.output
    assert verdict in ran.output


def test_compare_unclear():
    written("base", made(seconds=[1e-5, 2e-5, 3e-5]))
    written("new", made(seconds=[1e-5, 2.1e-5, 3e-5]))
    assert invoke("compare", "base", "new").exit_code == 0
    assert invoke("compare", "base", "new", "--fail-on", "unclear").exit_code == 1


def test_compare_fails_when_a_result_went_wrong():
    written("base", made(), made(16))
    written("new", made(), made(16, status="wrong", why="y is off", seconds=[], method=None))
    ran = invoke("compare", "base", "new")
    assert ran.exit_code == 1
    assert "lost: rownorm rms_norm forward fp32 2x16: wrong: y is off" in ran.output


def test_compare_refuses_another_device_unless_told():
    written("base", made())
    written("new", made(device="Another CPU"))
    ran = invoke("compare", "base", "new")
    assert ran.exit_code == 2
    assert "A CPU against Another CPU" in ran.output
    assert invoke("compare", "base", "new", "--anyway").exit_code == 0


def test_compare_of_nothing_in_common():
    written("base", made())
    written("new", made(16))
    ran = invoke("compare", "base", "new")
    assert ran.exit_code == 2
    assert "in common" in ran.output


# ---- as a process ----

LONG = ("--op", "rms_norm", "--dtype", "fp32", "--shape", "64x512..4096:64", *WHO, "--out", "made")


def start(*arguments):
    """``rownorm`` as a user starts it."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.Popen(
        [sys.executable, "-m", "rownorm_command", *arguments],
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Whoever runs the tests in the background has Ctrl-C ignored, which children inherit.
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


def test_signals_end_a_run_and_resume_goes_on():
    """SIGINT, then SIGKILL after --resume; each leaves a file that can be read and gone on with."""
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
    assert len(set(keys)) == len(keys), "something was measured twice"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ("", 2),
        ("--help", 0),
        ("--version", 0),
        ("bench --help", 0),
        ("bench --suite seed --list", 0),
        ("bench --suite sede", 2),
    ],
)
def test_words_do_not_wait_for_torch(arguments, status):
    """The quickest of three, since a machine may be busy."""
    took = []
    for _ in range(3):
        begun = time.perf_counter()
        ran = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "rownorm_command", *arguments.split()],
            capture_output=True,
            text=True,
            check=False,
        )
        took.append(time.perf_counter() - begun)
        assert ran.returncode == status, ran.stderr
        imported = set(re.findall(r"^import time:.*\| +([\w.]+)$", ran.stderr, re.MULTILINE))
        assert "rownorm.lab.cli" in imported
        assert not imported & {"torch", "triton", "numpy", "altair", "rich"}
        if took[-1] < 0.5:
            return
    pytest.fail(f"took {min(took):.2f} s")


def test_a_place_that_cannot_be_written_to(monkeypatch, capsys):
    Path("file").touch()
    monkeypatch.setattr(sys, "argv", ["rownorm", "bench", *TINY, *WHO, "--out", "file/made"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert capsys.readouterr().err == "Error: file/made: Not a directory\n"


def test_what_the_lab_needs_and_is_not_there():
    program = (
        "import sys; sys.modules['click'] = None; import rownorm_command; rownorm_command.main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr == "rownorm needs click for this; pip install 'rownorm[lab]' brings it\n"


def test_measuring_needs_no_package_of_others():
    """A machine that measures may have click, msgspec and rich only; what draws and the peers are not imported."""
    program = """
import sys
for name in ("altair", "vl_convert", "pynvml", "amdsmi", "liger_kernel", "quack", "fla", "flashinfer", "triton"):
    sys.modules[name] = None
from rownorm.lab.cli import cli, main
cli.main(["info"], standalone_mode=False)
import rownorm.lab.commands
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "Providers" in ran.stdout
