"""``rownorm.nn``: torch's modules with another implementation of forward and backward."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F

import rownorm
from support.operators import same_bits

NAMES = ("LayerNorm", "RMSNorm")
every_module = pytest.mark.parametrize("name", NAMES)
FORMS = {
    "int": ((8,), {"normalized_shape": 8}),
    "tuple": ((8,), {"normalized_shape": (8,)}),
    "list": ((8,), {"normalized_shape": [8]}),
    "several": ((4, 2), {"normalized_shape": (4, 2)}),
    "size": ((4, 2), {"normalized_shape": torch.Size((4, 2))}),
    "eps": ((8,), {"normalized_shape": 8, "eps": 0.1}),
    "plain": ((8,), {"normalized_shape": 8, "elementwise_affine": False}),
    "fp64": ((8,), {"normalized_shape": 8, "dtype": torch.float64}),
}
every_form = pytest.mark.parametrize(("shape", "arguments"), FORMS.values(), ids=FORMS)


def pair(name, device, **arguments):
    """(our module, torch's) with the same random parameters."""
    modules = [getattr(m, name)(**arguments, device=device) for m in (rownorm.nn, torch.nn)]
    with torch.no_grad():
        for parameter in modules[1].parameters():
            parameter.normal_()
    modules[0].load_state_dict(modules[1].state_dict())
    return modules


def rows_for(module, shape, device):
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    return torch.randn(3, 2, *shape, device=device, dtype=dtype)


@every_module
@every_form
def test_same_as_torch(name, shape, arguments, device):
    ours, torchs = pair(name, device, **arguments)
    assert isinstance(ours, type(torchs))
    assert repr(ours) == repr(torchs)
    assert ours.extra_repr() == torchs.extra_repr()
    assert ours.__constants__ == torchs.__constants__
    for attribute in ("normalized_shape", "eps", "elementwise_affine", "training"):
        assert getattr(ours, attribute) == getattr(torchs, attribute)
    described = [
        [(n, p.shape, p.dtype, p.device.type) for n, p in m.named_parameters()]
        for m in (ours, torchs)
    ]
    assert described[0] == described[1]

    x = rows_for(ours, shape, device).requires_grad_()
    results = []
    for module in (ours, torchs):
        y = module(x)
        results.append([y, *torch.autograd.grad(y.sin().sum(), (x, *module.parameters()))])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("bias", [False, True])
def test_bias(bias, device):
    ours, torchs = pair("LayerNorm", device, normalized_shape=8, bias=bias)
    assert (ours.bias is None) == (torchs.bias is None) == (not bias)
    x = rows_for(ours, (8,), device)
    torch.testing.assert_close(ours(x), torchs(x))


@every_module
def test_fresh_parameters(name, device):
    module = getattr(rownorm.nn, name)(8, device=device, dtype=torch.bfloat16)
    assert module.weight.dtype == torch.bfloat16
    assert module.weight.device.type == device
    assert (module.weight == 1).all()
    with torch.no_grad():
        module.weight.fill_(2)
    module.reset_parameters()
    assert (module.weight == 1).all()


@every_module
@every_form
def test_checkpoints_load_both_ways(name, shape, arguments, device):
    classes = [getattr(m, name) for m in (rownorm.nn, torch.nn)]
    for source, target in (classes, classes[::-1]):
        saved, loaded = (c(**arguments, device=device) for c in (source, target))
        with torch.no_grad():
            for parameter in saved.parameters():
                parameter.normal_()
        file = io.BytesIO()
        torch.save(saved.state_dict(), file)
        file.seek(0)
        loaded.load_state_dict(torch.load(file, weights_only=True), strict=True)
        assert list(saved.state_dict()) == list(loaded.state_dict())
        x = rows_for(saved, shape, device)
        torch.testing.assert_close(loaded(x), saved(x))


def pickled(module):
    return pickle.loads(pickle.dumps(module))


def stored(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@every_module
@every_form
@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, pickled, stored])
def test_copies(name, shape, arguments, copied, device):
    module, _ = pair(name, device, **arguments)
    twin = copied(module)
    assert type(twin) is type(module)
    assert repr(twin) == repr(module)
    x = rows_for(module, shape, device)
    torch.testing.assert_close(twin(x), module(x), rtol=0, atol=0)
    if copied is not copy.copy:
        assert all(a is not b for a, b in zip(twin.parameters(), module.parameters(), strict=True))


@every_module
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_to_another_dtype(name, dtype, device):
    ours, torchs = (module.to(dtype) for module in pair(name, device, normalized_shape=8))
    assert {p.dtype for p in ours.parameters()} == {dtype}
    x = rows_for(ours, (8,), device)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(ours(x), torchs(x), rtol=2 * eps, atol=eps)


@every_module
def test_to_another_device(name, device):
    module = getattr(rownorm.nn, name)(8, device="meta")
    assert module(torch.empty(3, 8, device="meta")).shape == (3, 8)
    module.to_empty(device=device).reset_parameters()
    assert module(torch.randn(3, 8, device=device)).device.type == device


