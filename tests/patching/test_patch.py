"""What a patched model keeps, how it runs, and bad input."""

import copy
import functools
import io
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import rownorm
from rownorm.patching.swap import Patched
from support import norm_modules as norms

pytestmark = pytest.mark.usefixtures("without_interpreter")


class Block(nn.Module):
    """One norm of each kind of swap."""

    def __init__(self):
        super().__init__()
        self.first = norms.RoundedBeforeWeight()
        self.second = nn.LayerNorm(32)
        self.third = nn.RMSNorm(32)
        self.linear = nn.Linear(32, 32)

    def forward(self, x):
        return self.linear(self.third(self.second(self.first(x))))


@pytest.fixture
def model():
    block = Block()
    for parameter in block.parameters():
        parameter.data.normal_()
    return block


@pytest.fixture
def x():
    return torch.randn(5, 32)


def gradients(model, x):
    leaf = x.clone().requires_grad_()
    model.zero_grad()
    model(leaf).square().sum().backward()
    return [leaf.grad, *(p.grad.clone() for p in model.parameters())]


def operators(compiled_graphs):
    """The names of rownorm's operators in graphs of torch.compile."""
    return [
        str(n.target) for g in compiled_graphs for n in g.graph.nodes if "rownorm" in str(n.target)
    ]


def test_results_and_gradients(model, x):
    y, before = model(x), gradients(model, x)
    rownorm.patch(model)
    torch.testing.assert_close(model(x), y)
    for gradient, expected in zip(gradients(model, x), before, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)


def test_everything_survives_and_comes_back(model, x):
    seen = []
    model.first.register_forward_hook(lambda *_: seen.append("hook"))
    model.second.eval()
    model.second.bias = model.third.weight  # tied
    parameters = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
    modules = {name: (id(m), type(m), m.training) for name, m in model.named_modules()}
    attributes = {name: dict(m.__dict__) for name, m in model.named_modules()}
    shown, keys, y = repr(model), list(model.state_dict()), model(x)
    rownorm.patch(model)
    assert sum(isinstance(m, Patched) for m in model.modules()) == 3
    assert {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)} == parameters
    for name, module in model.named_modules():
        assert (id(module), module.training) == (modules[name][0], modules[name][2])
        assert isinstance(module, modules[name][1])
    assert list(model.state_dict()) == keys
    assert repr(model) == shown
    torch.testing.assert_close(model(x), y)
    assert seen == ["hook", "hook"]
    assert rownorm.unpatch(model) == 3
    assert {n: (id(m), type(m), m.training) for n, m in model.named_modules()} == modules
    assert {name: m.__dict__ for name, m in model.named_modules()} == attributes
    assert torch.equal(model(x), y)
    assert rownorm.unpatch(model) == 0


def test_rownorm_computes(model, x, monkeypatch):
    """The forward of the swapped modules is rownorm's, and that of the original classes is not called."""
    rownorm.patch(model)
    monkeypatch.setattr(norms.RoundedBeforeWeight, "forward", None)
    monkeypatch.setattr(nn.LayerNorm, "forward", None)
    monkeypatch.setattr(nn.RMSNorm, "forward", None)
    model(x)


def test_a_state_dict_loads_across(model, x):
    patched = Block()
    rownorm.patch(patched)
    patched.load_state_dict(model.state_dict())
    torch.testing.assert_close(patched(x), model(x))


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_copies(model, x, how):
    rownorm.patch(model)
    if how == "deepcopy":
        other = copy.deepcopy(model)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert [type(m) for m in other.modules()] == [type(m) for m in model.modules()]
    assert torch.equal(other(x), model(x))
    assert rownorm.unpatch(other) == 3
    assert isinstance(model.first, Patched)


def test_compiled_after_patching(model, x):
    graphs, y = [], model(x)
    rownorm.patch(model)
    compiled = torch.compile(model, backend=lambda g, _: graphs.append(g) or g, fullgraph=True)
    torch.testing.assert_close(compiled(x), y)
    assert len(operators(graphs)) == 3


