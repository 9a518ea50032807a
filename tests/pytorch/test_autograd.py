"""Autograd: first and second derivatives, and every way to request them."""

import itertools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import rownorm
from rownorm.launch import force
from rownorm.ops import execute
from rownorm.program import ACTIVATIONS
from support.operators import COLS, ROWS, every_case, few_cases, full_cases, gradients, same_bits
from support.torch_answers import torch_activation

REGIMES = {
    "tile": {"regime": "tile", "block_rows": 2},
    "resident": {"regime": "resident"},
    "looped": {"regime": "looped", "block_cols": 2},
    "split": {"regime": "split", "block_cols": 2, "part_cols": 2},
}
every_regime = pytest.mark.parametrize("settings", REGIMES.values(), ids=REGIMES)


def tiny(case, device):
    """fp64 leaves with few elements, because gradcheck calls the function twice per element."""
    return case.tensors(device, torch.float64, rows=(2,), cols=3, requires_grad=True)


@full_cases
@every_regime
def test_gradcheck_in_every_regime(case, settings, device):
    with force(**settings):
        assert gradcheck(case.positional, tuple(tiny(case, device).values()), fast_mode=True)


@few_cases
def test_gradcheck(case, device):
    """Every element of the Jacobian, and batched gradients."""
    inputs = tuple(tiny(case, device).values())
    assert gradcheck(case.positional, inputs, check_batched_grad=True)


@full_cases
def test_gradcheck_in_forward_mode(case, device):
    inputs = tuple(tiny(case, device).values())
    assert gradcheck(case.positional, inputs, fast_mode=True, check_forward_ad=True)


@every_case
def test_gradgradcheck(case, device):
    inputs = tuple(tiny(case, device).values())
    assert gradgradcheck(case.positional, inputs, fast_mode=True)


@full_cases
@every_regime
def test_second_order_in_every_regime(case, settings, device):
    inputs = tuple(tiny(case, device).values())

    def second_order(function):
        first = torch.autograd.grad(function(*inputs), inputs, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), inputs)

    with force(**settings):
        actual = second_order(case.scalar)
    torch.testing.assert_close(actual, second_order(case.expected_scalar))


@few_cases
def test_any_combination_of_inputs_requires_grad(case, device):
    """A requested gradient does not depend on which others are requested: any of few inputs; of many one, two, and all
    but one.
    """
    tensors = case.tensors(device, requires_grad=True)
    everything = dict(zip(tensors, gradients(case(**tensors), tensors), strict=True))
    names = case.tensor_names
    sizes = range(1, len(names)) if len(names) < 6 else (1, 2, len(names) - 1)
    subsets = itertools.chain.from_iterable(itertools.combinations(names, size) for size in sizes)
    for subset in subsets:
        given = {name: t.detach().requires_grad_(name in subset) for name, t in tensors.items()}
        outputs = case(**given)
        assert outputs[0].requires_grad
        expected = tuple(everything[name] for name in subset)
        torch.testing.assert_close(gradients(outputs, given), expected)


@full_cases
def test_gradients_that_are_not_requested_are_not_computed(case, device, monkeypatch):
    asked = []
    find = execute.find_backward

    def spy(*arguments):
        asked.append(arguments[-1])
        return find(*arguments)

    monkeypatch.setattr(execute, "find_backward", spy)
    execute._forget()
    for name in case.tensor_names:
        tensors = {n: t.requires_grad_(n == name) for n, t in case.tensors(device).items()}
        gradients(case(**tensors), tensors)
    # One tensor each. A residual with the dtype of x shares the gradient of x.
    assert [sum(wanted) for wanted in asked] == [1] * len(case.tensor_names)


@full_cases
def test_gradients_are_right(case, device):
    tensors = case.tensors(device, torch.float64, rows=(2, 3), requires_grad=True)
    actual = gradients(case(**tensors), tensors)
    expected = gradients(case.expected(*tensors.values()), tensors)
    torch.testing.assert_close(actual, expected)


@full_cases
def test_inputs_that_are_not_leaves(case, device):
    leaves = case.tensors(device, torch.float64, requires_grad=True)

    def through(function):
        outputs = function(*(2 * t for t in leaves.values()))
        return gradients(outputs, leaves)

    torch.testing.assert_close(through(case.positional), through(case.expected))


