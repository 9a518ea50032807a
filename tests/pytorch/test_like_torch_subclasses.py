"""Tensor subclasses, transforms, functional tensors and default devices: norms behave as torch's own, in every way."""

import pytest
import torch
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.func import functional_call, functionalize, grad, jvp, vmap
from torch.utils._pytree import tree_leaves, tree_map_only

import rownorm
from support.fake_driver import needs_compiler
from support.like_torch import (
    COLS,
    FORMS,
    ROWS,
    assert_alike,
    assert_close,
    both,
    different_forms,
    gradients,
    make,
    outputs_of,
    plain_forms,
)
from support.native_fixtures import ON_GPU

pytestmark = [needs_compiler, pytest.mark.usefixtures("way")]


class Plain(torch.Tensor):
    """Results of its functions are of this class, too: so torch.Tensor defines it."""


class Quiet(torch.Tensor):
    """Results of its functions are tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class Named(torch.Tensor):
    """Its results say where they are from."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        results = super().__torch_function__(function, types, args, kwargs)
        for one in results if isinstance(results, tuple) else (results,):
            if isinstance(one, Named):
                one.origin = "a result"
        return results


class Scale(torch.nn.Parameter):
    """A parameter of a class of its own, as libraries of quantization have."""


class Wrapped(torch.Tensor):
    """It has no memory of its own, and sees the operators."""

    @staticmethod
    def __new__(cls, tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            tensor.shape,
            dtype=tensor.dtype,
            device=tensor.device,
            requires_grad=tensor.requires_grad,
        )

    def __init__(self, tensor):
        self.tensor = tensor.detach()

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(Wrapped, lambda t: t.tensor, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, Wrapped, operator(*args, **kwargs))


SUBCLASSES = {
    "plain": lambda t: t.detach().as_subclass(Plain),
    "quiet": lambda t: t.detach().as_subclass(Quiet),
    "named": lambda t: t.detach().as_subclass(Named),
    "parameter": lambda t: Scale(t.detach()),
    "buffer": lambda t: torch.nn.Buffer(t.detach()),
    "wrapped": lambda t: Wrapped(t.detach()),
}


def unwrapped(t):
    return t.tensor if isinstance(t, Wrapped) else t


@different_forms
@pytest.mark.parametrize("subclass", SUBCLASSES)
def test_subclasses(form, subclass, device):
    """Of the rows, of the weight, or of all tensors: results and gradients are of torch's classes."""
    ours, torchs, names = FORMS[form]

    def run(function, chosen, requires_grad):
        tensors = {
            n: SUBCLASSES[subclass](t) if n in chosen else t
            for n, t in make(names, device, False).items()
        }
        for t in tensors.values():
            t.requires_grad_(requires_grad)
        outputs = outputs_of(function, tensors)
        if requires_grad:
            sum(y.sin().sum() for y in outputs).backward()
        return outputs, [t.grad for t in tensors.values() if requires_grad]

    for chosen, requires_grad in ((names, False), (("x",), True), (("weight",), True)):
        (got, of_ours), (expected, of_torch) = (
            run(function, chosen, requires_grad) for function in (ours, torchs)
        )
        # y and h are results of one function, so they are of one class; torch's h does not depend on the weight.
        assert {type(t) for t in got} == {type(expected[0])}
        assert [type(t) for t in of_ours] == [type(t) for t in of_torch]
        assert [t.requires_grad for t in got] == [t.requires_grad for t in expected]
        assert {vars(t).get("origin") for t in got} == {vars(expected[0]).get("origin")}
        assert_close(
            [unwrapped(t) for t in (*got, *of_ours)],
            [unwrapped(t) for t in (*expected, *of_torch)],
        )


def all_of(transform):
    """A transform of a function, with respect to all its arguments."""
    return lambda f, *tensors: transform(f, tuple(range(len(tensors))))(*tensors)


def batched(tensors):
    return tuple(torch.stack((t, t.cos())) for t in tensors)


def of_each_row(transform):
    """Rows are mapped over, parameters are shared."""
    return lambda f, *tensors: vmap(transform(f), (0, *[None] * (len(tensors) - 1)))(*tensors)


