"""Tensors as rows: strides and alignment."""

import json

import pytest
import torch

from rownorm import launch
from rownorm.launch.device import DEVICES
from rownorm.launch.problem import Problem
from rownorm.program import Inputs, Program


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((64, 32), 16), ((64, 36), 4), ((7, 16), 1), ((16, 0), 16), ((6, 10), 2)],
)
def test_alignment(sizes, expected):
    assert launch.rows.alignment(*sizes) == expected


@pytest.mark.parametrize(
    ("shape", "stride", "expected"),
    [
        ((4, 8), (8, 1), (8, 0, 0)),
        ((4, 8), (10, 1), (10, 0, 0)),
        ((4, 8), (0, 1), (0, 0, 0)),
        ((4, 8), (1, 4), None),
        ((2, 3, 8), (60, 20, 1), (20, 0, 0)),
        ((2, 3, 8), (61, 20, 1), (20, 3, 1)),
        ((2, 3, 8), (8, 16, 1), (16, 3, -40)),
        ((2, 2, 3, 8), (80, 40, 10, 1), (10, 3, 10)),
        ((2, 1, 3, 8), (40, 9, 10, 1), (10, 3, 10)),
        ((2, 2, 3, 8), (100, 40, 10, 1), None),
        ((1, 3, 8), (999, 20, 1), (20, 0, 0)),
        ((2, 1, 8), (20, 999, 1), (20, 0, 0)),
        ((4, 1), (5, 7), (5, 0, 0)),
        ((8,), (1,), (8, 0, 0)),
        ((8,), (2,), None),
        ((0, 8), (8, 1), (8, 0, 0)),
    ],
)
def test_row_layout(shape, stride, expected):
    t = torch.arange(400).as_strided(shape, stride)
    layout = launch.rows.row_layout(t)
    assert layout == expected
    if expected is not None:
        rows = torch.arange(t[..., 0].numel())
        groups = rows // layout.group_rows if layout.group_rows else 0
        assert torch.equal(t[..., 0].reshape(-1), rows * layout.stride + groups * layout.gap)


def test_tensors_share_one_size_of_groups():
    """Rows with one stride take any groups; of two sizes of groups, the last tensor keeps its own."""
    wide = torch.zeros(2, 3, 20)[..., :8]
    by_3, by_2 = torch.zeros(2, 4, 8)[:, :3], torch.zeros(3, 4, 8)[:, :2].transpose(0, 1)
    plain, grouped = launch.rows.common_layouts(wide, by_3)
    assert (plain, grouped) == ((20, 3, 0), (8, 3, 8))
    assert launch.rows.common_layouts(None, wide) == ((0, 0, 0), (20, 0, 0))
    of_6 = torch.zeros(1, 12, 8)[:, ::2]
    assert launch.rows.common_layouts(of_6, None) == ((16, 0, 0), (0, 0, 0))
    four = torch.zeros(3, 3, 8)[:, :2].reshape(2, 3, 8)
    assert launch.rows.common_layouts(four, by_3) == ((8, 3, 0), (8, 3, 8))
    assert None not in launch.rows.common_layouts(by_2, by_3)  # both in groups of 3
    other = torch.zeros(3, 3, 8)[:, :2]
    assert launch.rows.common_layouts(other, by_3)[0] is None
    inputs = Inputs(other, by_3, None, None, None)
    first, second, *_ = launch.rows.readable(inputs, Program(True, 1e-5))
    assert first.is_contiguous()
    assert second is by_3
    with pytest.raises(ValueError, match="cannot read these rows in place"):
        launch.rows.required_layouts(other, by_3)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_kernels_constant_can_be_written_as_json(direction):
    """Triton does that where a program hooks into its compiler: json.dumps refuses a dtype in a tuple."""
    rows = (torch.bfloat16, torch.bfloat16)
    problem = Problem(direction, 4, 64, *rows, True, 0, DEVICES["sm_90"])
    program = Program(True, 1e-5, activation="silu", rounding="llama")
    constant = launch.rows.kernel_program(problem, program)
    assert tuple(json.loads(json.dumps(constant))) == constant
    assert constant.ROUND_X_HAT_TO == "bf16"
    assert constant.COMPUTE_DTYPE == "fp32"
    in_forward = direction == "forward"
    assert (1e-5 if in_forward else None) == constant.EPS
    assert ("bf16" if in_forward else None) == constant.STORED_H_DTYPE


def test_options_after_the_sums_of_a_split_row_compile_no_other_kernel_for_the_sums():
    x = torch.empty(2, 4096)
    layouts = launch.rows.required_layouts(x, None)

    def programs(program):
        problem = launch.problem.forward_problem(Inputs(x, None, None, None, None), program)
        with launch.force(regime="split", block_cols=1024, part_cols=2048):
            steps = launch.forward.calls(problem, launch.plan(problem), program, *layouts)
        return [step.constants["PROGRAM"] for step in steps]

    plain, other = programs(Program(True, 1e-5)), programs(Program(True, 1e-6, 1.0, "silu"))
    assert plain[0] == other[0]
    assert plain[1] != other[1]
    assert programs(Program(False, 1e-5))[0] != plain[0]
