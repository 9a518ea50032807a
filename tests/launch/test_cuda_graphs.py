"""CUDA graph capture of forward and backward in every regime: a replay on new inputs gives the same bits as eager."""

import dataclasses
import gc
import time

import pytest
import torch

import rownorm
from rownorm.explain import Explanation, explain
from rownorm.launch import device_of, force
from rownorm.program import COLUMNS
from support.cases import Case, ours
from support.criterion import assert_same_bits
from support.operators import OperatorCase, full_cases, gradients, same_bits
from support.regimes import HAS_CLUSTERS, ON_GPU, REGIMES, forced

needs_gpu = pytest.mark.skipif(not ON_GPU, reason="CUDA graphs need a GPU")
FORWARD_OF_GRID = "looped"  # the grid regime is for backward; forward then reads its rows in chunks

# regime: (rows, columns, settings). Rows take several programs, and several turns of each program.
FORCED = {
    "tile": (33, 1000, {}),
    "resident": (33, 1000, {}),
    "looped": (33, 20000, {}),
    "split": (5, 20000, {}),
    "cluster": (40, 8192, {"cluster_size": 4, "block_cols": 1024, "num_warps": 4}),
    "grid": (40, 40000, {}),
}
# (rows, columns): what the planner chooses for LayerNorm in bf16 on an H200, from tile to grid.
PLANNED = (
    (512, 1024),
    (512, 4096),
    (70, 20000),
    (70, 65536),
    (40, 131072),
    (40, 262144),
    (2, 1 << 20),
)


def skip_where_the_gpu_lacks(regime: str) -> None:
    if regime == "cluster" and not HAS_CLUSTERS:
        pytest.skip("this GPU has no thread block clusters")
    if regime == "grid" and not device_of(0).arch.startswith("sm_"):
        pytest.skip("the grid regime needs an NVIDIA GPU")


def of_regime(case: OperatorCase, regime: str) -> OperatorCase:
    """The case without what the regime does not compute: samples and gates, which clusters have in backward only."""
    if regime not in ("cluster", "grid"):
        return case
    parameters = tuple(name for name in case.parameters if name in COLUMNS)
    without = ("scale_shift", "gate_activation")
    options = {name: value for name, value in case.options.items() if name not in without}
    return dataclasses.replace(case, parameters=parameters, options=options)


def assert_regime(plans: Explanation, regime: str) -> None:
    assert plans.backward.regime == regime, plans
    assert plans.forward.regime == (FORWARD_OF_GRID if regime == "grid" else regime), plans


def captured(function):
    """``(graph, outputs)`` of a function captured after two eager calls on a side stream.

    The first eager call compiles the kernels, the second takes the path of a prepared call. Both warm the allocator.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = function()
    return graph, outputs


def outputs_and_gradients(case: OperatorCase, tensors: dict) -> tuple[torch.Tensor, ...]:
    outputs = case(**tensors)
    return (*(output.detach() for output in outputs), *gradients(outputs, tensors))


@full_cases
@pytest.mark.parametrize("regime", FORCED)
def test_forced_settings_give_the_regime_on_an_h200(case, regime):
    """The capture tests below reach the regime that they name. Planning needs no GPU."""
    case = of_regime(case, regime)
    n_rows, n_cols, settings = FORCED[regime]
    tensors = case.tensors("meta", rows=(n_rows,), cols=n_cols)
    with force(regime=regime, **settings):
        plans = explain(getattr(rownorm, case.operator), **tensors, **case.options, device="sm_90")
        assert_regime(plans, regime)


@needs_gpu
@full_cases
@pytest.mark.parametrize("regime", FORCED)
def test_replay_equals_eager_in_every_regime(case, regime, device):
    """Forward and backward are captured together. Every input changes before each replay."""
    skip_where_the_gpu_lacks(regime)
    case = of_regime(case, regime)
    n_rows, n_cols, settings = FORCED[regime]
    tensors = case.tensors(device, rows=(n_rows,), cols=n_cols, requires_grad=True)
    with force(regime=regime, **settings):
        assert_regime(explain(getattr(rownorm, case.operator), **tensors, **case.options), regime)
        graph, outputs = captured(lambda: outputs_and_gradients(case, tensors))
        for _ in range(3):
            with torch.no_grad():
                for t in tensors.values():
                    t.normal_()
            graph.replay()
            same_bits(outputs, outputs_and_gradients(case, tensors))


@needs_gpu
@full_cases
@pytest.mark.parametrize("regime", FORCED)
def test_forward_alone_is_captured_in_every_regime(case, regime, device):
    """Inference: no input requires a gradient, so no statistics are stored."""
    skip_where_the_gpu_lacks(regime)
    case = of_regime(case, regime)
    n_rows, n_cols, settings = FORCED[regime]
    tensors = case.tensors(device, rows=(n_rows,), cols=n_cols)
    with force(regime=regime, **settings):
        graph, outputs = captured(lambda: case(**tensors))
        for t in tensors.values():
            t.normal_()
        graph.replay()
        same_bits(outputs, case(**tensors))


@needs_gpu
@pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
@pytest.mark.parametrize("residual_dtype", [None, torch.float32], ids=["plain", "fp32_residual"])
@pytest.mark.parametrize(("n_rows", "n_cols"), PLANNED)
def test_replay_equals_eager_as_planned(n_rows, n_cols, residual_dtype, center, device):
    """The message slots of a grid are cleared at every replay, so no replay takes a sum of the one before."""
    dtype = torch.bfloat16
    case = Case(center, dtype, (n_rows, n_cols), bias=center, residual_dtype=residual_dtype)
    tensors = case.tensors(device)
    graph, outputs = captured(lambda: ours(case, tensors))
    for _ in range(3):
        for t in tensors.values():
            if t is not None:
                t.normal_()
        graph.replay()
        for name, value in ours(case, tensors).items():
            assert_same_bits(outputs[name], value)


@pytest.fixture
def new_tensors():
    """A function that returns the tensors that were made during this test and are alive."""

    def alive():
        gc.collect()
        return [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]

    gc.collect()
    gc.freeze()  # leaves what there is out of the list
    yield alive
    gc.unfreeze()


@pytest.mark.parametrize("regime", [one for one in REGIMES if one != "cluster" or HAS_CLUSTERS])
def test_prepared_calls_keep_no_tensor(regime, device, new_tensors, monkeypatch):
    """Not even of one row, whose partial sums are its sums. Needs no GPU.

    If the first call is recorded for a graph, a tensor that is kept lives in the memory pool of the graph, which
    torch.compile with ``mode="reduce-overhead"`` refuses.
    """
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # as usual
    inputs = [torch.randn(shape, device=device, requires_grad=True) for shape in ((1, 72), 72, 72)]
    with forced(regime):  # prepared calls are forgotten before and after
        torch.autograd.grad(rownorm.layer_norm(*inputs).sum(), inputs)
        deadline = time.monotonic() + 5  # the thread that ran backward may still hold gradients
        while len(new_tensors()) > len(inputs) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert {*map(id, new_tensors())} == {*map(id, inputs)}


@pytest.mark.skipif(not HAS_CLUSTERS, reason="needs a GPU with thread block clusters")
def test_planned_shapes_meet_every_regime_of_wide_rows(device):
    met = set()
    for n_rows, n_cols in PLANNED:
        x = torch.empty(n_rows, n_cols, dtype=torch.bfloat16, device=device)
        plans = explain(rownorm.layer_norm, x, x[0], x[0])
        met |= {plans.forward.regime, plans.backward.regime}
    assert {"cluster", "grid"} <= met
