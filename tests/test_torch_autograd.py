"""Autograd: first and second derivatives, the tensors that are saved, and every way to request gradients."""

import contextlib
import itertools

import pytest
import torch
from helpers import _torch_activation
from norm_cases import COLS, ROWS, every_case, few_cases, full_cases, gradients, same_bits
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import rownorm
from rownorm.launch import force
from rownorm.ops import execute
from rownorm.program import ACTIVATIONS

REGIMES = {
    "tile": {"regime": "tile", "block_rows": 2},
    "resident": {"regime": "resident"},
    "looped": {"regime": "looped", "block_cols": 2},
    "split": {"regime": "split", "block_cols": 2, "part_cols": 2},
}
every_regime = pytest.mark.parametrize("settings", REGIMES.values(), ids=REGIMES)


def tiny(case, device):
    """fp64 leaves of few elements: each of them costs a check two calls."""
    return case.tensors(device, torch.float64, rows=(2,), cols=3, requires_grad=True)


@full_cases
@every_regime
def test_gradcheck_in_every_regime(case, settings, device):
    with force(**settings):
        assert gradcheck(case.positional, tuple(tiny(case, device).values()), fast_mode=True)


@few_cases
def test_gradcheck(case, device):
    """Every element of the Jacobian, and gradients that come in batches."""
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
    """What is asked for is what it is when everything is asked for."""
    tensors = case.tensors(device, requires_grad=True)
    everything = dict(zip(tensors, gradients(case(**tensors), tensors), strict=True))
    names = case.tensor_names
    subsets = itertools.chain.from_iterable(
        itertools.combinations(names, size) for size in range(1, len(names))
    )
    for subset in subsets:
        given = {name: t.detach().requires_grad_(name in subset) for name, t in tensors.items()}
        outputs = case(**given)
        assert outputs[0].requires_grad
        expected = tuple(everything[name] for name in subset)
        torch.testing.assert_close(gradients(outputs, given), expected)