def with_respect_to_weight(f):
    return grad(lambda *tensors: f(*tensors).sin().sum(), 1)


TRANSFORMS = {
    "grad": lambda f, *ts: all_of(grad)(lambda *t: f(*t).sin().sum(), *ts),
    "jvp": lambda f, *ts: jvp(f, ts, tuple(t.cos() for t in ts)),
    "vmap": lambda f, *ts: vmap(f)(*(torch.stack((t, t.cos())) for t in ts)),
    "gradients of each row": of_each_row(with_respect_to_weight),
    "functionalize": lambda f, *ts: functionalize(with_respect_to_weight(f))(*ts),
}


def composed_layer_norm(x, weight, bias):
    deviation = x - x.mean(-1, keepdim=True)
    return deviation * (deviation.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight + bias


def composed_rms_norm(x, weight):
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


@plain_forms
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(form, transform, device):
    """Their results, and gradients through them.

    F.layer_norm loses a part of the gradients: its mean and deviation have no derivative in most transforms. On a GPU
    torch has an RMSNorm in one kernel, which need not have a rule for each transform.
    """
    ours, torchs, names = FORMS[form]
    composed = composed_layer_norm if form == "layer_norm" else composed_rms_norm
    tensors = tuple(make(names, device, dtype=torch.float64).values())

    def run(function):
        return tree_leaves(TRANSFORMS[transform](function, *tensors))

    def through(found):
        total = sum(t.sin().sum() for t in found if t.requires_grad)
        return torch.autograd.grad(total, tensors, allow_unused=True)

    got = run(ours)
    expected = run(composed)
    assert_close(got, expected)
    assert_close(through(got), through(expected))
    if not ON_GPU:
        assert_close(got, run(torchs))


MODULES = (
    (rownorm.nn.LayerNorm, torch.nn.LayerNorm),
    (rownorm.nn.RMSNorm, torch.nn.RMSNorm),
)


@pytest.mark.parametrize(("ours", "torchs"), MODULES, ids=["LayerNorm", "RMSNorm"])
def test_functional_calls_of_modules(ours, torchs, device):
    def run(kind):
        module = kind(COLS, eps=1e-5, device=device)
        tensors = make(("x", *dict(module.named_parameters())), device)
        x = tensors.pop("x")
        loss = lambda parameters: functional_call(module, parameters, x).sin().sum()  # noqa: E731
        return *grad(loss)(tensors).values(), *gradients(
            (functional_call(module, tensors, x),), {"x": x, **tensors}
        )

    assert_close(run(ours), run(torchs))


@different_forms
def test_functional_tensors(form, device):
    """As torch.compile and torch.export trace with."""

    def run(function, tensors):
        with FunctionalTensorMode():
            functional = {
                n: FunctionalTensor.to_functional(t.detach()).requires_grad_(t.requires_grad)
                for n, t in tensors.items()
            }
            outputs = outputs_of(function, functional)
            found = *outputs, *gradients(outputs, functional)
            assert all(type(t) is FunctionalTensor for t in found)
            return [torch._from_functional_tensor(t.elem) for t in found]

    assert_alike(form, device, run)


@different_forms
def test_a_default_device(form, device):
    """Set once, as a program does; tensors and gradients stay where they are."""

    def run(function, tensors):
        outputs = outputs_of(function, tensors)
        return *outputs, *gradients(outputs, tensors)

    (ours, tensors), torchs = both(form, device)
    expected = run(*torchs)
    torch.set_default_device("meta")
    try:
        got = [run(ours, tensors) for _ in range(2)]
    finally:
        torch.set_default_device(None)
    for one in got:
        assert_close(one, expected)


@pytest.mark.parametrize(("ours", "torchs"), MODULES, ids=["LayerNorm", "RMSNorm"])
def test_modules_on_a_default_device(ours, torchs):
    def run(kind):
        with torch.device("meta"):
            module = kind(COLS)
            y = module(torch.ones(ROWS, COLS))
            y.sum().backward()
        return y, module.weight, module.weight.grad

    for one, other in zip(run(ours), run(torchs), strict=True):
        assert (one.device, one.shape, type(one)) == (other.device, other.shape, type(other))
