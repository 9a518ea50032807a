"""``rownorm.patch(model, fuse_residuals=True)``: which blocks it changes, what they compute then, and the way back."""

import copy
import pickle

import pytest
import torch
from torch import nn

import rownorm
from rownorm.patching import fusion, surgery
from rownorm.patching.blocks import check_block
from rownorm.patching.candidates import LeftAlone
from rownorm.patching.swap import Patched, PatchedBlock
from support import residual_blocks as blocks
from support.known_warnings import IGNORE_ONEDNN

pytestmark = pytest.mark.usefixtures("without_interpreter")


@pytest.fixture
def x():
    return torch.randn(3, 5, 32)


def output(block, x):
    y = block(x)
    return y[0] if isinstance(y, tuple) else y


def results(block, x):
    """The result, and all gradients."""
    leaf = x.clone().requires_grad_()
    block.zero_grad()
    y = output(block, leaf)
    y.backward(torch.ones_like(y))
    return [y.detach(), leaf.grad, *(p.grad for p in block.parameters() if p.grad is not None)]


def calls(function):
    """The names of rownorm's functions that a call runs."""
    with torch.profiler.profile() as profile:
        function()
    names = [event.key for event in profile.key_averages() for _ in range(event.count)]
    return sorted(n for n in names if n.startswith("rownorm::") and "backward" not in n)


# ---- what is fused ----


@pytest.mark.parametrize("block_class", blocks.FUSED)
def test_results_and_gradients(block_class, x):
    block = blocks.made(block_class).eval()
    before = results(block, x)
    report = rownorm.patch(block, fuse_residuals=True)
    assert len(report.fused) == block_class.n_fused
    for mine, expected in zip(results(block, x), before, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)
    assert sum("add_" in name for name in calls(lambda: block(x))) == block_class.n_fused
    assert rownorm.unpatch(block) == 2
    assert all(torch.equal(*pair) for pair in zip(results(block, x), before, strict=True))


@pytest.mark.parametrize("block_class", blocks.LEFT)
def test_what_is_left_and_why(block_class):
    block = blocks.made(block_class)
    report = rownorm.patch(block, fuse_residuals=True)
    assert type(block) is block_class
    assert not report.fused
    assert blocks.LEFT[block_class] in {one.reason for one in report.unfused}
    assert {one.name for one in report.unfused} == {"first_norm", "second_norm"}


def test_not_without_request(x):
    block = blocks.made(blocks.OneLineEach)
    report = rownorm.patch(block)
    assert not report.fused
    assert not report.unfused
    assert calls(lambda: block(x)) == ["rownorm::layer_norm", "rownorm::rms_norm"]


def test_after_an_earlier_patch(x):
    block = blocks.made(blocks.OneLineEach)
    rownorm.patch(block)
    assert len(rownorm.patch(block, fuse_residuals=True).fused) == 1
    again = rownorm.patch(block, fuse_residuals=True)
    assert {one.reason for one in again.unfused} == {
        "its block is patched already; rownorm.unpatch restores it"
    }
    assert rownorm.unpatch(block) == 2
    assert not any(isinstance(module, Patched) for module in block.modules())


@IGNORE_ONEDNN
def test_bf16_reads_the_sum_before_it_is_rounded(x):
    """h keeps its bits; the norm is nearer to that of the exact sum than the original's."""

    class Both(blocks.OneLineEach):
        def forward(self, x):
            h = x + self.first(x)
            return self.second_norm(h), h

    torch.manual_seed(1)
    block = blocks.made(Both, torch.bfloat16)
    x = torch.randn(64, 32).bfloat16()
    y, h = block(x)
    exact = x.double() + block.first(x).double()
    exact = nn.functional.layer_norm(
        exact, (32,), block.second_norm.weight.double(), block.second_norm.bias.double()
    )
    (fused,) = rownorm.patch(block, fuse_residuals=True).fused
    assert fused.form == "add_layer_norm in Both.forward, of the sum before it is rounded to bf16"
    y2, h2 = block(x)
    assert torch.equal(h2, h)
    assert not torch.equal(y2, y)
    assert (y2 - exact).square().sum() < (y - exact).square().sum()


@IGNORE_ONEDNN
def test_under_autocast(x):
    """The stream is fp32, the update bf16: the norm has the dtype that it had."""
    block = blocks.made(blocks.OneLineEach)
    with torch.autocast("cpu", torch.bfloat16):
        before = results(block, x)
        rownorm.patch(block, fuse_residuals=True)
        after = results(block, x)
        assert "rownorm::add_layer_norm" in calls(lambda: block(x))
    for mine, expected in zip(after, before, strict=True):
        assert mine.dtype == expected.dtype
        torch.testing.assert_close(mine, expected, rtol=0.05, atol=0.05 * expected.abs().max())


