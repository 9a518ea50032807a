"""Norms with gradients over prepared calls of C, recorded by Python and by C++: they give what the operators give.

Triton's interpreter runs the kernels.
"""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import rownorm
from rownorm.launch import native
from rownorm.ops import execute, library
from support.fake_driver import leaked_blocks, needs_compiler, needs_interpreter

pytestmark = [needs_compiler, needs_interpreter]


def tensors(*, residual=None, n_rows=4, n_cols=24, dtype=torch.float64):
    x = torch.randn(n_rows, n_cols, dtype=dtype).requires_grad_()
    h = None if residual is None else torch.randn(n_rows, n_cols, dtype=residual).requires_grad_()
    parameters = [torch.randn(n_cols, dtype=dtype).requires_grad_() for _ in range(3)]
    return [t for t in (x, h, *parameters) if t is not None]


def norm(center, inputs):
    x, *residual, weight, bias, pre_bias = inputs
    names = ("add_layer_norm", "add_rms_norm") if residual else ("layer_norm", "rms_norm")
    function = getattr(rownorm, names[not center])
    return function(x, *residual, weight, bias, pre_bias=pre_bias)


def through_operator(center, inputs):
    """The same norm through the registered operator."""
    x, *residual, weight, bias, pre_bias = inputs
    name = ("add_" if residual else "") + ("layer_norm" if center else "rms_norm")
    eps = 1e-5 if center else 1e-6
    return getattr(library.operators, name)(x, *residual, weight, bias, pre_bias, eps=eps)


def gradients(outputs, inputs, dy, **options):
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    outputs = [output for output in outputs if output.requires_grad]  # h may not
    return torch.autograd.grad(outputs, inputs, (dy,) * len(outputs), **options)


def second_gradients(inputs, dy):
    """Gradients of the second call with a key: the first call is prepared in Python."""
    gradients(norm(True, inputs), inputs, dy)
    return gradients(norm(True, inputs), inputs, dy)


def assert_left_to_python(driver, expected):
    """What the node in C++ left to Python. Without the node, Python does everything."""
    assert not driver.has_node or driver.in_python == expected


