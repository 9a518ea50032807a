"""``rownorm.functional``: the signatures, defaults and results of ``torch.nn.functional``."""

import inspect
import re

import pytest
import torch
import torch.nn.functional as F

import rownorm

NAMES = ("layer_norm", "rms_norm")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
every_norm = pytest.mark.parametrize("name", NAMES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def both(name, *arguments, **options):
    """(ours, torch's)."""
    return tuple(getattr(m, name)(*arguments, **options) for m in (rownorm.functional, F))


def parameters(name, shape, **options):
    """The parameters after ``normalized_shape``: weight and, for LayerNorm, bias."""
    return [torch.randn(shape, **options) for _ in range(2 if name == "layer_norm" else 1)]


def assert_within_roundings(actual, expected):
    """Both values were rounded once, possibly in different directions."""
    eps = torch.finfo(actual.dtype).eps
    slack = 8 * eps if actual.dtype in (torch.float32, torch.float64) else eps
    torch.testing.assert_close(actual, expected, rtol=2 * slack, atol=slack)


@every_norm
def test_signature(name):
    ours = inspect.signature(getattr(rownorm.functional, name)).parameters
    torchs = inspect.signature(getattr(F, name)).parameters
    assert list(ours) == [*torchs, "out_dtype"]
    for parameter in torchs.values():
        mine = ours[parameter.name]
        assert (mine.kind, mine.default) == (parameter.kind, parameter.default)


@every_norm
@every_dtype
@pytest.mark.parametrize(
    ("shape", "n_dims"),
    [((4, 10), 1), ((10,), 1), ((2, 3, 10), 1), ((3, 2, 5), 2), ((2, 5), 2), ((2, 1, 3, 2), 3)],
)
def test_numbers(name, dtype, shape, n_dims, device):
    x = torch.randn(shape, device=device, dtype=dtype)
    normalized_shape = shape[-n_dims:]
    given = parameters(name, normalized_shape, device=device, dtype=dtype)
    assert_within_roundings(*both(name, x, normalized_shape))
    assert_within_roundings(*both(name, x, normalized_shape, *given))
    assert_within_roundings(*both(name, x, list(normalized_shape), given[0], eps=0.1))


@every_norm
@pytest.mark.parametrize("n_dims", [1, 2])
def test_gradients(name, n_dims, device):
    options = {"device": device, "dtype": torch.float64}
    x = torch.randn(3, 2, 5, **options).requires_grad_()
    shape = x.shape[-n_dims:]
    inputs = (x, *(p.requires_grad_() for p in parameters(name, shape, **options)))
    ours, torchs = (
        torch.autograd.grad(y.sin().sum(), inputs) for y in both(name, x, shape, *inputs[1:])
    )
    torch.testing.assert_close(ours, torchs)


@every_dtype
def test_default_eps_of_rms_norm(dtype, device):
    """Rows near the machine epsilon of torch's compute dtype, where another eps changes the result."""
    computed = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    x = torch.randn(4, 16, dtype=torch.float64).mul(computed**0.5).to(device, dtype)
    actual, expected = both("rms_norm", x, (16,))
    assert_within_roundings(actual, expected)
    other = rownorm.rms_norm(x, eps=4 * computed)
    assert (other - expected).abs().max() > 0.1, "this test could not tell"


@every_norm
@pytest.mark.parametrize("n_dims", [1, 2])
def test_layouts(name, n_dims, device):
    """Strided, transposed, expanded, channels last: the same result as for a contiguous copy."""
    base = torch.randn(4, 6, 6, 6, device=device)
    for x in (
        base[..., ::2],
        base[:, :, 1:5],
        base.transpose(-1, -2),
        base.transpose(0, -1),
        base[:1, :1].expand(2, 3, 6, 6),
        base[..., :1].expand(4, 6, 6, 6),
        base.to(memory_format=torch.channels_last),
    ):
        ours = getattr(rownorm.functional, name)
        shape = x.shape[-n_dims:]
        expected = ours(x.contiguous(), shape)
        torch.testing.assert_close(ours(x, shape), expected, rtol=0, atol=0)


@every_norm
def test_no_rows(name, device):
    ours, torchs = both(name, torch.empty(0, 3, 4, device=device), (4,))
    assert ours.shape == torchs.shape == (0, 3, 4)


@every_norm
def test_wrong_shapes_raise(name, device):
    x, function = torch.randn(2, 3, 4, device=device), getattr(rownorm.functional, name)
    operation = f"rownorm.functional.{name}"
    with pytest.raises(ValueError, match=f"{operation}: normalized_shape must name at least one"):
        function(x, ())
    with pytest.raises(ValueError, match=f"{operation}: normalized_shape must be the last"):
        function(x, (3,))
    with pytest.raises(ValueError, match=f"{operation}: normalized_shape must be the last"):
        function(x, (1, 2, 3, 4))
    with pytest.raises(ValueError, match=rf"{operation}: weight must have shape \(3, 4\)"):
        function(x, (3, 4), torch.ones(12, device=device))


@every_norm
def test_several_dimensions_are_one_row(name, device):
    """A contiguous input is not copied."""
    x = torch.randn(3, 2, 5, device=device)
    over_two = getattr(rownorm.functional, name)(x, (2, 5), eps=1e-3)
    over_one = getattr(rownorm, name)(x.flatten(1), eps=1e-3)
    torch.testing.assert_close(over_two.flatten(1), over_one, rtol=0, atol=0)


@every_norm
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((None, (8,)), "input must be a torch.Tensor; got NoneType"),
        (([1.0] * 8, (8,)), "input must be a torch.Tensor; got list"),
        ((torch.ones(2, 8), (8,), [1.0] * 8), "weight must be a torch.Tensor; got list"),
        ((torch.ones(2, 8), 8), "must be a tuple or a list of sizes; got 8. Pass (8,)."),
        ((torch.ones(2, 8), None), "must be a tuple or a list of sizes; got None."),
    ],
    ids=["input None", "input list", "weight list", "shape integer", "shape None"],
)
def test_types_that_are_wrong(name, arguments, words):
    with pytest.raises(TypeError, match=f"rownorm.functional.{name}: .*{re.escape(words)}"):
        getattr(rownorm.functional, name)(*arguments)


@pytest.mark.parametrize("module", [rownorm.nn.LayerNorm, rownorm.nn.RMSNorm])
def test_a_module_of_no_tensor(module):
    with pytest.raises(TypeError, match=r"input must be a torch\.Tensor; got NoneType"):
        module(8)(None)