@IGNORE_ONEDNN
def test_out_dtype(x):
    block = blocks.made(blocks.OneLineEach)
    report = rownorm.patch(block, fuse_residuals=True, out_dtype=torch.bfloat16)
    assert len(report.fused) == 1
    seen = []
    block.second.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        block(x)
    assert seen == [torch.bfloat16]


def _other_eps(block):
    block.second_norm.eps = 1e-3


def _other_gradient(block):
    norm = block.second_norm
    norm.register_forward_pre_hook(lambda _, args: (2 * args[0] - args[0].detach(),))


def _coarse(block):
    """fp16 has 11 bits, these rows 8."""
    norm = block.second_norm
    norm.register_forward_hook(lambda *args: args[2].bfloat16().to(args[2].dtype))


@pytest.mark.parametrize(
    ("change", "dtype", "reason"),
    [
        (_other_eps, torch.float32, "computes something else: result 0 in fp32"),
        (_other_gradient, torch.float32, "computes something else: gradient of its input in fp32"),
        (_coarse, torch.float16, "is less accurate: .* in fp16"),
    ],
)
def test_a_probe_notices(change, dtype, reason):
    """A rewrite that is wrong; in 16 bits only, in the last case."""
    block = blocks.made(blocks.OneLineEach, dtype)

    def rewrite(one):
        if next(one.parameters()).dtype == dtype:
            change(one)

    with pytest.raises(LeftAlone, match=reason):
        check_block(block, rewrite, 32, dtype)
    check_block(block, lambda one: None, 32, dtype)


# ---- what survives ----


def test_everything_survives_and_comes_back(x):
    block = blocks.made(blocks.Renamed).eval()
    model = nn.Sequential(block, nn.Linear(1, 1))
    parameters = {name: id(p) for name, p in model.named_parameters()}
    attributes = {name: dict(m.__dict__) for name, m in model.named_modules()}
    shown, keys = repr(model), list(model.state_dict())
    rownorm.patch(model, fuse_residuals=True)
    assert isinstance(block, PatchedBlock)
    assert isinstance(block, blocks.Renamed)
    assert {name: id(p) for name, p in model.named_parameters()} == parameters
    assert (repr(model), list(model.state_dict())) == (shown, keys)
    scaled = block(x, torch.ones(()), scale=0.0, other=1)[0]
    rownorm.unpatch(model)
    assert {name: m.__dict__ for name, m in model.named_modules()} == attributes
    assert type(block) is blocks.Renamed
    torch.testing.assert_close(block(x, torch.ones(()), scale=0.0, other=1)[0], scaled)


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward"])
def test_a_norm_with_a_hook_is_called_by_itself(kind, x):
    block = blocks.made(blocks.OneLineEach)
    rownorm.patch(block, fuse_residuals=True)
    before, seen = results(block, x), []
    register = getattr(block.second_norm, f"register_{kind}_hook")
    handle = register(lambda module, *_: seen.append(module))
    after = results(block, x)
    assert seen == [block.second_norm]
    assert "rownorm::add_layer_norm" not in calls(lambda: block(x))
    for mine, expected in zip(after, before, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)
    handle.remove()
    assert "rownorm::add_layer_norm" in calls(lambda: block(x))


def test_a_probe_leaves_no_trace(x):
    """Hooks are not called, and neither gradients nor random numbers nor buffers change."""
    block, seen = blocks.made(blocks.Renamed), []
    block.dropout = nn.BatchNorm1d(12)  # changes with every call, so that a probe fails; of 12 rows
    for module in block.modules():
        module.register_forward_hook(lambda *_: seen.append(1))
    state = torch.get_rng_state()
    report = rownorm.patch(block, fuse_residuals=True)
    assert report.unfused[-1].reason.startswith("fused, its block computes something else")
    assert not seen
    assert block.dropout.num_batches_tracked == 0
    assert block.dropout.running_mean.eq(0).all()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in block.parameters())


