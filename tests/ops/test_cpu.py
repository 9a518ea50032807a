"""Tensors on a CPU, without the interpreter: the extension, and PyTorch where there is none."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import rownorm
from rownorm.ops import cpu, cpu_native, eager, execute
from support.cases import DTYPES, Case, ours
from support.criterion import assert_case, assert_gradients_at_stored_h, assert_same_bits
from support.fake_driver import needs_compiler
from support.pairwise import combinations, name_of

pytestmark = pytest.mark.usefixtures("without_interpreter")


@pytest.fixture
def by_torch(monkeypatch):
    """There is no extension."""
    monkeypatch.setattr(cpu_native, "load", lambda: None)
    monkeypatch.setattr(cpu_native, "forward", lambda *_: None)
    monkeypatch.setattr(cpu_native, "backward", lambda *_: None)
    monkeypatch.setattr(eager, "native", eager.Native())
    eager.native._record_by(eager.eager_norm)  # the node in C++ calls the extension


@pytest.fixture(params=[pytest.param("extension", marks=needs_compiler), "torch"])
def computed_by(request):
    """Each test runs with the extension and without it."""
    if request.param == "torch":
        request.getfixturevalue("by_torch")
    else:
        assert cpu_native.reason() == ""


both = pytest.mark.usefixtures("computed_by")


@pytest.fixture
def torchs_kernels(by_torch, monkeypatch):
    """The calls of PyTorch's LayerNorm: a list of "forward" and "backward"."""
    calls = []
    native = torch.native_layer_norm
    backward = torch.ops.aten.native_layer_norm_backward
    monkeypatch.setattr(
        cpu.torch, "native_layer_norm", lambda *a: calls.append("forward") or native(*a)
    )
    monkeypatch.setattr(
        cpu.torch.ops.aten,
        "native_layer_norm_backward",
        lambda *a: calls.append("backward") or backward(*a),
    )
    return calls


