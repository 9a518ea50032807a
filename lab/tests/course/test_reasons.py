"""A reason is given if something proves it, and no other."""

import ast

import pytest
import torch

from lab_support.learning import put
from rownorm_course.grade import one_step, tasks_of
from rownorm_course.grades import Failure
from rownorm_course.habits import HABITS
from rownorm_course.learner import Learner, honest

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="for the interpreter; test_gpu.py is for a GPU"
)


def first_failure(folder, number, part):
    with Learner(folder, number, "interpret", 11) as learner:
        for task in tasks_of(number):
            if task.part == part and "interpret" in task.modes:
                step = one_step(learner, task)
                if step.status == "failed":
                    return step
    return None


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_masked_lanes_that_reach_no_result_need_no_other(tmp_path):
    file = put(tmp_path, 2) / "rmsnorm.py"
    edit(file, "weight_ptr + cols, mask=col_ok, other=0.0", "weight_ptr + cols, mask=col_ok")
    assert first_failure(tmp_path, 2, "kernel") is None


def test_masked_lanes_are_named_with_their_line(tmp_path):
    file = put(tmp_path, 2, "load_without_other") / "rmsnorm.py"
    step = first_failure(tmp_path, 2, "kernel")
    line = next(
        number
        for number, text in enumerate(file.read_text().splitlines(), 1)
        if "mask=cols < n_cols)" in text
    )
    assert f"rmsnorm.py, line {line}" in step.message


@pytest.mark.parametrize(
    ("number", "file", "part", "old", "new"),
    [
        (2, "rmsnorm.py", "kernel", "x * rstd * weight", "x * rstd * weight * 1.1"),
        (5, "backward.py", "dx", "dx = rstd * (", "dx = 0.9 * rstd * ("),
        (3, "layernorm.py", "welford", "mean += delta *", "mean += 0.9 * delta *"),
    ],
)
def test_an_unknown_formula_has_no_reason(number, file, part, old, new, tmp_path):
    put(tmp_path, number)
    edit(tmp_path / file, old, new)
    step = first_failure(tmp_path, number, part)
    assert "expected" in step.message
    assert step.habit == ""


def test_a_right_answer_is_explained_and_a_puzzle_drawn(tmp_path):
    answers = Learner(put(tmp_path / "basics", 1), 1, "interpret", 11)
    step = one_step(answers, next(task for task in tasks_of(1) if task.name == "mask"))
    assert step.status == "passed"
    assert "other" in step.message
    with Learner(put(tmp_path / "warmup", 0), 0, "interpret", 11) as puzzles:
        step = one_step(puzzles, next(task for task in tasks_of(0) if task.part == "mask"))
    assert step.status == "passed"
    assert "0 1 2 3 4 . . ." in step.message
    assert "1 sector of 32 bytes" in step.message


def test_a_text_where_a_number_belongs_is_named(tmp_path):
    for number, file, part, old, new, said in (
        (1, "answers.toml", "run", "rows = ", "rows = '2,048' #", "'2,048' is a text"),
        (7, "answers.toml", "answers", "large_percent_of_peak = ", "large_percent_of_peak = '3,4' #", "a text"),
        (6, "analysis.md", "analysis", "flop_per_byte: 1.0", "flop_per_byte: about 1", "is 'about 1'"),
    ):  # fmt: skip
        folder = put(tmp_path / str(number), number)
        edit(folder / file, old, new)
        step = first_failure(folder, number, part)
        assert (said in step.message, step.habit) == (True, "toml"), step.message


def test_the_largest_of_equal_magnitudes(tmp_path):
    """A combination that adds is right as long as all but one element are 0."""
    file = put(tmp_path, 0) / "puzzles.py"
    edit(file, "return tl.maximum(a, b)", "return a + b")
    x = "tl.where(tl.abs(x) == tl.max(tl.abs(x), axis=0), tl.abs(x), 0.0)"
    edit(file, "tl.reduce(tl.abs(x), 0, larger)", f"tl.reduce({x}, 0, larger)")
    assert first_failure(tmp_path, 0, "reduce").status == "failed"