@pytest.mark.parametrize("how", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies(how, x):
    block = blocks.made(blocks.BothNorms)
    rownorm.patch(block, fuse_residuals=True)
    other = how(block)
    assert type(other) is type(block)
    assert torch.equal(other(x), block(x))
    rownorm.unpatch(other)
    assert type(other) is blocks.BothNorms
    assert isinstance(block, PatchedBlock)


@pytest.mark.parametrize("compiled_first", [True, False])
def test_compiled(compiled_first, x):
    graphs, block = [], blocks.made(blocks.BothNorms)
    y = block(x)
    compiled = block
    if compiled_first:
        compiled = torch.compile(block, backend=lambda g, _: graphs.append(g) or g, fullgraph=True)
        compiled(x)
    rownorm.patch(block, fuse_residuals=True)
    if not compiled_first:
        compiled = torch.compile(block, backend=lambda g, _: graphs.append(g) or g, fullgraph=True)
    torch.testing.assert_close(compiled(x), y, rtol=1e-4, atol=1e-4)
    names = [str(node.target) for node in graphs[-1].graph.nodes if "rownorm" in str(node.target)]
    assert [name.split(".")[1] for name in names] == ["add_rms_norm", "add_layer_norm"]


def test_compiled_children(x):
    """``module.compile()`` of a child: a copy of it in a probe must not run the original."""
    block = blocks.made(blocks.OneLineEach)
    y = block(x)
    block.first.compile(backend="eager")
    assert len(rownorm.patch(block, fuse_residuals=True).fused) == 1
    torch.testing.assert_close(block(x), y, rtol=1e-4, atol=1e-4)


def test_tensors_that_do_not_fit(x):
    """A sum that broadcasts, and a block that gets no tensor, take the plain path."""
    block = blocks.made(blocks.OneLineEach)
    rownorm.patch(block, fuse_residuals=True)
    add_norm = block.rownorm_add_norm
    y, h = add_norm(block.second_norm, x, x[0])
    torch.testing.assert_close(h, x + x[0])
    torch.testing.assert_close(y, block.second_norm(x + x[0]))
    with pytest.raises(TypeError):
        add_norm(block.second_norm, x, None)


# ---- bad input ----


def test_a_forward_of_the_instance(x):
    block = blocks.made(blocks.OneLineEach)
    block.forward = block.forward
    report = rownorm.patch(block, fuse_residuals=True)
    assert not report.fused
    assert "its forward was replaced on this module" in report.unfused[0].reason


def test_code_without_its_source():
    names = {"OneLineEach": blocks.OneLineEach}
    source = "class NoSource(OneLineEach):\n def forward(self, x):\n  x = x + x\n  return self.second_norm(x)\n"
    exec(source, names)
    block = blocks.made(names["NoSource"])
    (reason,) = {one.reason for one in rownorm.patch(block, fuse_residuals=True).unfused}
    assert reason == "the source of NoSource.forward was not found"


def test_code_that_is_not_its_source(monkeypatch):
    """As after an edit of the file, or by a tool that changes code objects."""

    class Changed(blocks.OneLineEach):
        def forward(self, x):
            h = x + 1.0
            return self.second_norm(h)

    code = Changed.forward.__code__
    constants = tuple(2.0 if one == 1.0 else one for one in code.co_consts)
    Changed.forward.__code__ = code.replace(co_consts=constants)
    (reason,) = {one.reason for one in rownorm.patch(Changed(), fuse_residuals=True).unfused}
    assert reason == "the source of Changed.forward is not that of the code that runs"


def test_quantized_parameters():
    block = blocks.made(blocks.OneLineEach)
    block.first.weight = nn.Parameter(torch.ones(32, 32, dtype=torch.int8), requires_grad=False)
    report = rownorm.patch(block, fuse_residuals=True)
    assert len(report.swapped) == 2
    assert {one.reason for one in report.unfused} == {"a parameter of its block is quantized"}


@pytest.mark.parametrize("when", ["probe", "swap"])
def test_an_interrupt_leaves_the_model_as_it_was(when, monkeypatch, x):
    block = blocks.made(blocks.OneLineEach)
    types, y = [type(module) for module in block.modules()], block(x)

    def interrupted(*_):
        raise KeyboardInterrupt

    if when == "probe":
        monkeypatch.setattr(fusion, "check_block", interrupted)
    else:
        swap = surgery.swap
        monkeypatch.setattr(
            surgery,
            "swap",
            lambda module, *rest: interrupted() if module is block else swap(module, *rest),
        )
    with pytest.raises(KeyboardInterrupt):
        rownorm.patch(block, fuse_residuals=True)
    assert [type(module) for module in block.modules()] == types
    assert torch.equal(block(x), y)
