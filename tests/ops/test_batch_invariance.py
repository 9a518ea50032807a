"""The mode ``rownorm.batch_invariant``: who has it, and what it reaches. What it does to the kernels: tests/kernels."""

import os
import subprocess
import sys
import threading

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import rownorm
from rownorm.ops import batch_invariance, inductor, norms
from rownorm.program import INPUTS, ROWS, SAMPLES, Inputs, Program
from support.cases import Case, ours
from support.criterion import assert_same_bits
from support.fake_driver import needs_compiler
from support.native_fixtures import driver, node, way  # noqa: F401
from support.pairwise import combinations, name_of

F32 = torch.float32


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    assert batch_invariance.state.n_entered == 0


def has_mode() -> bool:
    """Whether a call made now has the mode."""
    passed = []
    before, norms._norm = norms._norm, lambda *arguments: passed.append(arguments[-1])
    try:
        rownorm.layer_norm(None)
    finally:
        norms._norm = before
    return Program(*passed[0]).batch_invariant


def test_a_context_has_the_mode_and_leaves_it():
    assert not has_mode()
    with rownorm.batch_invariant():
        assert has_mode()
        with rownorm.batch_invariant():
            assert has_mode()
        assert has_mode()
    assert not has_mode()
    with pytest.raises(ZeroDivisionError), rownorm.batch_invariant():
        _ = 1 / 0
    assert not has_mode()


def test_a_decorated_function_has_the_mode():
    @rownorm.batch_invariant()
    def function():
        return has_mode()

    assert function()
    assert function()
    assert not has_mode()


def test_a_thread_has_its_own_mode():
    inside, leave, seen = threading.Event(), threading.Event(), {}

    def other():
        with rownorm.batch_invariant():
            inside.set()
            leave.wait()
            seen["other"] = has_mode()

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    seen["this"] = has_mode()
    with rownorm.batch_invariant():
        seen["both"] = has_mode()
    leave.set()
    thread.join()
    assert seen == {"this": False, "both": True, "other": True}
    assert not batch_invariance.state.is_active