@full_cases
def test_strided_and_expanded_gradients(case, device):
    tensors = case.tensors(device, torch.float64, strided=True, requires_grad=True)
    inputs = tuple(tensors.values())
    outputs, expected = case(**tensors), case.expected(*inputs)
    rows, cols = outputs[0].shape
    for dy in (
        torch.randn(cols, rows, device=device, dtype=torch.float64).t(),
        torch.randn(rows, 2 * cols, device=device, dtype=torch.float64)[:, ::2],
        torch.randn(rows, 1, device=device, dtype=torch.float64).expand(rows, cols),
        torch.ones((), device=device, dtype=torch.float64).expand(rows, cols),
    ):
        torch.testing.assert_close(
            torch.autograd.grad(outputs, inputs, [dy] * len(outputs), retain_graph=True),
            torch.autograd.grad(expected, inputs, [dy] * len(outputs), retain_graph=True),
        )


add_operators = pytest.mark.parametrize("operator", ["add_layer_norm", "add_rms_norm"])


@add_operators
@pytest.mark.parametrize("used", ["y", "h", "both"])
def test_either_output_may_be_used(operator, used, device):
    x, residual = (
        torch.randn(ROWS, COLS, device=device, dtype=torch.float64, requires_grad=True)
        for _ in range(2)
    )
    norm = getattr(rownorm, operator.removeprefix("add_"))

    def loss(y, h):
        chosen = {"y": (y,), "h": (h,), "both": (y, h)}[used]
        return sum(t.sin().sum() for t in chosen)

    actual = torch.autograd.grad(loss(*getattr(rownorm, operator)(x, residual)), (x, residual))
    expected = torch.autograd.grad(loss(norm(x + residual), x + residual), (x, residual))
    torch.testing.assert_close(actual, expected)


@add_operators
def test_gradient_of_h_alone_does_not_involve_the_norm(operator, device):
    """Weight and bias get no gradient, and rows with infinities or zeros give no NaN."""
    x, residual = (torch.randn(ROWS, COLS, device=device) for _ in range(2))
    x[0, 0], x[1], residual[1] = float("inf"), 0, 0
    x = x.half()
    weight, bias, pre_bias = (torch.randn(COLS, device=device) for _ in range(3))
    pre_bias = pre_bias.bfloat16()
    inputs = [t.requires_grad_() for t in (x, residual, pre_bias, weight, bias)]
    _, h = getattr(rownorm, operator)(x, residual, weight, bias, pre_bias=pre_bias, eps=0.0)
    dh = torch.randn_like(residual)
    dx, dresidual, dpre_bias, *of_the_norm = torch.autograd.grad(
        h, inputs, dh, allow_unused=True, create_graph=True
    )
    assert of_the_norm == [None, None]
    assert torch.equal(dx, dh.half())
    assert torch.equal(dresidual, dh)
    assert dpre_bias.dtype == torch.bfloat16
    torch.testing.assert_close(dpre_bias, dh.sum(0).bfloat16())


@add_operators
def test_h_may_be_changed_in_place_when_only_h_is_used(operator, device):
    """Only the gradient of y needs the saved h."""
    x, residual = (torch.randn(ROWS, COLS, device=device, requires_grad=True) for _ in range(2))
    _, h = getattr(rownorm, operator)(x, residual)
    h.mul_(3)
    dx, dresidual = torch.autograd.grad(h.sum(), (x, residual))
    assert torch.equal(dx, torch.full_like(x, 3))
    assert torch.equal(dresidual, dx)


@add_operators
def test_one_tensor_as_x_and_residual(operator, device):
    x = torch.randn(ROWS, COLS, device=device, dtype=torch.float64, requires_grad=True)
    norm = getattr(rownorm, operator.removeprefix("add_"))
    y, h = getattr(rownorm, operator)(x, x)
    (actual,) = torch.autograd.grad((y * h).sum(), x)
    (expected,) = torch.autograd.grad((norm(2 * x) * 2 * x).sum(), x)
    torch.testing.assert_close(actual, expected)


