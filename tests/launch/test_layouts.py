"""Padded, sliced, transposed, expanded and misaligned tensors. Rows with one or two strides are not copied."""

import pytest
import torch

import rownorm
from rownorm import launch
from support.cases import Case, ours
from support.criterion import assert_case, assert_same_bits
from support.regimes import REGIMES, forced

ROWS = ("x", "residual", "dy", "dh")


def padded(t):
    wide = t.new_full((*t.shape[:-1], t.shape[-1] + 5), float("nan"))
    wide[..., : t.shape[-1]] = t
    return wide[..., : t.shape[-1]]


def every_other_row(t):
    tall = t.new_full((2 * t.shape[0], *t.shape[1:]), float("nan"))
    tall[::2] = t
    return tall[::2]


def misaligned(t):
    flat = t.new_full((t.numel() + 1,), float("nan"))
    flat[1:] = t.flatten()
    return flat[1:].view(t.shape)


def one_row_repeated(t):
    return t[:1].expand(t.shape)


def cut_from_more_rows(t):
    """Rows without a constant stride: one within a block, another from block to block."""
    more = torch.cat([t, torch.full_like(t, float("nan"))], dim=-2)
    return more[..., : t.shape[-2], :]


def transposed(t):
    return t.transpose(-1, -2).contiguous().transpose(-1, -2)


def permuted(t):
    return t.transpose(0, 1).contiguous().transpose(0, 1)


def heads(t):
    """The middle third of a projection: (..., heads, columns) with one stride for tokens, another for heads."""
    fused = t.new_full((*t.shape[:-2], 3, *t.shape[-2:]), float("nan"))
    fused[..., 1, :, :] = t
    return fused[..., 1, :, :]


def heads_before_tokens(t):
    """(batch, tokens, heads, columns) with a stride for each: what attention computes, seen as heads of tokens."""
    return t.transpose(1, 2).contiguous().transpose(1, 2)


def channels_last(t):
    return t.contiguous(memory_format=torch.channels_last)


def every_other_column(t):
    return t.repeat_interleave(2, dim=-1)[..., ::2]


def one_number_repeated(t):
    return t[..., :1].expand(t.shape)


IN_PLACE = [
    ((4, 30), padded),
    ((2, 3, 30), padded),
    ((4, 33), every_other_row),
    ((4, 30), misaligned),
    ((3, 37), misaligned),
    ((4, 30), one_row_repeated),
    ((4, 1), padded),
    ((1, 30), padded),
    ((2, 1, 30), permuted),
    ((2, 2, 30), cut_from_more_rows),
    ((2, 3, 30), permuted),
    ((2, 3, 4, 10), heads),
]
COPIED = [
    ((5, 30), transposed),
    ((2, 3, 4, 10), heads_before_tokens),
    ((2, 3, 4, 10), channels_last),
    ((4, 30), every_other_column),
    ((4, 30), one_number_repeated),
]
LAYOUTS = [
    pytest.param(*one, 0, id=f"{one[1].__name__}-{len(one[0])}d-in_place") for one in IN_PLACE
]
LAYOUTS += [pytest.param(*one, 1, id=f"{one[1].__name__}-{len(one[0])}d-copied") for one in COPIED]


@pytest.fixture
def copies(monkeypatch):
    """A list of the shapes of all tensors that are copied."""
    copied = []

    def spy_on(name: str):
        original = getattr(torch.Tensor, name)

        def spy(t, *args, **kwargs):
            out = original(t, *args, **kwargs)
            if t.numel() and out.data_ptr() != t.data_ptr():
                copied.append(tuple(t.shape))
            return out

        monkeypatch.setattr(torch.Tensor, name, spy)

    for name in ("contiguous", "clone", "reshape", "flatten"):
        spy_on(name)
    return copied


def count(copied: list, shape: tuple) -> int:
    return sum(one == shape for one in copied)


@pytest.mark.parametrize(("shape", "layout", "allowed"), LAYOUTS)
def test_rows_of_any_layout(shape, layout, allowed, device, copies):
    """x, residual, dy and dh in one layout: at most one copy of each, and none of rows with one or two strides."""
    case = Case(True, shape=shape, bias=True, residual_dtype=torch.float32)
    tensors = case.tensors(device)
    for name in ROWS:
        tensors[name] = layout(tensors[name])
        assert (launch.rows.row_layout(tensors[name]) is not None) == (allowed == 0)
    copies.clear()
    results = ours(case, tensors)
    assert count(copies, shape) == 4 * allowed, copies
    assert_case(case, tensors, results=results)


@pytest.mark.parametrize("layout", [padded, misaligned, transposed, heads])
@pytest.mark.parametrize("regime", REGIMES)
def test_layouts_in_every_regime(regime, layout, device):
    shape = (2, 3, 45) if layout is heads else (3, 45)
    case = Case(False, shape=shape, pre_bias=True, residual_dtype=torch.float32)
    tensors = case.tensors(device)
    for name in ROWS:
        tensors[name] = layout(tensors[name])
    with forced(regime):
        assert_case(case, tensors)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("layout", [padded, transposed, heads])