def test_compiled_before_patching(model, x):
    graphs = []
    compiled = torch.compile(model, backend=lambda g, _: graphs.append(g) or g, fullgraph=True)
    y = compiled(x)
    assert not operators(graphs)
    assert len(rownorm.patch(compiled).swapped) == 3
    torch.testing.assert_close(compiled(x), y)
    assert len(operators(graphs)) == 3
    rownorm.unpatch(compiled)
    assert torch.equal(compiled(x), y)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing(model, x, use_reentrant):
    before = gradients(model, x)
    rownorm.patch(model)
    leaf = x.clone().requires_grad_()
    model.zero_grad()
    checkpoint(model, leaf, use_reentrant=use_reentrant).square().sum().backward()
    after = [leaf.grad, *(p.grad for p in model.parameters())]
    for gradient, expected in zip(after, before, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)


def test_a_wrapper_of_adapters(model, x):
    """As PEFT does it: the norm inside a module that has a trained copy of it."""

    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.original_module = module
            self.modules_to_save = nn.ModuleDict({"default": copy.deepcopy(module)})

        def forward(self, x):
            return self.modules_to_save["default"](x)

    model.first = Wrapper(model.first)
    y = model(x)
    names = [one.name for one in rownorm.patch(model).swapped]
    assert names[:2] == ["first.original_module", "first.modules_to_save.default"]
    torch.testing.assert_close(model(x), y)
    wrapped_later = Block()
    rownorm.patch(wrapped_later)
    wrapped_later.first = Wrapper(wrapped_later.first)
    assert isinstance(wrapped_later.first.modules_to_save["default"], Patched)


def test_a_shared_module_is_swapped_once(x):
    norm = norms.RoundedOnce()
    model = nn.Sequential(norm, nn.Linear(32, 32), norm)
    assert len(rownorm.patch(model).swapped) == 1
    assert model[2] is norm
    model(x)


def test_calls_by_keyword_and_unusual_calls(x):
    model, original = norms.RoundedBeforeWeight(), norms.RoundedBeforeWeight()
    rownorm.patch(model)
    torch.testing.assert_close(model(hidden=x), original(hidden=x))
    with pytest.raises(TypeError, match="forward"):
        model(x, x)
    with pytest.raises(TypeError, match="forward"):
        model(unknown=x)
    one_column = torch.randn(3, 1)  # broadcasts in the original
    with pytest.raises(ValueError, match="weight must have shape"):
        model(one_column)


def test_a_width_that_was_not_proved(x):
    model = norms.CenteredByFunction(32)
    rownorm.patch(model)
    with pytest.raises(RuntimeError, match="normalized_shape"):  # torch's own message
        model(torch.randn(3, 16))


def test_several_dimensions_of_torch(x):
    model = nn.LayerNorm((4, 8))
    y = model(x.view(5, 4, 8))
    rownorm.patch(model)
    torch.testing.assert_close(model(x.view(5, 4, 8)), y)


def test_out_dtype(model, x):
    y = model.third(model.second(model.first(x)))
    report = rownorm.patch(model, out_dtype=torch.bfloat16)
    assert all(one.form.endswith("out_dtype=bf16") for one in report.swapped)
    assert model.first(x).dtype == torch.bfloat16
    assert model.second(x).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        z = model(x)
    assert z.dtype == torch.bfloat16
    normed = model.third(model.second(model.first(x)))
    torch.testing.assert_close(normed.float(), y, rtol=0.03, atol=0.03)
    t5 = norms.RoundedToWeight().bfloat16()
    rownorm.patch(t5, out_dtype=torch.float32)
    assert t5(x).dtype == torch.float32  # the original forward computes this pair of dtypes
    rownorm.unpatch(model)
    assert model.second(x).dtype == torch.float32


