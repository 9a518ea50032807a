"""``rownorm bench --provider FILE.py:function``, and what report and compare make of it; ``check`` of the example."""

import re
from pathlib import Path

import pytest
import torch

from lab_support.lab_commands import TINY, invoke
from rownorm_lab import providers
from rownorm_lab.commands.bench import run
from rownorm_lab.data.records import read

pytestmark = pytest.mark.usefixtures("command_line")

EXAMPLE = Path(__file__).parents[4] / "examples" / "own_kernel.py"
NORM = """
import torch.nn.functional as F
def rms_norm(x, weight, eps):
    return F.rms_norm(x, x.shape[-1:], weight, eps)
def wrong(x, weight, eps):
    return 1.01 * rms_norm(x, weight, eps)
"""


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    providers.all_providers()
    monkeypatch.setattr(providers, "_registry", dict(providers._registry))


@pytest.fixture
def file(tmp_path):
    found = tmp_path / "Mine.py"
    found.write_text(NORM)
    return found


def bench(place, out, *others):
    return invoke("bench", *TINY, "--provider", ",".join([place, *others]), "--out", out)


def test_it_takes_turns_with_the_others_and_is_named_everywhere(file):
    ran = invoke("bench", *TINY, "--provider", "Mine.py:rms_norm", "--out", "made")
    assert ran.exit_code == 0, ran.output
    records = {one.provider: one for one in read("made").records if one.case.cols == 8}
    assert {"rownorm", "torch", "ceiling", "mine.rms_norm"} <= set(records)
    mine = records["mine.rms_norm"]
    assert (mine.status, len(mine.seconds), mine.run) == ("ok", 3, records["torch"].run)
    assert mine.accuracy.max_ulp < 4
    assert (mine.source.file, mine.source.name, len(mine.source.digest)) == (str(file), "rms_norm", 64)  # fmt: skip
    assert records["torch"].source is None
    assert re.search(r"^mine.rms_norm +of .*^rownorm ", ran.output, re.MULTILINE | re.DOTALL)

    assert invoke("report", "made").exit_code == 0
    page = Path("made/report/report.html").read_text()
    assert "mine.rms_norm is fastest or level in " in page
    assert "rownorm was not measured here" not in Path("made/report/analysis.md").read_text()

    file.write_text(NORM + "\n# another version\n")
    assert bench("Mine.py:rms_norm", "again", "torch").exit_code == 0
    ran = invoke("compare", "made", "again", "--fail-on", "never")
    assert ran.exit_code == 0, ran.output
    assert re.search(r"mine.rms_norm: Mine.py:rms_norm, SHA-256 \w{12} against", ran.output)
    assert "rms_norm forward fp32, mine.rms_norm\n" in ran.output

    ran = invoke("bench", "--resume", "made")
    assert ran.exit_code == 2
    assert "has changed since" in ran.output
    file.write_text(NORM)
    ran = invoke("bench", "--resume", "made")
    assert ran.exit_code == 0, ran.output
    assert "Nothing is left to measure" in ran.output


def test_a_wrong_one_is_not_timed_and_fails_the_run(file):
    ran = bench("Mine.py:wrong", "made", "torch")
    assert ran.exit_code == 1
    assert "mine.wrong wrong, " in ran.output
    assert not any(one.seconds for one in read("made").records if one.provider == "mine.wrong")


def test_a_bad_place_is_a_usage_error_and_writes_nothing(file):
    for place, why in (
        ("Mine.py:no", "it has rms_norm, wrong"),
        ("No.py:rms_norm", "No such file"),
    ):
        ran = bench(place, "made")
        assert ran.exit_code == 2
        assert why in ran.output
        assert not Path("made").exists()


def test_check_of_a_function_in_pytorch(file):
    one = ("--dtype", "fp32", "--data", "normal", "--provider")
    ran = invoke("check", *one, "Mine.py:rms_norm")
    assert ran.exit_code == 0, ran.output
    assert "mine.rms_norm: 2 of 2 results are accurate" in ran.output  # forward and backward
    assert "layer_norm" not in ran.output
    ran = invoke("check", *one, "Mine.py:wrong", "--op", "rms_norm")
    assert ran.exit_code == 1
    assert "TOO LARGE" in ran.output
    assert "mine.wrong: 0 of 2 results are accurate" in ran.output


