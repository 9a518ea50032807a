"""Norms of rownorm and the same by torch, for tests that compare how both behave."""

import pytest
import torch
import torch.nn.functional as F

import rownorm

ROWS, COLS = 3, 8


def torch_layer_norm(x, weight=None, bias=None, eps=1e-5):
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def torch_rms_norm(x, weight=None, eps=1e-6):
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def torch_add_layer_norm(x, residual, weight=None, bias=None, pre_bias=None):
    h = residual + (x if pre_bias is None else x + pre_bias)
    return torch_layer_norm(h, weight, bias), h


def torch_add_rms_norm(x, residual, weight=None, pre_bias=None):
    h = residual + (x if pre_bias is None else x + pre_bias)
    return torch_rms_norm(h, weight), h


# A norm of rownorm, the same by torch, and the names of its tensors.
FORMS = {
    "layer_norm": (rownorm.layer_norm, torch_layer_norm, ("x", "weight", "bias")),
    "rms_norm": (rownorm.rms_norm, torch_rms_norm, ("x", "weight")),
    "add_layer_norm": (
        rownorm.add_layer_norm,
        torch_add_layer_norm,
        ("x", "residual", "weight", "bias", "pre_bias"),
    ),
    "add_rms_norm": (
        rownorm.add_rms_norm,
        torch_add_rms_norm,
        ("x", "residual", "weight", "pre_bias"),
    ),
}
every_form = pytest.mark.parametrize("form", FORMS)
# With a mean and without, with a residual and without: for tests that take long.
different_forms = pytest.mark.parametrize("form", ["layer_norm", "add_rms_norm"])
plain_forms = pytest.mark.parametrize("form", ["layer_norm", "rms_norm"])


def make(names, device, requires_grad=True, dtype=torch.float32):
    """Tensors by name, the same for every call with these arguments."""
    generator = torch.Generator(device).manual_seed(7)
    shapes = {"x": (ROWS, COLS), "residual": (ROWS, COLS)}
    return {
        name: torch.randn(
            shapes.get(name, (COLS,)), device=device, dtype=dtype, generator=generator
        ).requires_grad_(requires_grad)
        for name in names
    }


def outputs_of(function, tensors):
    outputs = function(**tensors)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def gradients(outputs, tensors, **options):
    """Gradients of all tensors, None for those without one."""
    total = sum(output.sin().sum() for output in outputs if output.requires_grad)
    inputs = [t for t in tensors.values() if t.requires_grad]
    return torch.autograd.grad(total, inputs, allow_unused=True, **options)


def outputs_with_gradients(function, tensors):
    outputs = outputs_of(function, tensors)
    return *outputs, *gradients(outputs, tensors)


def assert_close(got, expected):
    assert [t is None for t in got] == [t is None for t in expected]
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)


def both(form, device, **options):
    """(function, tensors) for rownorm and for torch, with equal tensors."""
    ours, torchs, names = FORMS[form]
    return (ours, make(names, device, **options)), (torchs, make(names, device, **options))


def assert_alike(form, device, run):
    """``run(function, tensors)`` gives the same tensors for both."""
    ours, torchs = both(form, device)
    for _ in range(2):  # the second call finds what the first one prepared
        assert_close(run(*ours), run(*torchs))