@pytest.mark.parametrize("what", ["class", "forward"])
def test_modules_that_were_changed_after_patching(model, x, what):
    """As fully_shard changes the class of a norm of its own group, and accelerate's hooks the forward."""
    y = model(x)
    rownorm.patch(model)
    if what == "class":
        model.first.__class__ = type("FSDPNorm", (type(model.first),), {})
    else:
        model.first.forward = functools.partial(model.first.forward)
    torch.testing.assert_close(model(x), y)
    with pytest.raises(RuntimeError, match=r"first got another class or .*nothing was changed"):
        rownorm.unpatch(model)
    assert isinstance(model.second, Patched)


@pytest.fixture
def one_process():
    """A process group of this process alone, and its mesh."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("patched_first", [True, False])
def test_fsdp2(model, x, patched_first, one_process):
    from torch.distributed.fsdp import fully_shard

    y = model(x)
    if patched_first:
        rownorm.patch(model)
    fully_shard(model, mesh=one_process)
    if not patched_first:
        rownorm.patch(model)
    assert sum(isinstance(m, Patched) for m in model.modules()) == 3
    z = model(x)
    torch.testing.assert_close(z, y)
    z.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert rownorm.unpatch(model) == 3
    assert torch.equal(model(x), y)


# ---- bad input ----


def test_a_model_must_be_a_module():
    for function in (rownorm.patch, rownorm.unpatch):
        with pytest.raises(TypeError, match=r"must be a torch.nn.Module; got dict"):
            function({})
    with pytest.raises(TypeError, match="out_dtype must be one of"):
        rownorm.patch(nn.LayerNorm(3), out_dtype=torch.int8)


def left_reason(module):
    (left,) = rownorm.patch(nn.ModuleDict({"one": module})).left
    return left.reason


def test_reasons():
    class Norm(norms.RoundedOnce):
        pass

    twice = nn.Sequential(norms.RoundedOnce())
    rownorm.patch(twice)
    replaced, quantized, matrix, mixed, lazy = Norm(), Norm(), Norm(), Norm(), Norm()
    replaced.forward = lambda x: x
    quantized.weight = nn.Parameter(torch.ones(32, dtype=torch.int8), requires_grad=False)
    matrix.weight = nn.Parameter(torch.ones(32, 2))
    mixed.bias = nn.Parameter(torch.ones(31))
    lazy.weight = nn.UninitializedParameter()
    parametrized = Norm()
    nn.utils.parametrize.register_parametrization(parametrized, "weight", nn.Identity())
    instance = nn.LayerNorm(8)
    instance.forward = lambda x: x
    expected = {
        twice[0]: "it is patched already",
        rownorm.nn.LayerNorm(8): "it is rownorm's already",
        replaced: "its forward was replaced on this module",
        instance: "its forward was replaced on this module",
        quantized: "its parameters are quantized",
        matrix: "its parameters are not one weight and one bias vector",
        mixed: "its weight and bias differ",
        lazy: "its parameters have no shape yet",
        parametrized: "its weight is parametrized",
        nn.BatchNorm1d(8): "it does not normalize rows",
        nn.GroupNorm(2, 8): "it does not normalize rows",
    }
    for module, reason in expected.items():
        before = dict(module.__dict__)
        assert left_reason(module).startswith(reason)
        assert module.__dict__ == before


def test_a_class_that_refuses_subclasses():
    class FinalNorm(norms.RoundedOnce):
        def __init_subclass__(cls):
            raise TypeError("FinalNorm is final")

    assert left_reason(FinalNorm()) == "its class cannot be changed: FinalNorm is final"


def test_an_error_leaves_the_model_as_it_was(model, monkeypatch):
    """An interrupt during the last probe."""
    model.last = norms.RoundedOnce()

    def interrupted(self, x):
        raise KeyboardInterrupt

    monkeypatch.setattr(norms.RoundedOnce, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rownorm.patch(model)
    assert not any(isinstance(m, Patched) for m in model.modules())
