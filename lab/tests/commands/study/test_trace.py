"""Which kernels belong to norms: in a trace of a GPU, written here, and in profiles of this machine."""

import pytest
import torch

from rownorm_lab.commands.study.measure import profile_of
from rownorm_lab.models import STAGES, tasks
from rownorm_lab.models.blocks import Norm
from rownorm_lab.models.ranges import NORM, norm_ranges
from rownorm_lab.models.workload import Workload, run_under
from rownorm_lab.profilers.trace import read_trace


def event(cat, name, ts, dur, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


def launched(number, name, at, dur, tid=1, how="cuda_runtime"):
    """A kernel, and the call that launched it."""
    return [
        event(how, "launch", at, 1, tid, correlation=number),
        event("kernel", name, 1000 + at, dur, "stream 7", correlation=number),
    ]


EAGER = [
    {"ph": "M", "name": "process_name"},
    event("user_annotation", NORM, 10, 20),
    *launched(1, "elementwise", 15, 4),
    *launched(2, "elementwise", 40, 5),  # after the range
    *launched(3, "elementwise", 15, 6, tid=2),  # at the same time in another thread
    # Backward: a range inside a node. The sum of gradients is launched after the range, and inside the node.
    event("cpu_op", "autograd::engine::evaluate_function: AddBackward0", 100, 50, tid=2),
    event("user_annotation", NORM, 105, 10, tid=2),
    *launched(4, "norm_backward", 107, 7, tid=2, how="cuda_driver"),
    *launched(5, "add", 130, 8, tid=2),
    event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 200, 50, tid=2),
    *launched(6, "gemm", 210, 30, tid=2),
    event("gpu_memcpy", "copy", 1300, 2, "stream 7", correlation=99),  # nothing launched it: lost
]


def norms(profile):
    return {
        kernel.name: round(kernel.seconds * 1e6, 3) for kernel in profile.kernels if kernel.is_norm
    }


def test_kernels_launched_inside_a_range_belong_to_norms():
    found = read_trace(EAGER[:-1], 1, 1)
    assert norms(found) == {"elementwise": 4, "norm_backward": 7, "add": 8}
    assert found.attribution == "ranges"
    others = {k.name: (k.calls, round(k.seconds * 1e6)) for k in found.kernels if not k.is_norm}
    assert others == {"elementwise": (2, 11), "gemm": (1, 30)}
    assert [k.seconds for k in found.kernels] == sorted(k.seconds for k in found.kernels)[::-1]


def test_figures_are_those_of_one_step():
    one, two = read_trace(EAGER[:-1], 1, 1), read_trace(EAGER[:-1], 2, 0)
    assert [k.seconds for k in two.kernels] == [k.seconds / 2 for k in one.kernels]
    assert [k.calls for k in two.kernels] == [k.calls / 2 for k in one.kernels]


def test_nothing_is_said_about_norms_if_kernels_have_no_launch_or_too_few_were_found():
    assert read_trace(EAGER, 1, 1).attribution == "unknown"
    assert read_trace(EAGER[:-1], 1, 2).attribution == "unknown"


def test_an_operator_takes_the_place_of_a_launch_that_the_trace_does_not_have():
    events = [
        event("user_annotation", NORM, 0, 10),
        event("cpu_op", "rownorm::rms_norm", 1, 5, **{"External id": 3}),
        event("kernel", "forward", 50, 2, "stream 7", correlation=1, **{"External id": 3}),
    ]
    assert norms(read_trace(events, 1, 0)) == {"forward": 2}


def test_compiled_kernels_belong_to_norms_by_their_name_or_their_operator():
    forward = launched(1, "triton_per_fused_native_layer_norm_0", 0, 3)
    other = launched(2, "triton_poi_fused_silu_1", 10, 4)
    backward = [
        event("cpu_op", "rownorm::norm_backward", 20, 10),
        *launched(3, "backward_resident", 22, 5),
    ]
    found = read_trace([*forward, *other, *backward], 1, 1, compiled=True)
    assert norms(found) == {"triton_per_fused_native_layer_norm_0": 3, "backward_resident": 5}
    assert found.attribution == "names"
    # Two named kernels, but none of backward.
    without_backward = [*forward, *other, *launched(4, "rms_norm", 30, 1)]
    assert read_trace(without_backward, 1, 1, compiled=True).attribution == "unknown"


@pytest.fixture
def small(monkeypatch, without_interpreter):
    for task in tasks.TASKS.values():
        monkeypatch.setitem(task.budgets, "tiny", tasks.Budget(1, 3e-3))


def device():
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("stage", STAGES)
def test_a_profile_of_this_machine(stage, small):
    workload = Workload("openfold", "tiny", stage, "eager", device())
    computes = {id(m.compute) for m in workload.trainer.model.modules() if isinstance(m, Norm)}
    found = profile_of(workload)
    assert found.attribution == "ranges"
    share = sum(k.seconds for k in found.kernels if k.is_norm) / sum(
        k.seconds for k in found.kernels
    )
    assert 0.005 < share < 0.9
    if device() == "cpu":
        by_norm = {kernel.name: set() for kernel in found.kernels}
        for kernel in found.kernels:
            by_norm[kernel.name].add(kernel.is_norm)
        assert by_norm["aten::mm"] == {False}
        expected = {
            "baseline": ["aten::rsqrt"],
            "fused": ["aten::native_layer_norm", "aten::native_layer_norm_backward"],
            "rownorm": ["rownorm::norm_backward"],
        }
        for name in expected[stage]:
            assert by_norm[name] == {True}
        # The residual add before a norm counts; other adds, such as those of embeddings, do not.
        assert stage == "rownorm" or by_norm["aten::add"] == {True, False}
    # The ranges are gone after the profile.
    left = {id(m.compute) for m in workload.trainer.model.modules() if isinstance(m, Norm)}
    assert left == computes


def test_every_norm_has_a_range_in_forward_and_in_backward(small):
    workload = Workload("llama", "tiny", "fused", "eager", device())
    n_norms = sum(isinstance(module, Norm) for module in workload.trainer.model.modules())
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    run_under(profiler, workload, 1)
    ranges = [one for one in profiler.events() if one.name == NORM]
    assert len(ranges) >= 2 * n_norms
    in_forward = sum(one.cpu_parent is None for one in ranges)
    assert in_forward == n_norms


def test_ranges_change_no_result(small):
    plain = Workload("llama", "tiny", "rownorm", "eager", device())
    ranged = Workload("llama", "tiny", "rownorm", "eager", device())
    losses = [float(plain.step()) for _ in range(3)]
    with norm_ranges(ranged.trainer.model):
        assert [float(ranged.step()) for _ in range(3)] == pytest.approx(losses, rel=1e-6)