def assert_same(got, expected):
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("residual", [None, torch.float64, torch.float32])
@pytest.mark.parametrize("center", [False, True])
def test_the_usual_call_stays_native(center, residual, eager_in_c):
    dtype = torch.float64 if residual != torch.float32 else torch.bfloat16
    inputs = tensors(residual=residual, dtype=dtype)
    outputs = norm(center, inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    dys = [torch.randn_like(output) for output in outputs]
    expected_outputs = through_operator(center, inputs)
    expected_outputs = (expected_outputs,) if residual is None else expected_outputs
    expected = torch.autograd.grad(expected_outputs, inputs, dys)
    assert_same(torch.autograd.grad(outputs, inputs, dys), expected)
    eager_in_c.in_python.clear()
    for _ in range(3):
        again = norm(center, inputs)
        again = again if isinstance(again, tuple) else (again,)
        assert_same(again, tuple(outputs))
        assert_same(torch.autograd.grad(again, inputs, dys), expected)
    assert_left_to_python(eager_in_c, [])


@pytest.mark.parametrize("residual", [None, torch.float64])
def test_only_needed_gradients_are_computed(residual, eager_in_c):
    inputs = tensors(residual=residual)
    dy = torch.randn(4, 24, dtype=torch.float64)
    expected = gradients(through_operator(True, inputs), inputs, dy)
    for number, one in enumerate(inputs):
        for t in inputs:
            t.requires_grad_(t is one)
        for _ in range(2):
            assert_same(gradients(norm(True, inputs), one, dy), (expected[number],))
            outputs = norm(True, inputs)
            outputs = (outputs,) if residual is None else outputs
            node = outputs[0].grad_fn
            with torch.no_grad():
                dys = [dy for output in outputs if output.requires_grad]
                computed = getattr(node, "apply", node)(*dys)
            assert [t is not None for t in computed].count(True) == 1


UNUSUAL = {
    "strided": lambda dy: torch.stack((dy, dy), dim=-1)[..., 0],
    "expanded": lambda dy: dy[:1].expand(dy.shape),
    "one number": lambda dy: dy[:1, :1].expand(dy.shape),
    "misaligned": lambda dy: torch.cat((dy.flatten()[:1], dy.flatten()))[1:].view(dy.shape),
    "negative": lambda dy: torch._neg_view(-dy),
    "subclass": lambda dy: dy.as_subclass(type("Mine", (torch.Tensor,), {})),
}


@pytest.mark.parametrize("how", UNUSUAL)
def test_unusual_incoming_gradients(how, eager_in_c):
    inputs = tensors()
    usual = torch.randn(4, 24, dtype=torch.float64)
    dys = (UNUSUAL[how](usual), usual)
    expected = [gradients(through_operator(True, inputs), inputs, dy) for dy in dys]
    for _ in range(3):
        for dy, each in zip(dys, expected, strict=True):
            got = gradients(norm(True, inputs), inputs, dy)
            torch.testing.assert_close([*map(torch.Tensor, got)], [*map(torch.Tensor, each)])


def test_gradients_of_transposed_results_stay_native(eager_in_c):
    """As attention returns them for queries and keys: rows in groups, which the kernels read in place."""
    x, weight, bias, pre_bias = tensors()
    x = torch.randn(2, 3, 24, dtype=torch.float64).requires_grad_()
    inputs = [x, weight, bias, pre_bias]
    usual = torch.randn(2, 3, 24, dtype=torch.float64)
    transposed = torch.randn(3, 2, 24, dtype=torch.float64).transpose(0, 1)
    expected = [gradients(through_operator(True, inputs), inputs, dy) for dy in (usual, transposed)]
    for dy in (usual, transposed):
        gradients(norm(True, inputs), inputs, dy)
    eager_in_c.in_python.clear()
    for _ in range(2):
        for dy, each in zip((usual, transposed), expected, strict=True):
            assert_same(gradients(norm(True, inputs), inputs, dy), each)
    assert_left_to_python(eager_in_c, [])


def test_no_gradient_of_y(eager_in_c):
    inputs = tensors(residual=torch.float64)
    dh = torch.randn(4, 24, dtype=torch.float64)
    for _ in range(2):
        got = torch.autograd.grad(norm(False, inputs)[1], inputs[:2], dh)
        assert_same(got, torch.autograd.grad(through_operator(False, inputs)[1], inputs[:2], dh))
    # Backward got None, not zeros.
    assert_left_to_python(eager_in_c, ["backward", "backward"])


def test_h_may_be_changed_in_place_when_only_h_is_used(eager_in_c):
    """Only the gradient of y needs the saved h."""
    x, residual, *_ = tensors(residual=torch.float64)
    _, h = rownorm.add_rms_norm(x, residual)
    h.mul_(3)
    for gradient in torch.autograd.grad(h.sum(), (x, residual)):
        assert_same(gradient, torch.full_like(x, 3))


def test_a_retained_graph_and_a_freed_one(eager_in_c):
    inputs, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    y = norm(True, inputs)
    first = gradients(y, inputs, dy, retain_graph=True)
    assert_same(gradients(y, inputs, dy), first)
    with pytest.raises(RuntimeError, match="second time"):
        gradients(y, inputs, dy)


def test_an_input_modified_in_place(eager_in_c):
    inputs, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    gradients(norm(True, inputs), inputs, dy)
    y = norm(True, inputs)
    with torch.no_grad():
        inputs[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(y, inputs, dy)


def test_a_parameter_that_moved(eager_in_c):
    """The saved tensor is the same object, at another address."""
    inputs, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    expected = gradients(norm(True, inputs), inputs, dy)
    y = norm(True, inputs)
    inputs[1].data = inputs[1].data.clone()
    eager_in_c.in_python.clear()
    assert_same(gradients(y, inputs, dy), expected)
    assert_left_to_python(eager_in_c, ["backward"])


def test_hooks_on_saved_tensors(eager_in_c):
    inputs, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    expected = second_gradients(inputs, dy)
    eager_in_c.in_python.clear()
    packed, unpacked = [], []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(t) or t.clone(), lambda t: unpacked.append(t) or t.clone()
    ):
        y = norm(True, inputs)
    assert len(packed) == 6  # h, pre_bias, weight, bias, mu, rstd
    assert_same(gradients(y, inputs, dy), expected)
    assert len(unpacked) == 6
    assert_left_to_python(eager_in_c, [])


@pytest.mark.parametrize("center", [False, True])
def test_hooks_that_return_other_tensors(center, eager_in_c):
    """Python computes the gradients for other strides, from what the hooks returned the first time."""
    inputs, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    expected = gradients(norm(center, inputs), inputs, dy)
    subclass = type("Mine", (torch.Tensor,), {})
    changes = {
        lambda t: t.t().contiguous().t(): ["backward"],
        lambda t: t.as_subclass(subclass): [],  # it does not define __torch_dispatch__
    }
    for change, left in changes.items():
        unpacked = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: t, lambda t, change=change, unpacked=unpacked: unpacked.append(t) or change(t)
        ):
            y = norm(center, inputs)
        eager_in_c.in_python.clear()
        torch.testing.assert_close(gradients(y, inputs, dy), expected)
        assert_left_to_python(eager_in_c, left)
        assert len(unpacked) == (6 if center else 5)