def test_check_of_a_triton_kernel_runs_in_the_interpreter():
    ran = invoke(
        "check", "--dtype", "bf16", "--pass", "forward", "--provider", f"{EXAMPLE}:rms_norm"
    )
    assert ran.exit_code == 0, ran.output
    assert re.search(
        r"own_kernel.rms_norm( \(interpreter\))?: 5 of 5 results are accurate", ran.output
    )


def test_a_triton_kernel_in_the_interpreter_is_tried_quickly(monkeypatch):
    monkeypatch.setenv(
        "TRITON_INTERPRET", "1"
    )  # the kernel itself is not run: the shapes are refused first
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ran = bench_own("--shape", "4096x1024..16384", "--out", "made")
    assert ran.exit_code == 2
    assert "4096x1024 would take Triton's interpreter minutes" in " ".join(ran.output.split())
    assert not Path("made").exists()
    asked = []
    monkeypatch.setattr(run, "run_bench", lambda folder, request, pool: asked.append(request) or 0)
    for named in ("", ",rownorm"):
        assert bench_own("--shape", "16x1024", named=named).exit_code == 0
    assert [one.rounds for one in asked] == [3, 3]
    assert {"torch", "own_kernel.rms_norm"} <= set(asked[0].providers)
    assert not {"rownorm", "plain_block", "plain_loop"} & set(asked[0].providers)
    assert asked[1].providers == ["rownorm", "own_kernel.rms_norm"]


def test_without_shapes_it_chooses_some_and_says_which(file, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ran = invoke("bench", "--provider", "Mine.py:rms_norm", "--list")
    assert ran.exit_code == 0, ran.output
    assert ran.stderr == "No --shape is given: --shape 512x256..4096\n"
    assert [line.split()[3] for line in ran.stdout.splitlines()] == [
        f"512x{cols}" for cols in (256, 512, 1024, 2048, 4096)
    ]
    ran = invoke("bench", "--provider", "Mine.py:rms_norm", "--suite", "flashinfer", "--list")
    assert "512x4096" in ran.stdout
    assert "512x256" not in ran.output
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    ran = bench_own("--list")
    assert ran.exit_code == 0, ran.output
    assert "rms_norm forward bf16 16x1024" in ran.stdout


def test_a_triton_kernel_without_a_gpu_is_told_what_works(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ran = bench_own("--shape", "16x1024", "--out", "made")
    assert ran.exit_code == 2
    assert "no GPU here to time them" in ran.output
    assert f"  rownorm check --provider {EXAMPLE}:rms_norm\n" in ran.output
    assert f"TRITON_INTERPRET=1 rownorm bench --provider {EXAMPLE}:rms_norm --shape 16x1024" in ran.output  # fmt: skip
    assert not Path("made").exists()
    (tmp_path / "mine.py").write_text(
        "from rownorm_lab.providers import provider\n"
        '@provider("needy", about="", operations=("rms_norm",), needs=("surely_missing",))\n'
        "def needy(case, t): pass\n"
    )
    ran = invoke("bench", "--shape", "2x8", "--provider", "mine.py:needy", "--out", "made")
    assert ran.exit_code == 2
    assert "needy cannot be measured here: surely_missing is not installed" in ran.output


def bench_own(*arguments, named=""):
    return invoke("bench", "--provider", f"{EXAMPLE}:rms_norm{named}", *arguments)


def test_without_op_the_norm_that_the_function_is_is_measured(tmp_path):
    (tmp_path / "mine.py").write_text("def layer_norm(x, weight, bias, eps):\n    return x\n")
    ran = invoke("bench", "--shape", "2x8", "--provider", "mine.py:layer_norm", "--list")
    assert ran.output.startswith("layer_norm forward bf16 2x8")
    (tmp_path / "other.py").write_text("def rms_norm(x, weight, eps):\n    return x\n")
    ran = invoke("bench", "--shape", "2x8", "--provider", "other.py:rms_norm", "--list")
    assert ran.output.startswith("rms_norm forward bf16 2x8")