@pytest.mark.parametrize(
    ("part", "old", "new", "said"),
    [
        ("total", "torch.empty(1, dev", "torch.empty((1, 1), dev", "of shape (1, 1) and torch.float32"),
        ("strides", "n_cols), dev", "n_cols), dtype=torch.float64, dev", "(6, 10) and torch.float64"),
    ],
)  # fmt: skip
def test_the_result_of_a_puzzle_has_the_shape_and_the_dtype_of_the_text(
    part, old, new, said, tmp_path
):
    file = put(tmp_path, 0) / "puzzles.py"
    edit(file, old, new)
    assert said in first_failure(tmp_path, 0, part).message


def test_an_argument_that_is_returned_is_named(tmp_path):
    file = put(tmp_path, 0) / "puzzles.py"
    edit(file, "def copy(x):\n    y = torch.empty_like(x)", "def copy(x):\n    y = x")
    step = first_failure(tmp_path, 0, "mask")
    assert ("argument 1 of your function was returned" in step.message, step.habit) == (True, "")


def test_masked_lanes_are_no_reason_if_zeros_in_them_are_wrong_too(tmp_path):
    file = put(tmp_path, 0) / "puzzles.py"
    edit(
        file,
        "cols, mask=cols < n_cols, other=0.0)\n    tl.store(y_ptr",
        "cols, mask=cols < n_cols)\n    tl.store(y_ptr",
    )
    edit(file, "weight[None, :]", "weight[:, None]")
    step = first_failure(tmp_path, 0, "tile")
    assert ("are wrong" in step.message, step.habit) == (True, "")


def test_memory_that_is_kept_and_not_returned_again(tmp_path):
    """Such as the last result, for a debugger."""
    file = put(tmp_path, 0) / "puzzles.py"
    edit(file, "def copy(x):\n    y = ", "LAST = [None]\n\n\ndef copy(x):\n    y = LAST[0] = ")
    assert first_failure(tmp_path, 0, "mask") is None


def test_a_helper_without_return_is_explained(tmp_path):
    file = put(tmp_path, 2) / "rmsnorm.py"
    edit(file, "@triton.jit\n", "@triton.jit\ndef nothing(x):\n    x * x\n\n\n@triton.jit\n")
    edit(file, "squares += x * x", "squares += nothing(x)")
    step = first_failure(tmp_path, 2, "kernel")
    assert "a function without return" in step.message


@pytest.mark.parametrize(
    "asked",
    [
        "triton.runtime.driver.active.get_current_target()",
        "torch.cuda.get_device_properties(0).multi_processor_count",
    ],
)
def test_a_question_to_a_gpu_that_is_not_there_is_explained(asked, tmp_path):
    edit(
        put(tmp_path, 2) / "rmsnorm.py",
        "n_rows, n_cols = x.shape\n",
        f"n_rows, n_cols = x.shape; {asked}\n",
    )
    step = first_failure(tmp_path, 2, "kernel")
    assert "Choose a number of programs or warps without asking" in step.message


def test_a_number_of_python_in_a_kernel_is_explained(tmp_path):
    edit(put(tmp_path, 5) / "backward.py", "tl.cast(row, tl.int64)", "row.to(tl.int64)")
    step = first_failure(tmp_path, 5, "dx")
    assert "tl.cast(value, tl.int64) works" in step.message


def test_a_missing_gradient_is_named(tmp_path):
    edit(put(tmp_path, 5) / "backward.py", "return dx, dweight", "return dx, None")
    assert first_failure(tmp_path, 5, "dx") is None
    assert "returned None for dweight" in first_failure(tmp_path, 5, "dweight").message


def test_a_fixed_eps_is_called_so(tmp_path):
    edit(put(tmp_path, 2) / "rmsnorm.py", "tl.cast(eps, tl.float32)", "1e-6")
    step = first_failure(tmp_path, 2, "kernel")
    assert step.habit == "no-eps"
    assert "fixed value" in HABITS["no-eps"]


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ("from rownorm_course.interpreter import DEVICE", False),
        ("from rownorm_lab.data.case import Case", False),
        ("import helper\nhelper.rms_norm(x)", False),
        ("FOLDER = 'solutions/norm/x.json'", False),
        ("import torch.nn.functional as F\nF.rms_norm(x)", True),
        ("from torch.nn import RMSNorm\nRMSNorm(8)", True),
        ("from rownorm_course.profiles import Figures", True),
        ("from rownorm_lab.providers.kernels import loop", True),
        ("import rownorm", True),
    ],
)
def test_what_is_not_ones_own_work(source, refused):
    if not refused:
        honest("file.py", ast.parse(source))
        return
    with pytest.raises(Failure):
        honest("file.py", ast.parse(source))
