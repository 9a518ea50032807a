"""``rownorm race``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lab_support import race_kernels
from lab_support.lab_commands import invoke
from lab_support.report_page import open_page
from rownorm_course.catalog import exercises

KERNELS = Path(race_kernels.__file__)
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="for the interpreter")


def race(function, *options):
    torch.manual_seed(0)
    return invoke("race", f"{KERNELS}:{function.__name__}", *options)


@interpreted
def test_a_race_is_shown_with_its_lines(tmp_path):
    page = tmp_path / "race.html"
    ran = race(race_kernels.add_to_one_sum, "--map", "--out", page)
    assert ran.exit_code == 1, ran.output
    assert "two programs write one address: sum[0], programs 0 and 1" in " ".join(
        ran.output.split()
    )
    assert "tl.store(sum_ptr + cols, total + x, mask=col_ok)" in ran.output
    assert "0 to 4: programs 2 and 3   RACE" in ran.output
    assert 'class="race"' in page.read_text()
    assert "0 to 4: programs 2 and 3" in page.read_text()


@interpreted
def test_the_page_fits_a_phone_and_is_dark_in_the_dark(tmp_path, browser):
    page = tmp_path / "race.html"
    race(race_kernels.add_to_one_sum, "--out", page)
    for scheme, dark in (("light", False), ("dark", True)):
        shown = open_page(
            browser, page, failed := [], viewport={"width": 480, "height": 900}, color_scheme=scheme
        )
        paper = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper != "rgb(255, 255, 255)") == dark
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert shown.locator("svg .race").count() > 0
        assert failed == []
        shown.context.close()


@interpreted
def test_nothing_is_found_in_a_copy():
    ran = race(race_kernels.copy)
    assert ran.exit_code == 0, ran.output
    assert "Nothing was found." in ran.output
    assert ran.stderr == ""


@interpreted
def test_nothing_is_found_in_rownorms_kernels(tmp_path):
    """Through the command, as a user would look; lab/tests/interpreter/test_record.py has every regime."""
    (tmp_path / "own.py").write_text(
        "import rownorm, torch\n\n"
        "def main():\n"
        "    x, weight = torch.randn(5, 100, requires_grad=True), torch.ones(100, requires_grad=True)\n"
        "    rownorm.rms_norm(x, weight).sum().backward()\n"
    )
    ran = invoke("race", tmp_path / "own.py")
    assert ran.exit_code == 0, ran.output
    assert "Nothing was found." in ran.output
    assert "dweight" in ran.output


@interpreted
def test_every_puzzle_of_the_warm_up_has_a_page(tmp_path):
    warm_up = exercises()[0]
    puzzles, page = warm_up.path / "solutions" / "right" / "puzzles.py", tmp_path / "page.html"
    for part in warm_up.part:
        ran = invoke("race", f"{puzzles}:try_{part.name}", "--out", page)
        assert ran.exit_code == 0, ran.output
        assert "of 32 bytes" in page.read_text()
        page.unlink()


@interpreted
def test_addresses_of_a_size_that_no_machine_holds():
    assert race(race_kernels.copy, "--meta").exit_code == 2  # it looks at values
    ran = race(race_kernels.far, "--meta")
    assert ran.exit_code == 1
    assert "an offset passes 2^31 in int32: y[" in " ".join(ran.output.split())
    assert "int32: x[" not in ran.output


@interpreted
@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("missing.py", "there is no file"),
        (f"{KERNELS.parent}", "is a folder; name a Python file"),
        (f"{KERNELS}", "has no function main"),
        (f"{KERNELS}:no_kernel", "launched no Triton kernel"),
        (f"{KERNELS}:shared_sum", "has no function shared_sum"),
    ],
)
def test_what_cannot_be_run_is_said(target, text):
    ran = invoke("race", target)
    assert ran.exit_code == 2
    assert text in " ".join(ran.output.split())


def test_the_command_chooses_the_interpreter():
    """In a process of its own, as a user runs it."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    ran = subprocess.run(
        [sys.executable, "-m", "rownorm_lab", "race", f"{KERNELS}:let_the_last_add"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran.stderr
    assert "one program reads what another writes" in ran.stdout


ASKS_FOR_ITS_GPU = """
import torch, triton, triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()
PROGRAMS = triton.runtime.driver.active.utils.get_device_properties(0)["multiprocessor_count"]


@triton.autotune([triton.Config({"BLOCK": 8}), triton.Config({"BLOCK": 16})], key=["n_cols"])
@triton.jit
def double(x_ptr, y_ptr, n_rows, n_cols, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0), n_rows, tl.num_programs(0)):
        cols = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols)
        tl.store(y_ptr + row * n_cols + cols, 2 * x, mask=cols < n_cols)


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(SIZE, 5, device=device)
    double[(PROGRAMS,)](x, torch.empty(x.shape, device=DEVICE), SIZE, 5)
"""


@interpreted
@pytest.mark.parametrize(
    ("size", "options", "shown"),
    [("9", (), "double 4 x"), ("3 << 28", ("--meta",), "addresses only")],
)
def test_a_file_that_asks_triton_for_its_gpu(tmp_path, size, options, shown):
    file = tmp_path / "asks.py"
    file.write_text(ASKS_FOR_ITS_GPU.replace("SIZE", size))
    ran = invoke("race", file, *options)
    assert ran.exit_code == (1 if options else 0), ran.output  # row * n_cols is an int32
    assert shown in " ".join(ran.output.split())
    assert ("an offset passes 2^31 in int32" in ran.output) == bool(options)


@interpreted
def test_a_file_that_cannot_be_imported_is_no_traceback(tmp_path):
    (tmp_path / "bad.py").write_text("import torch\nimport surely_missing\n")
    ran = invoke("race", tmp_path / "bad.py")
    assert ran.exit_code == 2
    assert "ModuleNotFoundError: No module named 'surely_missing' (bad.py, line 2)" in ran.output


def test_a_long_launch_says_how_far_it_is(monkeypatch, capsys):
    from rownorm_lab.commands.race import command

    seconds = iter([100.0, 101.0, 103.0, 104.0, 114.0])
    monkeypatch.setattr(command.time, "monotonic", lambda: next(seconds))
    progress = command._Progress(meta=False)
    for place in range(5):
        progress("double", place, 100)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "double: 2 of 100 programs, 147 s left"
    assert "--meta" in said[1]
    assert said[2:] == ["double: 4 of 100 programs, 336 s left"]