@both
@pytest.mark.parametrize("case", combinations(seed=9), ids=name_of)
def test_options_in_every_pair(case):
    assert_case(case, case.tensors("cpu"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
def test_layer_norm_takes_torchs_kernel(residual, dtype, torchs_kernels):
    case = Case(
        True, dtype, bias=True, pre_bias=True, residual_dtype=torch.float32 if residual else None
    )
    tensors = case.tensors("cpu")
    results = ours(case, tensors)
    assert torchs_kernels == ["forward", "backward"]
    assert_case(case, tensors, results=results)


@pytest.mark.parametrize(
    ("center", "options", "expected"),
    [
        (False, {}, []),
        (True, {"rounding": "llama"}, []),
        (True, {"activation": "silu"}, ["forward"]),
    ],
    ids=["rms_norm", "llama", "activation"],
)
def test_other_norms_and_options_take_the_reference(center, options, expected, torchs_kernels):
    case = Case(center, torch.float32, **options)
    ours(case, case.tensors("cpu"))
    assert torchs_kernels == expected


@both
@pytest.mark.parametrize("rounding", ["once", "llama"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_are_those_at_the_stored_h(dtype, rounding):
    for n_cols in (1, 70):
        assert_gradients_at_stored_h(dtype, n_cols, "cpu", rounding=rounding)


@both
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_gradients_of_constant_rows_far_from_0(dtype):
    """``x_hat`` is 0 and ``dy`` is constant, so both gradients are 0. PyTorch's backward loses digits here."""
    x = torch.full((3, 64), 1e7, dtype=dtype, requires_grad=True)
    weight = torch.ones(64, requires_grad=True)
    rownorm.layer_norm(x, weight).backward(torch.ones_like(x))
    assert not weight.grad.any()
    assert not x.grad.any()


@both
@pytest.mark.parametrize("operator", ["layer_norm", "add_layer_norm"])
def test_jacobian_of_the_rows(operator):
    """A batch of gradients shares one set of statistics, which are expanded."""
    x, weight = torch.randn(3, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    rows = (torch.zeros_like(x),) if operator.startswith("add") else ()

    def ours(x):
        results = getattr(rownorm, operator)(x, *rows, weight)
        return results[0] if rows else results

    expected = torch.func.jacrev(lambda x: torch.layer_norm(x, (8,), weight))(x)
    torch.testing.assert_close(torch.func.jacrev(ours)(x), expected)


@both
def test_second_derivatives_of_fp64_rows_beside_a_narrower_residual():
    """Only ``h`` is rounded to fp32. Everything else is computed in fp64."""
    rows = (1e4 + torch.randn(3, 8, dtype=torch.float64)).float()
    x = rows.double().requires_grad_()

    def second(function):
        (dx,) = torch.autograd.grad(function(x).sin().sum(), x, create_graph=True)
        return torch.autograd.grad(dx.square().sum(), x)[0]

    results = second(lambda x: rownorm.add_layer_norm(x, torch.zeros(3, 8))[0])
    expected = second(lambda x: torch.layer_norm(x, (8,)))
    scale = expected.abs().max()
    assert ((results - expected).abs() <= 1e-6 * scale).all()


@both
def test_no_rows():
    x = torch.randn(0, 6, requires_grad=True)
    weight, bias, pre_bias = (torch.randn(6, requires_grad=True) for _ in range(3))
    y = rownorm.layer_norm(x, weight, bias, pre_bias=pre_bias)
    gradients = torch.autograd.grad(y.sum(), (x, weight, bias, pre_bias))
    assert y.shape == (0, 6)
    assert gradients[0].shape == (0, 6)
    for gradient in gradients[1:]:
        assert torch.equal(gradient, torch.zeros(6))


@both
def test_second_derivatives():
    tensors = [
        torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((3, 5), (5,), (5,))
    ]
    torch.autograd.gradcheck(rownorm.layer_norm, tensors)
    torch.autograd.gradgradcheck(rownorm.layer_norm, tensors)


@both
@pytest.mark.parametrize("n_cols", [1, 7, 32, 96, 250, 256, 768, 4096, 65536])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_norm_of_any_width_is_as_accurate_as_torch(n_cols, dtype):
    case = Case(False, dtype, (3, n_cols), data="outliers")
    # The more elements a batch has, the less its largest error varies.
    assert_case(case, case.tensors("cpu"), batches=48 if n_cols <= 256 else 4)


@both
@pytest.mark.parametrize("case", combinations(seed=4), ids=name_of)
def test_inputs_are_not_changed(case):
    tensors = case.tensors("cpu")
    before = {name: None if t is None else t.clone() for name, t in tensors.items()}
    ours(case, tensors)
    for name, tensor in tensors.items():
        if tensor is not None:
            assert_same_bits(tensor, before[name])


def test_a_repeated_call_is_not_checked_again(by_torch, monkeypatch):
    x, weight = torch.randn(3, 7), torch.ones(7)
    rownorm.rms_norm(x, weight)
    checks = []
    monkeypatch.setattr(execute, "check", lambda *a: checks.append(a))
    rownorm.rms_norm(torch.randn(3, 7), weight)
    assert not checks
    rownorm.rms_norm(torch.randn(4, 7), weight)
    assert len(checks) == 1


@both
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm"])
def test_outputs_and_gradients_are_contiguous_for_any_layout_of_x(name):
    """The fake implementation promises it to torch.compile."""
    x = torch.randn(64, 8, 16).transpose(0, 1).requires_grad_()
    rows = (x, torch.randn(64, 8, 16).transpose(0, 1)) if name.startswith("add") else (x,)
    weight = torch.randn(16)
    for options in ({}, {"rounding": "llama"}, {"activation": "silu"}):
        results = getattr(rownorm, name)(*rows, weight, **options)
        outputs = results if isinstance(results, tuple) else (results,)
        assert all(each.is_contiguous() for each in outputs)
        dy = [torch.randn(64, 8, 16).transpose(0, 1) for _ in outputs]
        assert torch.autograd.grad(outputs, x, dy)[0].is_contiguous()


@both
def test_meta_tensors_are_not_confused_with_cpu_tensors():
    x, weight = torch.randn(3, 9), torch.ones(9)
    rownorm.layer_norm(x, weight)
    with pytest.raises(ValueError, match="must be on the device of x"):
        rownorm.layer_norm(x, weight.to("meta"))
    assert rownorm.layer_norm(x.to("meta"), weight.to("meta")).is_meta


@both
def test_a_batch_of_gradients():
    """``is_grads_batched`` passes gradients without storage."""
    x, weight = torch.randn(3, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    dy = torch.randn(5, 3, 8)
    y = rownorm.rms_norm(x, weight)
    batched = torch.autograd.grad(y, (x, weight), dy, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(y, (x, weight), one, retain_graph=True) for one in dy]
    for result, expected in zip(batched, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(result, torch.stack(expected))


@both
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_infinities_and_nan_stay_in_their_row(name, dtype):
    """A row with an infinity is NaN, except the finite elements of an RMSNorm, which are 0."""
    x, weight = torch.randn(4, 70).to(dtype), torch.ones(70, dtype=dtype)
    x[0, 3], x[1, 69] = float("inf"), float("nan")
    rows = (x, torch.zeros_like(x)) if name.startswith("add") else (x,)
    results = getattr(rownorm, name)(*rows, weight)
    y = results[0] if name.startswith("add") else results
    if name.endswith("layer_norm"):
        assert y[0].isnan().all()
    else:
        assert y[0].isnan().nonzero().tolist() == [[3]]
    assert y[1].isnan().all()
    torch.testing.assert_close(y[2:], getattr(rownorm, name.removeprefix("add_"))(x[2:], weight))


@both
def test_bad_arguments_are_refused():
    x = torch.randn(3, 8)
    with pytest.raises(ValueError, match=r"weight must have shape \(8,\)"):
        rownorm.rms_norm(x, torch.ones(7))
    with pytest.raises(ValueError, match="residual must have the shape of x"):
        rownorm.add_layer_norm(x, torch.randn(8, 3))
    with pytest.raises(ValueError, match="eps must not be negative"):
        rownorm.layer_norm(x, eps=-1.0)
    with pytest.raises(ValueError, match="weight_shift is added to weight"):
        rownorm.rms_norm(x, weight_shift=1.0)
    with pytest.raises(ValueError, match="rounding must be one of"):
        rownorm.rms_norm(x, torch.ones(8), rounding="twice")


@both
def test_tracers_and_transforms():
    """They call the operators, which compute real tensors in the same way."""
    x, residual, weight = torch.randn(2, 3, 40), torch.randn(2, 3, 40), torch.randn(40)
    expected = rownorm.add_rms_norm(x, residual, weight)

    def same(results):
        return all(torch.equal(*pair) for pair in zip(results, expected, strict=True))

    compiled = torch.compile(rownorm.add_rms_norm, backend="aot_eager", fullgraph=True)
    assert same(compiled(x, residual, weight))
    assert same(torch.vmap(rownorm.add_rms_norm, (0, 0, None))(x, residual, weight))
    with torch.inference_mode():
        assert same(rownorm.add_rms_norm(x, residual, weight))
    with FakeTensorMode(allow_non_fake_inputs=True):
        y, _ = rownorm.add_rms_norm(x, residual, weight)
    assert isinstance(y, FakeTensor)
    assert y.shape == x.shape


@both
def test_tensors_that_only_the_dispatcher_resolves():
    x, weight = torch.randn(3, 8), torch.randn(8)
    expected = rownorm.layer_norm(-x, weight)
    torch.testing.assert_close(rownorm.layer_norm(torch._neg_view(x), weight), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert rownorm.layer_norm(x, weight).dtype == F.layer_norm(x, (8,), weight).dtype


@both
def test_saved_tensors_hooks():
    x, weight = (torch.randn(s, requires_grad=True) for s in ((3, 8), (8,)))
    expected = torch.autograd.grad(rownorm.layer_norm(x, weight).sin().sum(), (x, weight))
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t.t().contiguous().t()):
        y = rownorm.layer_norm(x, weight)
    results = torch.autograd.grad(y.sin().sum(), (x, weight))
    for result, one in zip(results, expected, strict=True):
        torch.testing.assert_close(result, one)
