"""``rownorm.override_aten``: PyTorch's own norms computed by rownorm, and exactly as before after the end.

Without a GPU the same registrations are made for CPU tensors. PyTorch has no kernel of its own there for the backward
of ``_fused_rms_norm``.
"""

import contextlib
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import rownorm
from rownorm.integrations import aten
from rownorm.ops import execute

ON_GPU = torch.cuda.is_available()
KEY = "CUDA" if ON_GPU else "CPU"
needs_gpu = pytest.mark.skipif(
    not ON_GPU, reason="needs a GPU: the override of CUDA's kernels, and fp16 and bf16 statistics"
)
OPERATORS = tuple(aten._KERNELS)
OVERRIDDEN = {"layer_norm": "native_layer_norm", "rms_norm": "_fused_rms_norm"}


def dispatch_tables():
    return [
        (torch._C._dispatch_dump(f"aten::{name}"), torch._C._dispatch_dump_table(f"aten::{name}"))
        for name in OPERATORS
    ]


@pytest.fixture
def calls(monkeypatch):
    """The calls of rownorm's forward and backward, which are made all the same."""
    made = []
    for name in ("forward", "backward"):
        own = getattr(execute, name)
        monkeypatch.setattr(execute, name, lambda *args, n=name, f=own: made.append(n) or f(*args))
    return made


def norm(name, x, shape, weight=None, bias=None):
    if name == "layer_norm":
        return F.layer_norm(x, shape, weight, bias, 1e-5)
    return F.rms_norm(x, shape, weight, 1e-6)


def tensors(name, device, dtype=torch.float32, rows=(6,), shape=(48,), affine=True):
    generator = torch.Generator().manual_seed(3)

    def draw(*size):
        return torch.randn(size, generator=generator).to(device, dtype).requires_grad_()

    made = {"x": draw(*rows, *shape)}
    if affine:
        made |= {"weight": draw(*shape)} | ({"bias": draw(*shape)} if name == "layer_norm" else {})
    return made


def results(name, made, shape):
    """y and the gradients of all tensors."""
    y = norm(name, made["x"], shape, made.get("weight"), made.get("bias"))
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(4)).to(y)
    return {"y": y, **dict(zip(made, torch.autograd.grad(y, made.values(), dy), strict=True))}


def assert_near(mine, own, exact):
    """As near to fp64 as PyTorch's own results, and of their shape, dtype and strides."""
    for key, value in mine.items():
        like = (value.shape, value.dtype, value.stride())
        assert like == (own[key].shape, own[key].dtype, own[key].stride()), key
        error = (value.double() - exact[key]).abs().max()
        largest = exact[key].abs().max()
        allowed = (own[key].double() - exact[key]).abs().max() * 1.25
        assert error <= allowed + 2 * torch.finfo(value.dtype).eps * largest, key


CASES = [
    {},
    {"rows": (2, 3)},
    {"shape": (4, 12)},
    {"affine": False},
    {"rows": (3,), "shape": (1030,)},
    {"rows": ()},
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", OVERRIDDEN)
def test_forward_and_backward_are_computed(name, case, device, calls):
    shape = case.get("shape", (48,))
    made = tensors(name, device, **case)
    own = results(name, made, shape)
    wide = {key: t.detach().double().requires_grad_() for key, t in made.items()}
    exact = results(name, wide, shape)
    with aten._override(KEY):
        mine = results(name, made, shape)
    assert calls == ["forward", "backward"]
    assert_near(mine, own, exact)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", OVERRIDDEN)
def test_16_bits(name, case, dtype, calls):
    shape = case.get("shape", (48,))
    made = tensors(name, "cuda", dtype, **case)
    own = results(name, made, shape)
    wide = {key: t.detach().double().requires_grad_() for key, t in made.items()}
    with rownorm.override_aten():
        mine = results(name, made, shape)
    assert calls == ["forward", "backward"]
    assert_near(mine, own, results(name, wide, shape))


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inside", ["forward", "backward"])
@pytest.mark.parametrize("name", OVERRIDDEN)
def test_the_override_may_begin_or_end_between_forward_and_backward(name, inside, dtype, calls):
    made = tensors(name, "cuda", dtype)
    exact = {key: t.detach().double().requires_grad_() for key, t in made.items()}
    own, exact = results(name, made, (48,)), results(name, exact, (48,))
    with rownorm.override_aten() if inside == "forward" else contextlib.nullcontext():
        y = norm(name, made["x"], (48,), made["weight"], made.get("bias"))
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(4)).to(y)
    with rownorm.override_aten() if inside == "backward" else contextlib.nullcontext():
        gradients = torch.autograd.grad(y, made.values(), dy)
    assert calls == [inside]
    assert_near({"y": y, **dict(zip(made, gradients, strict=True))}, own, exact)


def test_layer_norm_of_one_implementation_and_gradients_of_the_other(device, calls):
    made = tensors("layer_norm", device)
    own = results("layer_norm", made, (48,))
    for first in (True, False):
        with aten._override(KEY) if first else contextlib.nullcontext():
            y = norm("layer_norm", made["x"], (48,), made["weight"], made["bias"])
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(4)).to(y)
        with contextlib.nullcontext() if first else aten._override(KEY):
            gradients = torch.autograd.grad(y, made.values(), dy)
        for gradient, expected in zip(gradients, list(own.values())[1:], strict=True):
            torch.testing.assert_close(gradient, expected)
    assert calls == ["forward", "backward"]