@add_operators
def test_residual_stream_of_another_dtype(operator, device):
    """A gradient has the dtype of its tensor."""
    x = torch.randn(ROWS, COLS, device=device, dtype=torch.bfloat16, requires_grad=True)
    residual = torch.randn(ROWS, COLS, device=device, requires_grad=True)
    y, h = getattr(rownorm, operator)(x, residual)
    assert (y.dtype, h.dtype) == (torch.bfloat16, torch.float32)
    dx, dresidual = torch.autograd.grad(y.float().sin().sum() + h.sin().sum(), (x, residual))
    assert (dx.dtype, dresidual.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(dx.float(), dresidual, rtol=2**-7, atol=0)


@full_cases
def test_training_step_through_a_gradient(case, device):
    """A gradient penalty: the loss contains the norm of a gradient."""
    tensors = case.tensors(device, torch.float64, requires_grad=True)
    inputs = tuple(tensors.values())

    def penalized(function):
        for t in inputs:
            t.grad = None
        value = function(*inputs)
        (dx,) = torch.autograd.grad(value, inputs[0], create_graph=True)
        (value + dx.norm()).backward()
        return tuple(t.grad for t in inputs)

    torch.testing.assert_close(penalized(case.scalar), penalized(case.expected_scalar))


@full_cases
def test_gradients_in_batches(case, device):
    """``is_grads_batched``, which a vectorized ``torch.autograd.functional.jacobian`` uses."""
    tensors = case.tensors(device, torch.float64, requires_grad=True)
    inputs, last = tuple(tensors.values()), -1  # of y, or of h alone
    batch = torch.randn(4, ROWS, COLS, device=device, dtype=torch.float64)
    actual = torch.autograd.grad(
        case(**tensors)[last], inputs, batch, is_grads_batched=True, allow_unused=True
    )
    singly = [
        torch.autograd.grad(case(**tensors)[last], inputs, dy, allow_unused=True) for dy in batch
    ]
    for together, *one_by_one in zip(actual, *singly, strict=True):
        if together is None:
            assert one_by_one == [None] * len(batch)
        else:
            torch.testing.assert_close(together, torch.stack(one_by_one))


@full_cases
def test_gradients_accumulate_and_graphs_are_kept(case, device):
    tensors = case.tensors(device, torch.float64, requires_grad=True)
    value = case.scalar(*tensors.values())
    value.backward(retain_graph=True)
    once = [t.grad.clone() for t in tensors.values()]
    value.backward()
    same_bits([t.grad for t in tensors.values()], [2 * g for g in once])
    with pytest.raises(RuntimeError, match="second time"):
        value.backward()


@full_cases
def test_hooks_see_the_gradients(case, device):
    tensors = case.tensors(device, requires_grad=True)
    seen = {}
    for name, t in tensors.items():
        t.register_hook(lambda g, name=name: seen.setdefault(name, g.clone()))
    expected = gradients(case(**tensors), tensors)
    same_bits(tuple(seen[name] for name in tensors), expected)


@full_cases
def test_negated_views(case, device):
    """Views whose elements are the negatives of their memory (``is_neg``)."""
    tensors = case.tensors(device, requires_grad=True)
    outputs = case(**tensors)
    expected = gradients(outputs, tensors)
    for name, t in tensors.items():
        negated = torch._neg_view(-t.detach()).requires_grad_()
        assert negated.is_neg()
        given = {**tensors, name: negated}
        same_bits(case(**given), outputs)
        same_bits(gradients(case(**given), given), expected)


@full_cases
def test_negated_gradients(case, device):
    tensors = case.tensors(device, requires_grad=True)
    inputs, outputs = tuple(tensors.values()), case(**tensors)
    dy = [torch.randn_like(output) for output in outputs]
    negated = [torch._neg_view(-t) for t in dy]
    same_bits(
        torch.autograd.grad(outputs, inputs, negated, retain_graph=True),
        torch.autograd.grad(outputs, inputs, dy),
    )


@every_regime
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_fp64_rows_with_a_16_bit_parameter_gradient_only(activation, settings, device):
    x = torch.randn(ROWS, COLS, device=device, dtype=torch.float64)
    weight = torch.randn(COLS, device=device, dtype=torch.float16, requires_grad=True)
    with force(**settings):
        y = rownorm.rms_norm(x, weight, eps=1e-6, activation=activation)
        (found,) = torch.autograd.grad(y.sum(), weight)
    scaled = torch.nn.functional.rms_norm(x, (COLS,), eps=1e-6) * weight.double()
    (expected,) = torch.autograd.grad(torch_activation(activation, scaled).sum(), weight)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)
