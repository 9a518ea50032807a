"""The autograd function in C, with kernels that Triton's interpreter runs: it gives what the operators give."""

from types import SimpleNamespace

import pytest
import torch
from fake_driver import left_behind, needs_compiler, needs_interpreter

import rownorm
from rownorm.launch import native
from rownorm.ops import execute, library

pytestmark = [needs_compiler, needs_interpreter]


def tensors(*, residual=None, n_rows=4, n_cols=24, dtype=torch.float64):
    x = torch.randn(n_rows, n_cols, dtype=dtype).requires_grad_()
    h = None if residual is None else torch.randn(n_rows, n_cols, dtype=residual).requires_grad_()
    parameters = [torch.randn(n_cols, dtype=dtype).requires_grad_() for _ in range(3)]
    return [t for t in (x, h, *parameters) if t is not None]


def norm(center, given):
    x, *residual, weight, bias, pre_bias = given
    names = ("add_layer_norm", "add_rms_norm") if residual else ("layer_norm", "rms_norm")
    function = getattr(rownorm, names[not center])
    return function(x, *residual, weight, bias, pre_bias=pre_bias)


def long_way(center, given):
    """The same through the operator."""
    x, *residual, weight, bias, pre_bias = given
    name = ("add_" if residual else "") + ("layer_norm" if center else "rms_norm")
    eps = 1e-5 if center else 1e-6
    return getattr(library.operators, name)(x, *residual, weight, bias, pre_bias, eps=eps)


def gradients(outputs, inputs, dy, **options):
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.autograd.grad(outputs, inputs, (dy,) * len(outputs), **options)


def gradients_in_c(given, dy):
    """Of a norm whose kind was met before: the first call of it is Python's."""
    gradients(norm(True, given), given, dy)
    return gradients(norm(True, given), given, dy)


