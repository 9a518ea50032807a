"""What autograd saves for backward, how saved tensors are used, and when backward is prepared again."""

import contextlib

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import rownorm
from rownorm.ops import execute
from support.operators import COLS, ROWS, every_case, few_cases, full_cases, gradients, same_bits
from support.regimes import forced


@pytest.mark.parametrize("change", ["x", "h", "weight"])
def test_changing_a_saved_tensor_in_place_is_an_error(change, device):
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
def test_y_may_be_changed_in_place(case, device):
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
def test_saved_tensors_are_rows_parameters_and_statistics(case, device):
    """x or h, the parameters, and one or two statistics per row. A residual_gate needs x beside h."""
    tensors = case.tensors(device, requires_grad=True)
    outputs = []
    saved = saved_by(lambda: outputs.extend(case(**tensors)))
    n_statistics = 2 if case.operator.endswith("layer_norm") else 1
    rows = [outputs[1] if "residual" in tensors else tensors["x"]]
    rows += [tensors["x"]] if "residual_gate" in tensors else []
    expected = {t.data_ptr() for t in (*rows, *(tensors[name] for name in case.parameters))}
    statistics = [t for t in saved if t.data_ptr() not in expected]
    assert len(saved) == len(expected) + n_statistics
    assert [t.shape for t in statistics] == [(ROWS,)] * n_statistics


@pytest.fixture
def found(monkeypatch):
    """The calls of ``find_backward``, which a prepared call avoids. Prepared calls of earlier tests are dropped."""
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
    """Another layout of dy or another set of requested gradients is prepared separately."""
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
    """A copy at another, misaligned address, with a larger stride."""
    room = t.new_empty(2 * t.numel() + 1)[1:].view(*t.shape[:-1], 2 * t.shape[-1])
    return room[..., ::2].copy_(t) if t.dim() == 1 else room[..., : t.shape[-1]].copy_(t)


@full_cases
def test_saved_tensors_may_be_unpacked_at_another_address(case, device):
    """By hooks around forward, by hooks on saved tensors, or because the data of a parameter moved."""
    tensors = case.tensors(device, requires_grad=True)
    expected = gradients(case(**tensors), tensors)  # prepares the calls
    with saved_tensors_hooks(lambda t: t, elsewhere):
        outputs = case(**tensors)
    same_bits(gradients(outputs, tensors), expected)

    outputs = case(**tensors)
    # A node of C++ has no such attribute.
    for saved in getattr(outputs[0].grad_fn, "_raw_saved_tensors", ()):
        if saved is not None:
            with contextlib.suppress(RuntimeError):  # this one is empty
                saved.register_hooks(lambda t: t.detach(), elsewhere)
    same_bits(gradients(outputs, tensors), expected)

    outputs = case(**tensors)
    weight = tensors["weight"]
    weight.data = elsewhere(weight.detach())
    same_bits(gradients(outputs, tensors), expected)


def test_saved_rows_may_be_unpacked_with_another_stride(device):
    """x is a slice of wider rows. A hook returns it contiguous, at the same address."""
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
    with forced("looped"):
        (dx,) = torch.autograd.grad(y, x, dy)
    torch.testing.assert_close(dx, expected)
    assert len(found) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="memory statistics need a GPU")
@full_cases
def test_memory_held_for_backward(case, device):
    """Beside the outputs, only the statistics are allocated: 4 bytes per row each."""
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
    execute._forget()  # C asks Python only for calls that it does not know
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
        # An inference tensor is a valid input.
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

    def gradients_of(outputs):  # by backward(): reentrant checkpoints support nothing else
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
    ):  # its first forward runs without gradients, so the kernel stores no statistics
        torch.testing.assert_close(gradients_of(outputs), expected)
    else:
        same_bits(gradients_of(outputs), expected)