def test_one_tensor_with_another_layout(name, layout, device):
    """Every tensor has its own stride: the others are contiguous."""
    case = Case(True, shape=(2, 3, 20), residual_dtype=torch.float32)
    tensors = case.tensors(device)
    tensors[name] = layout(tensors[name])
    assert_case(case, tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_misaligned_elements_of_2_and_8_bytes(dtype, device):
    case = Case(True, dtype, shape=(3, 24), bias=True)
    tensors = case.tensors(device)
    for name in ("x", "dy", "weight", "bias"):
        tensors[name] = misaligned(tensors[name])
    assert_case(case, tensors)


def test_parameters_that_are_not_contiguous(device):
    case = Case(True, shape=(3, 20), bias=True, pre_bias=True)
    tensors = case.tensors(device)
    expected = ours(case, tensors)
    for name in ("weight", "bias", "pre_bias"):
        tensors[name] = every_other_column(tensors[name])
    for name, value in ours(case, tensors).items():
        assert_same_bits(value, expected[name])


@pytest.mark.parametrize("regime", REGIMES)
def test_gradient_of_a_sum(regime, device):
    """The gradient of ``.sum()`` is one number expanded to the shape of y."""
    case = Case(True, shape=(3, 40), bias=True)
    tensors = case.tensors(device)
    tensors["dy"] = torch.ones((), device=device).expand(3, 40)
    with forced(regime):
        assert_case(case, tensors)


def test_outputs_are_contiguous(device):
    case = Case(True, shape=(5, 20), bias=True, residual_dtype=torch.float32)
    tensors = {n: transposed(t) if n in ROWS else t for n, t in case.tensors(device).items()}
    assert all(value.is_contiguous() for value in ours(case, tensors).values())


@pytest.mark.parametrize("regime", REGIMES)
def test_inputs_are_not_changed(regime, device):
    """dy in particular: another branch of the graph may still need it."""
    samples = {"scale": "samples", "shift": "samples", "residual_gate": "samples"}
    rows = {"residual_dtype": torch.float32, "gate_dtype": torch.float32}
    case = Case(True, bias=True, pre_bias=True, **rows, **samples)
    tensors = case.tensors(device)
    before = {name: t.clone() for name, t in tensors.items()}
    with forced(regime):
        ours(case, tensors)
    for name, t in tensors.items():
        assert_same_bits(t, before[name])


@pytest.mark.parametrize("regime", REGIMES)
def test_no_write_out_of_bounds(regime, device, monkeypatch):
    """Outputs are allocated inside larger tensors of a known value, which must not change around them."""
    case = Case(True, shape=(3, 45), bias=True, pre_bias=True, residual_dtype=torch.float32)
    tensors = case.tensors(device)
    margins = []

    def roomy(shape, dtype, device):
        n = torch.Size(shape).numel()
        room = torch.full((n + 64,), 7.0, dtype=dtype, device=device)
        margins.extend((room[:32], room[n + 32 :]))
        return room[32 : n + 32].view(shape)

    def empty(shape, *, dtype, device):
        return roomy(shape, dtype, device)

    def empty_like(t, *, memory_format):
        return roomy(t.shape, t.dtype, t.device)

    with forced(regime), monkeypatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        patch.setattr(torch, "empty_like", empty_like)
        results = ours(case, tensors)
    assert len(margins) >= 2 * 8
    assert all((margin == 7.0).all() for margin in margins)
    assert_case(case, tensors, results=results)


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_heads_of_a_projection_are_not_copied(name, device, copies):
    """Queries in a fused projection: forward allocates y and the statistics, nothing else."""
    n_tokens, n_heads, n_cols = 64, 4, 128
    qkv = torch.randn(n_tokens, 3 * n_heads * n_cols, device=device, requires_grad=True)
    query = qkv[:, : n_heads * n_cols].unflatten(-1, (n_heads, n_cols))
    module = getattr(rownorm.nn, name)(n_cols, device=device)
    module(query).sum().backward()  # prepares the calls
    copies.clear()
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    y = module(query)
    if device == "cuda":
        statistics = n_tokens * n_heads * (2 if name == "LayerNorm" else 1)
        largest = torch.cuda.max_memory_allocated() - before  # of the first calls, too
        assert torch.cuda.memory_allocated() - before == 4 * (y.numel() + statistics) <= largest
    (dx,) = torch.autograd.grad(y, query, torch.randn_like(y))
    assert dx.is_contiguous()
    assert not count(copies, tuple(query.shape))
    assert_same_bits(y, module(query.contiguous()))


@pytest.mark.parametrize("operation", ["layer_norm", "add_layer_norm"])
def test_numbers_beside_rows_of_one_column(operation, device):
    """scale, shift and residual_gate without a dimension: with one column, that is the shape the kernels read."""
    rows = ("x", "residual") if operation == "add_layer_norm" else ("x",)
    names = ("scale", "shift", "residual_gate") if len(rows) == 2 else ("scale", "shift")
    tensors = {name: torch.randn(3, 1, device=device) for name in rows}
    numbers = {name: torch.randn((), device=device, requires_grad=True) for name in names}
    columns = {name: t.detach().view(1).requires_grad_() for name, t in numbers.items()}
    gradients = []
    for samples in (numbers, columns):
        results = getattr(rownorm, operation)(**tensors, **samples)
        results = results if isinstance(results, tuple) else (results,)
        total = sum(t.sin().sum() for t in results)
        gradients.append([g.view(1) for g in torch.autograd.grad(total, list(samples.values()))])
        gradients[-1] += [t.detach() for t in results]
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