@every_module
def test_fp32_parameters_with_bf16_rows(name, device):
    """The output is bf16, as in torch, and the gradients of the parameters are fp32."""
    module, _ = pair(name, device, normalized_shape=8)
    x = torch.randn(3, 8, device=device, dtype=torch.bfloat16, requires_grad=True)
    y = module(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), module(x.float()), rtol=2**-7, atol=0)
    y.sum().backward()
    assert (x.grad.dtype, module.weight.grad.dtype) == (torch.bfloat16, torch.float32)


@every_module
@every_form
def test_rows_that_are_not_contiguous(name, shape, arguments, device):
    module, torchs = pair(name, device, **arguments)
    wide = rows_for(module, (*shape[:-1], 2 * shape[-1]), device)
    for x in (wide[..., ::2], wide[..., 1 : 1 + shape[-1]], wide[..., ::2].transpose(0, 1)):
        torch.testing.assert_close(module(x), torchs(x))


@every_module
def test_in_place_of_torchs_module_in_a_model(name, device):
    def model(namespace):
        torch.manual_seed(5)
        layers = [torch.nn.Linear(8, 8), getattr(namespace, name)(8), torch.nn.Linear(8, 1)]
        return torch.nn.Sequential(*layers).to(device)

    def trained(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(6)
        for _ in range(3):
            x = torch.randn(4, 8).to(device)
            optimizer.zero_grad()
            (model(x) - x.mean(-1, keepdim=True)).square().mean().backward()
            optimizer.step()
        return model.state_dict()

    torch.testing.assert_close(trained(model(rownorm.nn)), trained(model(torch.nn)))


@every_module
@every_form
def test_symbolic_trace(name, shape, arguments, device):
    """``torch.fx`` traces a norm that is the whole model as one function and keeps its parameters, as torch's."""
    module, _ = pair(name, device, **arguments)
    traced = torch.fx.symbolic_trace(module)
    x = rows_for(module, shape, device)
    torch.testing.assert_close(traced(x), module(x), rtol=0, atol=0)
    assert traced.state_dict().keys() == module.state_dict().keys()
    called = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    names = {"LayerNorm": "layer_norm", "RMSNorm": "rms_norm"}
    assert called == [getattr(rownorm.functional, names[name])]


@every_module
def test_hooks_and_gradients_of_parameters(name, device):
    module, _ = pair(name, device, normalized_shape=8)
    seen = []
    module.register_forward_hook(lambda module, inputs, output: seen.append(output))
    y = module(torch.randn(3, 8, device=device))
    assert seen[0] is y
    y.sin().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


@every_module
def test_out_dtype(name, device):
    """A module over an fp32 stream that returns bf16; its gradients have the dtypes of their tensors."""
    module = getattr(rownorm.nn, name)(64, device=device, out_dtype=torch.bfloat16)
    assert "out_dtype=torch.bfloat16" in repr(module)
    assert "out_dtype" not in repr(getattr(rownorm.nn, name)(64))
    x = torch.randn(4, 64, device=device, requires_grad=True)
    y = module(x)
    assert y.dtype == torch.bfloat16
    expected = getattr(torch.nn, name).forward(module, x).bfloat16()
    torch.testing.assert_close(y, expected, rtol=2**-7, atol=2**-7)
    y.sum().backward()
    assert (x.grad.dtype, module.weight.grad.dtype) == (torch.float32, torch.float32)
    assert set(module.state_dict()) <= {"weight", "bias"}


@pytest.mark.parametrize("eps", [64, 1, 0, 1.0, 64.0, True, None])
def test_gated_norm_refuses_an_eps_that_is_a_size(eps):
    """Zamba2's class has the size of a group in this place."""
    with pytest.raises(ValueError, match=r"eps must be a float below 1.*group_cols"):
        rownorm.nn.RMSNormGated(4096, eps)
    assert rownorm.nn.RMSNormGated(8, 0.0, group_cols=4).variance_epsilon == 0.0


GATED = {
    "qwen3-next": {},
    "kimi": {"gate_activation": "sigmoid", "rounding": "once"},
    "mamba2": {"gate_first": True, "group_cols": 4, "out_dtype": torch.float32},
}


@pytest.mark.parametrize("options", GATED.values(), ids=GATED)
def test_gated_norm(options, device):
    """Its attributes are the options of the function; without a gate it is the norm of the groups."""
    module = rownorm.nn.RMSNormGated(8, 1e-5, **options, device=device, dtype=torch.bfloat16)
    assert {name: p.shape for name, p in module.state_dict().items()} == {"weight": (8,)}
    module.load_state_dict({"weight": torch.randn(8)})
    x, gate = torch.randn(2, 3, 5, 8, device=device).bfloat16()
    keywords = {"gate_activation": "silu", "rounding": "llama", **options}
    y = module(x, gate)
    same_bits(y, rownorm.rms_norm(x, module.weight, eps=1e-5, gate=gate, **keywords))
    alone = {name: one for name, one in keywords.items() if not name.startswith("gate_")}
    same_bits(module(x), rownorm.rms_norm(x, module.weight, eps=1e-5, **alone))
    for twin in (copy.deepcopy(module), pickled(module), stored(module)):
        same_bits(twin(x, gate), y)
    assert all(name in repr(module) for name in options)


def continuous(**options):
    return rownorm.nn.AdaLayerNormContinuous(8, 6, **options)


ADAPTIVE = {
    "continuous": (continuous, {}, 1e-5),
    "continuous, plain": (continuous, {"elementwise_affine": False, "eps": 1e-6}, 1e-6),
    "continuous, rms": (continuous, {"elementwise_affine": False, "norm_type": "rms_norm"}, 1e-5),
    "zero": (rownorm.nn.AdaLayerNormZero, {"embedding_dim": 8}, 1e-6),
    "zero, fp32": (
        rownorm.nn.AdaLayerNormZero,
        {"embedding_dim": 8, "norm_type": "fp32_layer_norm", "bias": False},
        1e-5,
    ),
    "single": (rownorm.nn.AdaLayerNormZeroSingle, {"embedding_dim": 8}, 1e-6),
}


def diffusers_steps(module, eps, x, embedding):
    """The modulated rows and the other vectors, by PyTorch's operators, one after another as in diffusers."""
    is_continuous = type(module).__name__ == "AdaLayerNormContinuous"
    activated = F.silu(embedding)
    activated = activated.to(x.dtype) if is_continuous else activated
    projection = F.linear(activated, module.linear.weight, module.linear.bias)
    first, second, *others = projection.chunk(projection.shape[1] // 8, dim=1)
    scale, shift = (first, second) if is_continuous else (second, first)
    weight, bias = module.norm.weight, getattr(module.norm, "bias", None)
    if isinstance(module.norm, torch.nn.RMSNorm):
        z = F.rms_norm(x, (8,), weight, eps)
    else:
        z = F.layer_norm(x, (8,), weight, bias, eps)
    return z * (1 + scale[:, None]) + shift[:, None], *others


@pytest.mark.parametrize(("make", "options", "eps"), ADAPTIVE.values(), ids=ADAPTIVE)
def test_adaptive_norms(make, options, eps, device):
    """In fp64, where the order of the sums in the derivatives makes no difference."""
    fp64 = {"device": device, "dtype": torch.float64}
    module = make(**options).to(**fp64)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    names = {"linear.weight", "linear.bias", "norm.weight", "norm.bias"}
    names -= {"linear.bias"} if options.get("bias") is False else set()
    is_plain = make is not continuous or "elementwise_affine" in options
    assert set(module.state_dict()) == names - ({"norm.weight", "norm.bias"} if is_plain else set())
    x = torch.randn(2, 5, 8, **fp64)
    n_embedding = module.linear.in_features
    embedding = torch.randn(2, n_embedding, **fp64, requires_grad=True)
    keyword = "conditioning_embedding" if make is continuous else "emb"

    def results(outputs):
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        total = sum(one.sin().sum() for one in outputs)
        return outputs, torch.autograd.grad(total, (embedding, *module.parameters()))

    expected = diffusers_steps(module, eps, x, embedding)
    torch.testing.assert_close(results(module(x, **{keyword: embedding})), results(expected))


@pytest.mark.usefixtures("without_interpreter")
@pytest.mark.parametrize(("make", "options", "eps"), ADAPTIVE.values(), ids=ADAPTIVE)
def test_adaptive_norms_with_the_roundings_of_diffusers(make, options, eps):
    """The same bits in bf16, on a CPU; of an embedding in fp32 beside rows in bf16, too."""
    module = make(**options, rounding="each").bfloat16()
    assert "rounding='each'" in repr(module)
    x = torch.randn(2, 5, 8).bfloat16()
    for dtype in (torch.bfloat16, torch.float32) if make is continuous else (torch.bfloat16,):
        embedding = torch.randn(2, module.linear.in_features).to(dtype)
        keyword = "conditioning_embedding" if make is continuous else "emb"
        outputs = module(x, **{keyword: embedding})
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        same_bits(outputs, diffusers_steps(module, eps, x, embedding))


def test_adaptive_norms_that_do_not_exist():
    with pytest.raises(ValueError, match=r"Zero: num_embeddings must be None; got 1000.*pass the"):
        rownorm.nn.AdaLayerNormZero(8, 1000)
    with pytest.raises(ValueError, match=r"Zero: norm_type must be 'layer_norm' or 'fp32_layer"):
        rownorm.nn.AdaLayerNormZero(8, norm_type="rms_norm")
    with pytest.raises(ValueError, match=r"Single: norm_type must be 'layer_norm'; got 'group'"):
        rownorm.nn.AdaLayerNormZeroSingle(8, "group")
    with pytest.raises(ValueError, match=r"Continuous: norm_type .* 'rms_norm'; got 'batch'"):
        continuous(norm_type="batch")
