"""Scale and shift: shapes that broadcast to x in every way, strided views, and sums over the rows that share them."""

import pytest
import torch

import rownorm
from rownorm.launch import force
from rownorm.launch.problem import Samples, sample_shape, sharing
from rownorm.launch.rows import sample_strides
from support.cases import Case, call, ours, outputs_and_gradients
from support.criterion import assert_case, assert_same_bits
from support.regimes import forced

N_COLS = 40
# Those that have kernels with scale and shift in the interpreter; a cluster's backward needs a GPU.
REGIMES = ("tile", "resident", "looped", "split")
# x, scale, shift: of several samples, places, both, neither, each row its own, and broadcast between two dimensions or
# along the columns.
SHAPES = [
    ((3, 5), (3, 1, N_COLS), (3, 1, N_COLS)),
    ((2, 3, 2), (2, 1, 1, N_COLS), (2, 1, 1, N_COLS)),
    ((3, 5), (5, N_COLS), (1, 5, N_COLS)),
    ((2, 3, 2), (3, 1, N_COLS), (3, 1, N_COLS)),
    ((3, 5), (N_COLS,), (1, 1, N_COLS)),
    ((3, 5), (3, 5, N_COLS), (3, 5, N_COLS)),
    ((2, 3, 2), (2, 1, 2, N_COLS), (2, 1, 2, N_COLS)),
    ((3, 5), (3, 1, N_COLS), (N_COLS,)),
    ((3, 5), (3, 1, N_COLS), (5, N_COLS)),
    ((3, 5), (3, 1, 1), ()),
    ((3, 1, 5), (3, 1, 1, N_COLS), None),
    ((3, 5), None, (3, 1, N_COLS)),
    ((), (N_COLS,), (N_COLS,)),
]


def modulated(x, scale, shift, **options):
    scale_shift = 0.0 if scale is None else 1.0
    return rownorm.layer_norm(x, scale=scale, shift=shift, scale_shift=scale_shift, **options)


def by_torch(x, scale, shift):
    z = torch.nn.functional.layer_norm(x, x.shape[-1:])
    z = z if scale is None else z * (1 + scale)
    return z if shift is None else z + shift


def compare(x, scale, shift, function=modulated):
    """The results of a function and of PyTorch, in fp64, with the gradients of all tensors."""
    leaves = [t for t in (x, scale, shift) if t is not None]
    y = function(x, scale, shift)
    expected = by_torch(x, scale, shift)
    dy = torch.randn_like(y)
    torch.testing.assert_close(y, expected)
    gradients = torch.autograd.grad(y, leaves, dy)
    for own, torchs in zip(gradients, torch.autograd.grad(expected, leaves, dy), strict=True):
        torch.testing.assert_close(own, torchs)


def leaf(shape, device):
    if shape is None:
        return None
    return torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True)


@pytest.mark.parametrize(("rows", "scale", "shift"), SHAPES, ids=str)
def test_shapes_that_broadcast(rows, scale, shift, device):
    x = leaf((*rows, N_COLS), device)
    with force(n_programs=3):
        compare(x, leaf(scale, device), leaf(shift, device))


@pytest.mark.parametrize("extent", ["samples", "places", "rows"])
@pytest.mark.parametrize("regime", REGIMES)
def test_as_accurate_as_torch(regime, extent, device):
    """Four programs and seven rows of a sample: spans of different lengths. Every pair of norm and extent occurs."""
    case = Case(
        (REGIMES.index(regime) + len(extent)) % 2 == 0,
        torch.bfloat16,
        (2, 7, 70),
        weight=False,
        scale=extent,
        shift=extent,
        scale_shift=1.0,
    )
    with forced(regime, n_programs=4):
        assert_case(case, case.tensors(device), batches=4)


@pytest.mark.parametrize("regime", REGIMES)
def test_beside_everything_else(regime, device):
    case = Case(
        True,
        shape=(2, 5, 70),
        residual_dtype=torch.bfloat16,
        bias=True,
        pre_bias=True,
        activation="silu",
        scale="samples",
        shift="samples",
        weight_shift=1.0,
    )
    with forced(regime, n_programs=3):
        assert_case(case, case.tensors(device), batches=4)