def test_it_is_undone_exactly(device, calls):
    made, before = tensors("layer_norm", device), dispatch_tables()
    own = results("layer_norm", made, (48,))
    with aten._override(KEY):
        assert dispatch_tables() != before
    assert dispatch_tables() == before
    again = results("layer_norm", made, (48,))
    assert all(torch.equal(again[key], own[key]) for key in own)
    with pytest.raises(KeyError), aten._override(KEY):
        raise KeyError
    assert dispatch_tables() == before
    assert calls == []


def test_overrides_may_be_nested_and_end_in_any_order(device, calls):
    before, x = dispatch_tables(), torch.randn(2, 8, device=device)
    first = aten._override(KEY)
    second = aten._override(KEY)
    first.undo()
    first.undo()  # no effect
    F.layer_norm(x, (8,))
    assert calls == ["forward"]
    second.undo()
    F.layer_norm(x, (8,))
    assert calls == ["forward"]
    assert dispatch_tables() == before


def test_it_holds_in_other_threads(device, calls):
    x = torch.randn(2, 8, device=device)
    with aten._override(KEY):
        thread = threading.Thread(target=F.layer_norm, args=(x, (8,)))
        thread.start()
        thread.join()
    assert calls == ["forward"]


def test_cuda_is_what_the_public_name_overrides(device):
    """Also where PyTorch was built without CUDA: there it has no effect."""
    x, before = torch.randn(2, 8), dispatch_tables()
    expected = F.layer_norm(x, (8,))
    with rownorm.override_aten():
        for dump, _ in dispatch_tables():
            (kernel,) = (line for line in dump.splitlines() if line.startswith("CUDA:"))
            assert "integrations/aten.py" in kernel
        assert torch.equal(F.layer_norm(x, (8,)), expected)
    assert dispatch_tables() == before


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_what_rownorm_does_not_compute_takes_the_kernel_that_was_there(name, device, calls):
    operator = getattr(torch.ops.aten, OVERRIDDEN[name])
    empty = torch.randn(0, 8, device=device)
    x = torch.randn(2, 8, device=device)
    vectors = (None, None) if name == "layer_norm" else (None,)
    own = [operator(one, [8], *vectors, eps) for one, eps in ((empty, 1e-5), (x, float("inf")))]
    with aten._override(KEY):
        mine = [
            operator(one, [8], *vectors, eps) for one, eps in ((empty, 1e-5), (x, float("inf")))
        ]
    assert calls == []
    for outputs, expected in zip(mine, own, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))


def test_errors_are_pytorchs(device):
    x, weight = torch.randn(2, 8, device=device), torch.randn(7, device=device)
    with pytest.raises(RuntimeError) as own:
        F.layer_norm(x, (8,), weight)
    with aten._override(KEY), pytest.raises(RuntimeError) as mine:
        F.layer_norm(x, (8,), weight)
    assert str(mine.value) == str(own.value)


def test_a_layer_norm_of_mixed_dtypes_is_not_ours(calls):
    """PyTorch computes it on a CPU: rows of 16 bits with parameters of 32."""
    x, weight = torch.randn(2, 8, dtype=torch.bfloat16), torch.randn(8)
    expected = F.layer_norm(x, (8,), weight)
    with aten._override("CPU"):
        assert torch.equal(F.layer_norm(x, (8,), weight), expected)
    assert calls == []


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_strided_rows_and_expanded_gradients(name, device, calls):
    made = tensors(name, device, rows=(48,), shape=(6,))
    x = made["x"].detach().t().contiguous().t().requires_grad_()
    made = made | {"x": x}
    dy = torch.randn(6, device=device).expand(48, 6)

    def gradients():
        y = norm(name, made["x"], (6,), made["weight"], made.get("bias"))
        return y, *torch.autograd.grad(y, made.values(), dy)

    own = gradients()
    with aten._override(KEY):
        mine = gradients()
    assert calls == ["forward", "backward"]
    for a, b in zip(mine, own, strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_only_the_gradients_that_are_needed(name, device, calls):
    x = torch.randn(4, 8, device=device)
    weight = torch.randn(8, device=device, requires_grad=True)
    with aten._override(KEY):
        norm(name, x, (8,), weight).sum().backward()
    mine, weight.grad = weight.grad, None
    norm(name, x, (8,), weight).sum().backward()
    assert calls == ["forward", "backward"]
    torch.testing.assert_close(mine, weight.grad)


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_second_derivatives_and_vmap(name, device):
    x = torch.randn(2, 1, 3, dtype=torch.float64, device=device, requires_grad=True)
    weight = torch.randn(3, dtype=torch.float64, device=device, requires_grad=True)
    with aten._override(KEY):
        assert torch.autograd.gradgradcheck(lambda x, w: norm(name, x, (3,), w), (x[0], weight))
        mine = torch.vmap(lambda x: norm(name, x, (3,), weight))(x)
    torch.testing.assert_close(mine, norm(name, x, (3,), weight))


def test_modules_autocast_and_compiled_graphs(device, calls):
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)).to(device)
    x = torch.randn(4, 8, device=device)
    expected = model(x)
    with aten._override(KEY):
        torch.testing.assert_close(model(x), expected)
        assert calls == ["forward"]
        with torch.autocast(device, torch.bfloat16):
            model(x).sum().backward()
        compiled = torch.compile(model, backend="aot_eager")
        torch.testing.assert_close(compiled(x), expected)
    assert calls.count("forward") >= 2