@full_cases
def test_only_requested_gradients_are_computed(case, device, monkeypatch):
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
    # One tensor each; a residual of x's dtype has x's gradient.
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
def test_where_only_h_is_used_the_norm_does_not_change_the_gradient(operator, device):
    """Weight and bias get no gradient, and rows with no finite norm cause no nan."""
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
def test_h_modified_in_place_where_only_h_is_used(operator, device):
    """The norm would need it as it was; its own gradient does not."""
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
    """Gradients have the dtypes of what they are gradients of."""
    x = torch.randn(ROWS, COLS, device=device, dtype=torch.bfloat16, requires_grad=True)
    residual = torch.randn(ROWS, COLS, device=device, requires_grad=True)
    y, h = getattr(rownorm, operator)(x, residual)
    assert (y.dtype, h.dtype) == (torch.bfloat16, torch.float32)
    dx, dresidual = torch.autograd.grad(y.float().sin().sum() + h.sin().sum(), (x, residual))
    assert (dx.dtype, dresidual.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(dx.float(), dresidual, rtol=2**-7, atol=0)


@pytest.mark.parametrize("change", ["x", "h", "weight"])
def test_changing_what_was_saved_is_an_error(change, device):
    x, residual = (torch.randn(ROWS, COLS, device=device) for _ in range(2))
    weight = torch.randn(COLS, device=device, requires_grad=True)
    if change == "h":
        y, h = rownorm.add_rms_norm(x, residual, weight)
        h.add_(1)
    else:
        y = rownorm.rms_norm(x, weight)
        with torch.no_grad():
            {"x": x, "weight": weight}[change].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@full_cases
def test_outputs_that_are_not_saved_may_be_modified(case, device):
    tensors = case.tensors(device, torch.float64, requires_grad=True)
    y = case(**tensors)[0]
    y.mul_(2)
    expected = gradients((2 * case.expected(*tensors.values())[0],), tensors)
    torch.testing.assert_close(gradients((y,), tensors), expected)


def saved_by(call):
    saved = []

    def pack(t):
        saved.append(t)
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        call()
    return saved


@full_cases
def test_what_is_saved(case, device):
    """x or h, the parameters, and one or two numbers a row."""
    tensors = case.tensors(device, requires_grad=True)
    outputs = []
    saved = saved_by(lambda: outputs.extend(case(**tensors)))
    n_statistics = 2 if case.operator.endswith("layer_norm") else 1
    rows = outputs[1] if "residual" in tensors else tensors["x"]
    expected = {t.data_ptr() for t in (rows, *(tensors[name] for name in case.parameters))}
    statistics = [t for t in saved if t.data_ptr() not in expected]
    assert len(saved) == len(expected) + n_statistics
    assert [t.shape for t in statistics] == [(ROWS,)] * n_statistics


@pytest.fixture
def found(monkeypatch):
    """The calls of ``execute.find_backward``, starting without prepared calls."""
    looked = []
    find = execute.find_backward

    def spy(*arguments):
        looked.append(arguments)
        return find(*arguments)

    monkeypatch.setattr(execute, "find_backward", spy)
    execute._forget()
    return looked


@full_cases
def test_backward_is_prepared_once(case, device, found):
    """And once more for another layout of dy, or for other gradients."""
    tensors = case.tensors(device, requires_grad=True)
    outputs = case(**tensors)
    dense = [torch.randn_like(output) for output in outputs]
    strided = [torch.cat([dy, dy], -1)[..., :COLS] for dy in dense]
    for incoming, times in ((dense, 1), (dense, 1), (strided, 2), (strided, 2), (dense, 2)):
        torch.autograd.grad(outputs, tuple(tensors.values()), incoming, retain_graph=True)
        assert len(found) == times
    gradients(case(**tensors | {"x": tensors["x"].detach()}), tensors | {"x": tensors["weight"]})
    assert len(found) == 3


def elsewhere(t):
    """The same numbers at another address, with another stride."""
    room = t.new_empty(2 * t.numel() + 1)[1:].view(*t.shape[:-1], 2 * t.shape[-1])
    return room[..., ::2].copy_(t) if t.dim() == 1 else room[..., : t.shape[-1]].copy_(t)


@full_cases
def test_saved_tensors_that_return_at_another_address(case, device):
    """Through hooks around forward, through hooks on saved tensors, or because a parameter has moved."""
    tensors = case.tensors(device, requires_grad=True)
    expected = gradients(case(**tensors), tensors)  # prepares the calls
    with saved_tensors_hooks(lambda t: t, elsewhere):
        outputs = case(**tensors)
    same_bits(gradients(outputs, tensors), expected)

    outputs = case(**tensors)
    for saved in outputs[0].grad_fn._raw_saved_tensors:
        if saved is not None:
            with contextlib.suppress(RuntimeError):  # nothing was saved here
                saved.register_hooks(lambda t: t.detach(), elsewhere)
    same_bits(gradients(outputs, tensors), expected)

    outputs = case(**tensors)
    weight = tensors["weight"]
    weight.data = elsewhere(weight.detach())
    same_bits(gradients(outputs, tensors), expected)


def test_saved_rows_that_return_at_the_same_address(device):
    """A slice of wider rows returns from a hook as a contiguous tensor at the same address."""
    room = torch.randn(ROWS, 2 * COLS, device=device)
    weight = torch.randn(COLS, device=device, requires_grad=True)
    x = room[:, :COLS].requires_grad_()
    (expected,) = torch.autograd.grad(rownorm.rms_norm(x, weight).sin().sum(), weight)

    def pack(t):
        return t.clone() if t.shape == x.shape else t

    def unpack(t):
        if t.shape != x.shape:
            return t
        with torch.no_grad():
            return room.flatten()[: t.numel()].view(t.shape).copy_(t)

    with saved_tensors_hooks(pack, unpack):
        y = rownorm.rms_norm(x, weight)
    dy = y.detach().cos()
    (dweight,) = torch.autograd.grad(y, weight, dy)
    same_bits((dweight,), (expected,))


def test_a_new_plan_between_forward_and_backward(device, found):
    x = torch.randn(ROWS, COLS, device=device, dtype=torch.float64, requires_grad=True)
    y, dy = rownorm.rms_norm(x), torch.randn_like(x)
    (expected,) = torch.autograd.grad(y, x, dy, retain_graph=True)
    with force(**REGIMES["looped"]):
        (dx,) = torch.autograd.grad(y, x, dy)
    torch.testing.assert_close(dx, expected)
    assert len(found) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU's memory is counted")
@full_cases
def test_memory_held_for_backward(case, device):
    """Beside the outputs: the statistics, 4 bytes a row each."""
    rows, cols = 4096, 512
    tensors = case.tensors(device, rows=(rows,), cols=cols, requires_grad=True)
    case(**tensors)
    before = torch.cuda.memory_allocated()
    outputs = case(**tensors)
    held = torch.cuda.memory_allocated() - before
    n_statistics = 2 if case.operator.endswith("layer_norm") else 1
    assert held == len(outputs) * rows * cols * 4 + n_statistics * rows * 4


@full_cases
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("through", ["function", "operator"])
def test_nothing_is_saved_without_gradients(case, mode, through, device, monkeypatch):
    statistics = []
    find = execute.find_forward

    def spy(*arguments):
        statistics.append(arguments[-1])
        return find(*arguments)

    monkeypatch.setattr(execute, "find_forward", spy)
    tensors = case.tensors(device, requires_grad=True)
    namespace = rownorm if through == "function" else torch.ops.rownorm
    with mode():
        call = getattr(namespace, case.operator)
        assert saved_by(lambda: call(**tensors, **case.options)) == []
    assert statistics == [False]


@full_cases
def test_nothing_is_saved_where_nothing_requires_grad(case, device):
    tensors = case.tensors(device)
    assert saved_by(lambda: case(**tensors)) == []
    assert not any(output.requires_grad for output in case(**tensors))


@every_case
def test_inference_tensors(case, device):
    tensors = case.tensors(device)
    with torch.inference_mode():
        outputs = case(**tensors)
        assert all(output.is_inference() for output in outputs)
        # An inference tensor is an input like any other.
        again = case(**{**tensors, "x": outputs[0]})
    same_bits(outputs, case(**tensors))
    same_bits(again, case(**{**tensors, "x": outputs[0].clone()}))
    with torch.inference_mode():
        frozen = case.tensors(device)
    assert not case(**frozen)[0].requires_grad


@few_cases
@pytest.mark.parametrize("use_reentrant", [False, True], ids=["hooks", "reentrant"])
def test_activation_checkpointing(case, use_reentrant, device):
    tensors = case.tensors(device, requires_grad=True)
    inputs = tuple(tensors.values())

    def block(*inputs):
        first, *rest = case.positional(*inputs)
        return case.positional(first.sin(), *rest, *inputs[1 + len(rest) :])

    def gradients_of(outputs):  # by backward(): reentrant checkpointing supports no other way
        for t in inputs:
            t.grad = None
        sum(output.sin().sum() for output in outputs).backward()
        return tuple(t.grad for t in inputs)

    expected = gradients_of(block(*inputs))
    outputs = []
    kept = saved_by(lambda: outputs.extend(checkpoint(block, *inputs, use_reentrant=use_reentrant)))
    kept = [
        t for t in kept if t.numel()
    ]  # the hooks of checkpoint may save an empty tensor of their own
    assert all(any(t is given for given in inputs) for t in kept)
    if (
        use_reentrant
    ):  # its first forward runs without gradients, by a kernel that keeps no statistics
        torch.testing.assert_close(gradients_of(outputs), expected)
    else:
        same_bits(gradients_of(outputs), expected)


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
    """A tensor may be the negative of what its memory holds (``is_neg``)."""
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
def test_fp64_rows_with_a_gradient_of_16_bits_alone(activation, settings, device):
    x = torch.randn(ROWS, COLS, device=device, dtype=torch.float64)
    weight = torch.randn(COLS, device=device, dtype=torch.float16, requires_grad=True)
    with force(**settings):
        y = rownorm.rms_norm(x, weight, eps=1e-6, activation=activation)
        (found,) = torch.autograd.grad(y.sum(), weight)
    scaled = torch.nn.functional.rms_norm(x, (COLS,), eps=1e-6) * weight.double()
    (expected,) = torch.autograd.grad(_torch_activation(activation, scaled).sum(), weight)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)