@pytest.mark.parametrize("regime", REGIMES)
def test_one_gradient_and_the_same_bits(regime, device):
    """Whatever else is computed, and every time."""
    case = Case(True, shape=(2, 5, 40), scale="samples", shift="samples")
    tensors = case.tensors(device)
    with forced(regime, n_programs=3):
        every, again = ours(case, tensors), ours(case, tensors)
        for name, value in every.items():
            assert_same_bits(value, again[name])
        for wanted in ("x", "scale", "shift"):
            one = outputs_and_gradients(lambda inputs: call(case, inputs), tensors, (wanted,))
            assert_same_bits(one[f"d{wanted}"], every[f"d{wanted}"])


def test_chunks_of_a_projection_are_read_in_place(device):
    """As a DiT block has them: six vectors for each sample, side by side."""
    x = leaf((3, 5, N_COLS), device)
    projection = leaf((3, 1, 6 * N_COLS), device)
    shift, scale, *_ = projection.chunk(6, dim=-1)
    assert sample_strides(x.shape, (scale, shift)) == (6 * N_COLS, 6 * N_COLS)
    y = modulated(x, scale, shift)
    expected = by_torch(x, scale, shift)
    torch.testing.assert_close(y, expected)
    dy = torch.randn_like(y)
    for own, torchs in zip(
        torch.autograd.grad(y, (x, projection), dy),
        torch.autograd.grad(expected, (x, projection), dy),
        strict=True,
    ):
        torch.testing.assert_close(own, torchs)


def test_layouts_that_are_copied(device):
    x = leaf((3, 5, N_COLS), device)
    transposed = leaf((N_COLS, 3, 1), device).permute(1, 2, 0)
    every_second = leaf((3, 1, 2 * N_COLS), device)[..., ::2]
    expanded = leaf((3, 1, N_COLS), device).expand(3, 5, N_COLS)
    for scale, shift in ((transposed, every_second), (expanded, None), (None, expanded)):
        compare(x, scale, shift)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_another_dtype_than_x(dtype, device):
    case = Case(
        False, torch.bfloat16, (2, 3, 40), parameter_dtype=dtype, scale="samples", shift="columns"
    )
    assert_case(case, case.tensors(device), batches=4)


def test_a_gradient_is_rounded_once_after_all_rows_are_summed(device):
    """Also where shift is expanded for the kernels, because scale has another shape."""
    x = torch.zeros(64, 4, 8, dtype=torch.bfloat16, device=device)
    scale = torch.zeros(64, 1, 8, dtype=torch.bfloat16, device=device)
    shift = torch.zeros(8, dtype=torch.bfloat16, device=device, requires_grad=True)
    dy = torch.rand(64, 4, 8, device=device).bfloat16()
    (dshift,) = torch.autograd.grad(modulated(x, scale, shift), shift, dy)
    assert torch.equal(dshift, dy.float().sum((0, 1)).bfloat16())


@pytest.mark.parametrize("rows", [(0, 5), (3, 0)])
def test_no_rows(rows, device):
    x = leaf((*rows, N_COLS), device)
    scale, shift = leaf((rows[0], 1, N_COLS), device), leaf((N_COLS,), device)
    y = modulated(x, scale, shift)
    gradients = torch.autograd.grad(y.sum(), (x, scale, shift))
    assert [g.shape for g in gradients] == [x.shape, scale.shape, shift.shape]
    assert not any(g.any() for g in gradients)


def test_rows_of_a_sample():
    def samples(x_shape, *shapes):
        tensors = [torch.empty(shape, device="meta") for shape in shapes]
        return sample_shape(x_shape, tensors), sharing(x_shape, tensors)

    assert samples((4, 6, 8), (4, 1, 8)) == ((4, 1, 8), Samples(6, 4))
    assert samples((4, 6, 8), (6, 8)) == ((1, 6, 8), Samples(1, 6))
    assert samples((4, 6, 8), (8,)) == ((1, 1, 8), Samples(24, 1))
    assert samples((4, 6, 8), (4, 6, 8)) == ((4, 6, 8), Samples(1, 24))
    assert samples((2, 3, 4, 8), (3, 1, 8)) == ((1, 3, 1, 8), Samples(4, 3))
    assert samples((2, 3, 4, 8), (2, 1, 4, 8)) == ((2, 3, 4, 8), Samples(1, 24))
    assert samples((2, 3, 4, 8), (2, 1, 1, 8), (3, 1, 8)) == ((2, 3, 1, 8), Samples(4, 6))
    assert samples((4, 1, 8), (1, 8)) == ((1, 1, 8), Samples(4, 1))
    assert sharing((4, 8), (None, None)) is None