def test_hooks_own_the_statistics(eager_in_c):
    """A hook that moves what is saved, to the host for example, frees the tensor that it was given."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(weakref.ref(t)) or t.clone(), lambda t: t
    ):
        y = norm(True, tensors())
    gc.collect()
    assert [ref() for ref in kept[-2:]] == [None, None]  # the leaves stay in the graph
    y.sum().backward()


@pytest.mark.parametrize("center", [False, True])
def test_activation_checkpointing(center, eager_in_c):
    inputs, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    expected = gradients(norm(center, inputs), inputs, dy)
    for _ in range(2):
        y = checkpoint(lambda *inputs: norm(center, inputs), *inputs, use_reentrant=False)
        assert_same(gradients(y, inputs, dy), expected)


def test_compiled_autograd(eager_in_c):
    """Python reads and traces what was saved for backward."""
    inputs, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    expected = second_gradients(inputs, dy)
    y = norm(True, inputs)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        (2 * y).backward(dy / 2)  # while it is traced, the product's gradient has no shape yet
    assert_same([t.grad for t in inputs], [*expected])


def with_shift(shift):
    return lambda x, _, weight, bias: rownorm.rms_norm(x, weight, bias, weight_shift=shift)


@pytest.mark.parametrize(
    "functions",
    [
        (
            lambda x, _, weight, bias: rownorm.rms_norm(x, weight, pre_bias=bias),
            lambda x, r, weight, bias: rownorm.add_rms_norm(x, r, weight, pre_bias=bias)[0],
        ),
        (with_shift(-1.0), with_shift(-2.0)),  # in Python, hash(-1.0) == hash(-2.0)
    ],
    ids=["residual", "equal hashes"],
)
def test_compiled_autograd_tells_norms_apart(functions, eager_in_c):
    x, weight, bias, _ = tensors()
    residual, dy = torch.randn_like(x), torch.randn(4, 24, dtype=torch.float64)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        compiled = [
            torch.autograd.grad(function(x * 1, residual, weight, bias), (x, weight, bias), dy)
            for function in functions
        ]
    for function, got in zip(functions, compiled, strict=True):
        y = function(x * 1, residual, weight, bias)
        assert_same(got, torch.autograd.grad(y, (x, weight, bias), dy))


def test_second_derivatives_batches_and_transforms(eager_in_c):
    inputs = tensors(n_rows=2, n_cols=5)
    norm(True, inputs).sum().backward()
    assert torch.autograd.gradcheck(lambda *inputs: norm(True, inputs), inputs)
    assert torch.autograd.gradgradcheck(lambda *inputs: norm(True, inputs), inputs)
    dys = torch.randn(3, 2, 5, dtype=torch.float64)
    (batched,) = torch.autograd.grad(norm(True, inputs), inputs[0], dys, is_grads_batched=True)
    for dy, dx in zip(dys, batched, strict=True):
        torch.testing.assert_close(gradients(norm(True, inputs), inputs[0], dy)[0], dx)
    plain = [t.detach() for t in inputs]
    loss = lambda *inputs: norm(True, inputs).square().sum()  # noqa: E731
    torch.testing.assert_close(
        torch.func.grad(loss)(*plain), torch.autograd.grad(loss(*inputs), inputs[0])[0]
    )


def test_changed_plans_are_found_again(eager_in_c):
    """Also by a graph that was built before."""
    inputs, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    expected = second_gradients(inputs, dy)
    y = norm(True, inputs)
    asked, find = [], execute.find_backward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "find_backward", lambda *inputs: asked.append(1) or find(*inputs))
        assert_same(gradients(norm(True, inputs), inputs, dy), expected)
        assert not asked
        with rownorm.launch.force(regime="split", block_cols=8, part_cols=16):
            torch.testing.assert_close(gradients(y, inputs, dy), expected)
        assert asked


def test_launches_with_hooks_are_done_in_python(eager_in_c, monkeypatch):
    inputs, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    expected = gradients(norm(True, inputs), inputs, dy)
    y = norm(True, inputs)
    hooks = SimpleNamespace(calls=[print])
    monkeypatch.setattr(native.knobs.runtime, "launch_enter_hook", hooks)
    eager_in_c.in_python.clear()
    eager_in_c.launched.clear()
    assert_same(norm(True, inputs), y)
    assert_same(gradients(y, inputs, dy), expected)
    assert_left_to_python(eager_in_c, ["forward", "backward"])
    assert not eager_in_c.launched


def test_no_rows(eager_in_c):
    inputs = tensors(n_rows=0)
    dy = torch.randn(0, 24, dtype=torch.float64)
    for _ in range(2):
        assert_same(
            gradients(norm(True, inputs), inputs, dy),
            gradients(through_operator(True, inputs), inputs, dy),
        )


def test_bad_input_raises_the_usual_errors(eager_in_c):
    x = torch.randn(4, 24, requires_grad=True)
    with pytest.raises(ValueError, match="weight must have shape"):
        rownorm.rms_norm(x, torch.randn(5))
    with pytest.raises(TypeError, match="eps"):
        rownorm.rms_norm(x, torch.randn(24), eps=[1])


@pytest.mark.parametrize("residual", [None, torch.float64])
def test_nothing_leaks_from_training(residual, eager_in_c):
    inputs, dy = tensors(residual=residual, n_rows=1), torch.randn(1, 24, dtype=torch.float64)
    eager_in_c.on_launch = None

    def repeat():
        gradients(norm(True, inputs), inputs, dy)
        eager_in_c.launched.clear()

    assert leaked_blocks(repeat) < 0.5


def test_a_default_device_and_a_profiler_stay_native(eager_in_c):
    """Python only opens the entry of the profiler, and disables the mode of the default device."""
    inputs = tensors()
    expected = torch.autograd.grad(norm(True, inputs), inputs, torch.ones_like(inputs[0]))
    eager_in_c.in_python.clear()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        y = norm(True, inputs)
        assert_same(torch.autograd.grad(y, inputs, torch.ones_like(y)), expected)
    assert_left_to_python(eager_in_c, [])
    names = [event.name for event in profile.events() if event.name.startswith("rownorm::")]
    assert names == ["rownorm::layer_norm", "rownorm::norm_backward"]
    with torch.device("meta"):
        y = norm(True, inputs)
        assert_same(torch.autograd.grad(y, inputs, torch.ones_like(y)), expected)
    assert_left_to_python(eager_in_c, [])


@pytest.mark.parametrize("shape", [(2, 1, 24), (24,), (2, 5, 24)], ids=str)
def test_a_modulated_call_stays_native(shape, eager_in_c):
    """Its tensors are in the keys and saved in C and C++, as views of one projection."""
    x = torch.randn(2, 5, 24, dtype=torch.float64, requires_grad=True)
    projection = torch.randn(*shape[:-1], 48, dtype=torch.float64, requires_grad=True)

    def norm(function):
        scale, shift = projection.chunk(2, dim=-1)
        return function(x, scale=scale, shift=shift, scale_shift=1.0)

    dy, leaves = torch.randn(2, 5, 24, dtype=torch.float64), (x, projection)
    gradients(norm(rownorm.layer_norm), leaves, dy)  # the first call is prepared in Python
    eager_in_c.in_python.clear()
    y = norm(rownorm.layer_norm)
    assert_same(y, norm(library.operators.layer_norm))
    assert_same(gradients(y, leaves, dy), gradients(norm(library.operators.layer_norm), leaves, dy))
    assert_left_to_python(eager_in_c, [])