def test_many_threads_enter_and_leave():
    def enter_often():
        for _ in range(500):
            with rownorm.batch_invariant():
                pass

    threads = [threading.Thread(target=enter_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert batch_invariance.state.n_entered == 0


def test_the_whole_process_has_the_mode():
    seen = []
    rownorm.set_batch_invariant(True)
    try:
        thread = threading.Thread(target=lambda: seen.append(has_mode()))
        thread.start()
        thread.join()
        with rownorm.batch_invariant():
            pass
        assert has_mode()
        assert seen == [True]
    finally:
        rownorm.set_batch_invariant(False)
    assert not has_mode()
    with pytest.raises(TypeError, match="enabled must be True or False; got 1"):
        rownorm.set_batch_invariant(1)


def test_the_variable():
    script = "from rownorm.ops.batch_invariance import state; print(state.is_active)"
    environment = os.environ | {batch_invariance.VARIABLE: "1"}
    printed = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert printed.strip() == "True"


# Every way through the host


@needs_compiler
def test_calls_of_the_mode_and_others_are_kept_apart(way, device, monkeypatch):  # noqa: F811
    """Forward with and without a gradient, and backward: as the options of the call say, whatever was called before."""
    problems = []
    from rownorm.launch import backward, forward, planning

    plan = planning.plan

    def recorded(problem):
        problems.append((problem.direction, problem.batch_invariant))
        return plan(problem)

    for module in (forward, backward):
        monkeypatch.setattr(module, "plan", recorded)
    x = torch.randn(4, 24, device=device)
    layer = rownorm.nn.LayerNorm(24, device=device)

    def step():
        for function in (layer, lambda x: rownorm.rms_norm(x, layer.weight)):
            with torch.no_grad():
                function(x)
            y = function(x.detach().requires_grad_())
            y.sum().backward()

    for _ in range(2):
        step()
        with rownorm.batch_invariant():
            step()
    # Each of two norms is prepared once: forward without a gradient and with one, and backward.
    once = [] if way.startswith("cpu") else ["forward", "forward", "backward"] * 2
    for mode in (False, True):
        assert sorted(of for of, is_on in problems if is_on == mode) == sorted(once)


@needs_compiler
def test_backward_follows_its_forward(way, device):  # noqa: F811
    """In whatever thread it runs, and after the context was left."""
    from rownorm.launch import planning

    x = torch.randn(3, 20, device=device, requires_grad=True)
    with rownorm.batch_invariant():
        y = rownorm.layer_norm(x)
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        from rownorm.launch import backward

        patch.setattr(
            backward, "plan", lambda p: seen.append(p.batch_invariant) or planning.plan(p)
        )
        thread = threading.Thread(target=y.sum().backward)
        thread.start()
        thread.join()
    assert way.startswith("cpu") or seen == [True]
    assert x.grad is not None


# Tracers and torch.compile


def invariant_calls(graph) -> list[bool]:
    """Of each norm in a graph, whether it is computed in the mode."""
    found = []
    for one in graph.graph.nodes:
        if one.op != "call_function" or "rownorm" not in str(one.target):
            continue
        schema = (
            one.target._schema if hasattr(one.target, "_schema") else one.target.default._schema
        )
        names = [argument.name for argument in schema.arguments]
        values = dict(zip(names, one.args, strict=False)) | one.kwargs
        found.append(values.get("batch_invariant", False))
    return found


def test_a_trace_keeps_the_mode(device):
    x = torch.randn(3, 20, device=device)
    assert invariant_calls(make_fx(lambda x: rownorm.rms_norm(x))(x)) == [False]
    with rownorm.batch_invariant():
        graph = make_fx(lambda x: rownorm.rms_norm(x))(x)
    assert invariant_calls(graph) == [True]


def test_a_compiled_function_is_compiled_for_the_mode(device):
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    x = torch.randn(3, 20, device=device)
    compiled = torch.compile(lambda x: rownorm.rms_norm(x), backend=backend, fullgraph=True)
    for _ in range(2):
        compiled(x)
        with rownorm.batch_invariant():
            compiled(x)
    rownorm.set_batch_invariant(True)
    try:
        compiled(x)
    finally:
        rownorm.set_batch_invariant(False)
    assert [invariant_calls(graph) for graph in graphs] == [[False], [True]]


def test_a_context_inside_a_compiled_function(device):
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    def function(x):
        with rownorm.batch_invariant():
            y = rownorm.rms_norm(x)
        return rownorm.layer_norm(y)

    x = torch.randn(3, 20, device=device)
    torch.compile(function, backend=backend, fullgraph=True)(x)
    assert [invariant_calls(graph) for graph in graphs] == [[True, False]]


def test_inductor_keeps_the_operators(device):
    """Its own reductions depend on the number of rows."""
    x = torch.empty(3, 64, device="meta")
    usual = Program(True, 1e-5)
    assert inductor.is_composed(x, usual)
    assert not inductor.is_composed(x, usual._replace(batch_invariant=True))
    inputs = Inputs(x, *[None] * (len(INPUTS) - 1))
    for name, arguments in (("layer_norm", (x,)), ("norm_forward", (*inputs, *usual))):
        operator = getattr(torch.ops.rownorm, name).default
        composed = inductor.decompositions[operator]
        mode = {"batch_invariant": True} if name == "layer_norm" else {}
        invariant = arguments if mode else (*inputs, *usual._replace(batch_invariant=True))
        assert composed(*arguments) is not NotImplemented
        assert composed(*invariant, **mode) is NotImplemented


# On a CPU, as users have it


@pytest.fixture(params=[pytest.param("extension", marks=needs_compiler), "torch"])
def on_a_cpu(request, without_interpreter, monkeypatch):
    """Tensors on a CPU, with the extension and without it."""
    from rownorm.ops import cpu_native, eager

    if request.param == "torch":
        monkeypatch.setattr(cpu_native, "load", lambda: None)
        monkeypatch.setattr(cpu_native, "forward", lambda *_: None)
        monkeypatch.setattr(cpu_native, "backward", lambda *_: None)
    monkeypatch.setattr(eager, "native", eager.Native())
    eager.native._record_by(eager.eager_norm)


def some(tensors, rows):
    present = {n: t for n, t in tensors.items() if t is not None}
    of_rows = {n: t[rows] for n, t in present.items() if n in (*ROWS, "dy", "dh")}
    samples = {n: t.expand_as(tensors["x"])[rows] for n, t in present.items() if n in SAMPLES}
    return tensors | of_rows | samples


def shifted(t):
    memory = torch.empty(t.numel() + 1, dtype=t.dtype)
    return memory[1:].view(t.shape).copy_(t)


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize("case", combinations(seed=4), ids=name_of)
def test_rows_on_a_cpu(case):
    """Any pair of options, with a row far from 0 among others: whether there is one decides what PyTorch computes."""
    n_rows = 9
    case = Case(**{**vars(case), "shape": (n_rows, case.shape[-1])})
    tensors = case.tensors("cpu")
    tensors["x"][4] += 50
    with rownorm.batch_invariant():
        together = ours(case, tensors)
        for rows in (slice(0, 1), slice(8, 9), slice(1, 6), slice(5, 9)):
            alone = ours(case, some(tensors, rows))
            other = {n: shifted(t) if t is not None else t for n, t in some(tensors, rows).items()}
            moved = ours(case, other)
            for name in ("y", "h", "dx", "dresidual", "dgate"):
                if name in together:
                    assert_same_bits(alone[name], together[name][rows])
                    assert_same_bits(moved[name], together[name][rows])


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize("n_rows", [0, 1, 70])
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_shapes_on_a_cpu(activation, n_rows):
    case = Case(True, shape=(2, n_rows, 40), bias=True, residual_dtype=F32, activation=activation)
    tensors = case.tensors("cpu")
    expected = ours(case, tensors)
    with rownorm.batch_invariant():
        results = ours(case, tensors)
    for name, value in expected.items():
        assert results[name].shape == value.shape
        torch.testing.assert_close(results[name], value, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_threads_and_wide_rows_on_a_cpu(dtype):
    """One row of so many columns is divided among threads by PyTorch's reductions, and many rows are not."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        case = Case(False, dtype, shape=(4, 70000))
        tensors = case.tensors("cpu")
        with rownorm.batch_invariant():
            together = ours(case, tensors)
            alone = ours(case, some(tensors, slice(3, 4)))
        for name in ("y", "dx"):
            assert_same_bits(alone[name], together[name][3:])
    finally:
        torch.set_num_threads(before)


def test_explain_says_it():
    x = torch.empty(8, 300000, device="meta")
    text = str(rownorm.explain(rownorm.rms_norm, x, device="sm_90"))
    assert (
        "the number of rows, alignment and strides change the order of sums in forward and" in text
    )
    with rownorm.batch_invariant():
        text = str(rownorm.explain(rownorm.rms_norm, x, device="sm_90"))
    assert "the same bits of a row in any batch" in text
    assert "a row is divided in the same way in any batch" in text
    narrow = rownorm.explain(rownorm.rms_norm, x[:, :1024], device="sm_90")
    assert narrow.batch.startswith("the same bits of a row for any number of rows")