def assert_same(got, expected):
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("residual", [None, torch.float64, torch.float32])
@pytest.mark.parametrize("center", [False, True])
def test_the_usual_call_stays_in_c(center, residual, eager_in_c):
    dtype = torch.float64 if residual != torch.float32 else torch.bfloat16
    given = tensors(residual=residual, dtype=dtype)
    outputs = norm(center, given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    dys = [torch.randn_like(output) for output in outputs]
    expected_outputs = long_way(center, given)
    expected_outputs = (expected_outputs,) if residual is None else expected_outputs
    expected = torch.autograd.grad(expected_outputs, given, dys)
    assert_same(torch.autograd.grad(outputs, given, dys), expected)
    eager_in_c.in_python.clear()
    for _ in range(3):
        again = norm(center, given)
        again = again if isinstance(again, tuple) else (again,)
        assert_same(again, tuple(outputs))
        assert_same(torch.autograd.grad(again, given, dys), expected)
    assert eager_in_c.in_python == []


@pytest.mark.parametrize("residual", [None, torch.float64])
def test_only_what_is_needed_is_made(residual, eager_in_c):
    given = tensors(residual=residual)
    dy = torch.randn(4, 24, dtype=torch.float64)
    expected = gradients(long_way(True, given), given, dy)
    for number, one in enumerate(given):
        for t in given:
            t.requires_grad_(t is one)
        for _ in range(2):
            assert_same(gradients(norm(True, given), one, dy), (expected[number],))
            outputs = norm(True, given)
            node = (outputs if residual is None else outputs[0]).grad_fn
            with torch.no_grad():
                made = node.apply(dy, *([] if residual is None else [dy]))
            assert [t is not None for t in made].count(True) == 1


UNUSUAL = {
    "strided": lambda dy: torch.stack((dy, dy), dim=-1)[..., 0],
    "expanded": lambda dy: dy[:1].expand(dy.shape),
    "misaligned": lambda dy: torch.cat((dy.flatten()[:1], dy.flatten()))[1:].view(dy.shape),
    "negative": lambda dy: torch._neg_view(-dy),
    "subclass": lambda dy: dy.as_subclass(type("Mine", (torch.Tensor,), {})),
}


@pytest.mark.parametrize("how", UNUSUAL)
def test_gradients_that_come_in_otherwise(how, eager_in_c):
    given = tensors()
    usual = torch.randn(4, 24, dtype=torch.float64)
    dys = (UNUSUAL[how](usual), usual)
    expected = [gradients(long_way(True, given), given, dy) for dy in dys]
    for _ in range(3):
        for dy, each in zip(dys, expected, strict=True):
            got = gradients(norm(True, given), given, dy)
            torch.testing.assert_close([*map(torch.Tensor, got)], [*map(torch.Tensor, each)])


def test_no_gradient_of_y(eager_in_c):
    given = tensors(residual=torch.float64)
    dh = torch.randn(4, 24, dtype=torch.float64)
    for _ in range(2):
        got = torch.autograd.grad(norm(False, given)[1], given[:2], dh)
        assert_same(got, torch.autograd.grad(long_way(False, given)[1], given[:2], dh))
    # The second forward was in C; its backward got None, not zeros.
    assert eager_in_c.in_python == ["forward", "backward", "backward"]


def test_a_graph_that_is_kept_and_one_that_is_gone(eager_in_c):
    given, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    y = norm(True, given)
    first = gradients(y, given, dy, retain_graph=True)
    assert_same(gradients(y, given, dy), first)
    with pytest.raises(RuntimeError, match="second time"):
        gradients(y, given, dy)


def test_an_input_that_was_written_to(eager_in_c):
    given, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    gradients(norm(True, given), given, dy)
    y = norm(True, given)
    with torch.no_grad():
        given[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(y, given, dy)


def test_a_parameter_that_moved(eager_in_c):
    """The saved tensor is the same object, at another address."""
    given, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    expected = gradients(norm(True, given), given, dy)
    y = norm(True, given)
    given[1].data = given[1].data.clone()
    eager_in_c.in_python.clear()
    assert_same(gradients(y, given, dy), expected)
    assert eager_in_c.in_python == ["backward"]


def test_hooks_on_saved_tensors(eager_in_c):
    given, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    expected = gradients_in_c(given, dy)
    eager_in_c.in_python.clear()
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(t) or t.clone(), lambda t: t.clone()
    ):
        y = norm(True, given)
    assert packed
    assert_same(gradients(y, given, dy), expected)
    assert eager_in_c.in_python == ["forward", "backward"]


def test_compiled_autograd(eager_in_c):
    """What C left for backward is read by Python, traced."""
    given, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    expected = gradients_in_c(given, dy)
    y = norm(True, given)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        y.backward(dy)
    assert_same([t.grad for t in given], [*expected])


def test_second_derivatives_batches_and_transforms(eager_in_c):
    given = tensors(n_rows=2, n_cols=5)
    norm(True, given).sum().backward()
    assert torch.autograd.gradcheck(lambda *given: norm(True, given), given)
    assert torch.autograd.gradgradcheck(lambda *given: norm(True, given), given)
    dys = torch.randn(3, 2, 5, dtype=torch.float64)
    (batched,) = torch.autograd.grad(norm(True, given), given[0], dys, is_grads_batched=True)
    for dy, dx in zip(dys, batched, strict=True):
        torch.testing.assert_close(gradients(norm(True, given), given[0], dy)[0], dx)
    plain = [t.detach() for t in given]
    loss = lambda *given: norm(True, given).square().sum()  # noqa: E731
    torch.testing.assert_close(
        torch.func.grad(loss)(*plain), torch.autograd.grad(loss(*given), given[0])[0]
    )


def test_changed_plans_are_found_again(eager_in_c):
    """Also by a graph that was made before."""
    given, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    expected = gradients_in_c(given, dy)
    y = norm(True, given)
    asked, find = [], execute.find_backward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "find_backward", lambda *given: asked.append(1) or find(*given))
        assert_same(gradients(norm(True, given), given, dy), expected)
        assert not asked
        with rownorm.launch.force(regime="split", block_cols=8, part_cols=16):
            torch.testing.assert_close(gradients(y, given, dy), expected)
        assert asked


def test_launches_that_somebody_listens_to(eager_in_c, monkeypatch):
    given, dy = tensors(), torch.randn(4, 24, dtype=torch.float64)
    expected = gradients(norm(True, given), given, dy)
    y = norm(True, given)
    hooks = SimpleNamespace(calls=[print])
    monkeypatch.setattr(native.knobs.runtime, "launch_enter_hook", hooks)
    eager_in_c.in_python.clear()
    eager_in_c.launched.clear()
    assert_same(norm(True, given), y)
    assert_same(gradients(y, given, dy), expected)
    assert eager_in_c.in_python == ["forward", "backward"]
    assert not eager_in_c.launched


def test_no_rows(eager_in_c):
    given = tensors(n_rows=0)
    dy = torch.randn(0, 24, dtype=torch.float64)
    for _ in range(2):
        assert_same(
            gradients(norm(True, given), given, dy), gradients(long_way(True, given), given, dy)
        )


def test_bad_input_has_its_words(eager_in_c):
    x = torch.randn(4, 24, requires_grad=True)
    with pytest.raises(ValueError, match="weight must have shape"):
        rownorm.rms_norm(x, torch.randn(5))
    with pytest.raises(TypeError, match="eps"):
        rownorm.rms_norm(x, torch.randn(24), eps=[1])


@pytest.mark.parametrize("residual", [None, torch.float64])
def test_nothing_leaks_from_training(residual, eager_in_c):
    given, dy = tensors(residual=residual, n_rows=1), torch.randn(1, 24, dtype=torch.float64)
    eager_in_c.on_launch = None

    def repeat():
        gradients(norm(True, given), given, dy)
        eager_in_c.launched.clear()

    assert left_behind(repeat) < 0.5
