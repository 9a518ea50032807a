"""Norms in a trace of a script: recorded on this machine with ranges, and a synthetic trace of a GPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import rownorm
from rownorm_lab.commands.profile.hooks import norm_ranges
from rownorm_lab.commands.profile.sessions import Chrome
from rownorm_lab.profilers import chrome
from rownorm_lab.profilers.norms import found_norms


class TinyRMSNorm(nn.Module):
    """Op by op, as models of other libraries have it."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


def event(cat, name, ts, dur, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


@pytest.fixture
def trace(tmp_path, without_interpreter):
    """Record a function; the norms that are found in it, for two steps."""

    def of(function):
        with norm_ranges():
            function()  # a first call may do more
            with Chrome(tmp_path / "trace.json"):
                function()
                function()
        return found_norms(chrome.parse(tmp_path / "trace.json"), 2)

    return of


def kinds(found):
    return {
        (
            one.what,
            one.direction,
            one.case and (one.case.operation, one.case.rows, one.case.cols),
        ): one.calls
        for one in found.norms
    }


def test_modules_and_functions_forward_and_backward(trace):
    linear, ours, theirs = nn.Linear(32, 32), TinyRMSNorm(32), nn.LayerNorm(32)
    x = torch.randn(2, 5, 32)

    def step():
        y = theirs(ours(ours(linear(x))))
        F.rms_norm(y, (32,)).sum().backward()

    found = trace(step)
    assert kinds(found) == {
        ("TinyRMSNorm", "forward", ("rms_norm", 10, 32)): 2,
        ("TinyRMSNorm", "backward", ("rms_norm", 10, 32)): 2,
        ("F.layer_norm", "forward", ("layer_norm", 10, 32)): 1,
        ("F.layer_norm", "backward", ("layer_norm", 10, 32)): 1,
        ("F.rms_norm", "forward", ("rms_norm", 10, 32)): 1,
        ("F.rms_norm", "backward", ("rms_norm", 10, 32)): 1,
    }
    of_norms = sum(one.seconds for one in found.kernels if one.is_norm)
    assert of_norms == pytest.approx(sum(one.seconds for one in found.norms))
    products = [one for one in found.kernels if one.name in ("aten::addmm", "aten::mm")]
    assert products
    assert not any(one.is_norm for one in products)


def test_rownorm_is_found_and_has_no_case(trace):
    x, weight = torch.randn(4, 32), torch.ones(32, requires_grad=True)
    found = trace(lambda: rownorm.rms_norm(x, weight).sum().backward())
    assert {(one.direction, one.case) for one in found.norms} == {
        ("forward", None),
        ("backward", None),
    }
    assert all(one.what.startswith("rownorm::") for one in found.norms)


def test_operators_without_a_range_have_their_shape(trace):
    x = torch.randn(3, 4, 16, dtype=torch.bfloat16)
    found = trace(lambda: torch.layer_norm(x, (16,)))
    assert kinds(found) == {("aten::layer_norm", "forward", ("layer_norm", 12, 16)): 1}
    assert found.norms[0].case.dtype == "bf16"


def test_other_norms_are_no_norms_of_rows(trace):
    layers = nn.Sequential(nn.BatchNorm1d(8), nn.GroupNorm(2, 8))
    assert trace(lambda: layers(torch.randn(4, 8))).norms == []


def test_nothing_remains_installed():
    before = F.layer_norm, F.rms_norm
    with norm_ranges():
        assert F.layer_norm is not before[0]
    assert (F.layer_norm, F.rms_norm) == before
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_kernels_of_a_gpu():
    """The trace is synthetic."""
    name = "norm|LlamaRMSNorm|rms_norm|{}|64x128|bf16|7"
    timed = [
        event("user_annotation", name.format("forward"), 0, 20),
        event("cuda_runtime", "cudaLaunchKernel", 5, 1, correlation=1),
        event("kernel", "elementwise", 100, 3, "stream 7", correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 25, 1, correlation=2),
        event("kernel", "elementwise", 110, 4, "stream 7", correlation=2),
        # Two nodes of backward belong to the same call. The second launches after its range, inside the node.
        event("cpu_op", "autograd::engine::evaluate_function: MulBackward0", 50, 10, 2),
        event("user_annotation", name.format("backward"), 51, 2, 2),
        event("cuda_runtime", "cudaLaunchKernel", 52, 1, 2, correlation=3),
        event("kernel", "reduce", 120, 5, "stream 7", correlation=3),
        event("cpu_op", "autograd::engine::evaluate_function: PowBackward0", 70, 10, 2),
        event("user_annotation", name.format("backward"), 71, 2, 2),
        event("cuda_runtime", "cudaLaunchKernel", 77, 1, 2, correlation=4),
        event("kernel", "add", 130, 6, "stream 7", correlation=4),
        event("cuda_driver", "cuLaunchKernelEx", 90, 1, correlation=5),
        event("kernel", "triton_red_fused_native_layer_norm_0", 140, 7, "stream 7", correlation=5),
    ]
    found = found_norms(timed, 1)
    assert [
        (one.what, one.direction, one.calls, round(one.seconds * 1e6)) for one in found.norms
    ] == [
        ("LlamaRMSNorm", "backward", 1, 11),
        ("triton_red_fused_native_layer_norm_0", "", 1, 7),
        ("LlamaRMSNorm", "forward", 1, 3),
    ]
    assert {(one.name, one.is_norm) for one in found.kernels if one.name == "elementwise"} == {
        ("elementwise", True),
        ("elementwise", False),
    }
