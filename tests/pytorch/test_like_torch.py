"""Where autograd, modes and unusual tensors are concerned, norms behave as torch's own, through Python, C and C++."""

import gc
import time
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import rownorm
from rownorm.ops import cpu_native, eager, execute
from rownorm.program import Inputs, Program
from support.fake_driver import needs_compiler
from support.like_torch import (
    COLS,
    FORMS,
    ROWS,
    assert_alike,
    assert_close,
    both,
    every_form,
    gradients,
    make,
    outputs_of,
    plain_forms,
)
from support.native_fixtures import ON_GPU

pytestmark = [needs_compiler, pytest.mark.usefixtures("way")]


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, marks=pytest.mark.exhaustive if form == "add_layer_norm" else ())
        for form in FORMS
    ],
)
def test_gradients_of_every_subset_of_inputs(form, device):
    (ours, our_tensors), (torchs, their_tensors) = both(form, device, requires_grad=False)
    names = list(our_tensors)
    for subset in range(1, 1 << len(names)):
        for i, name in enumerate(names):
            our_tensors[name].requires_grad_(bool(subset >> i & 1))
            their_tensors[name].requires_grad_(bool(subset >> i & 1))
        got, expected = outputs_of(ours, our_tensors), outputs_of(torchs, their_tensors)
        assert [y.requires_grad for y in got] == [y.requires_grad for y in expected]
        assert_close(gradients(got, our_tensors), gradients(expected, their_tensors))
        for output in range(len(got)):
            if got[output].requires_grad:
                assert_close(
                    gradients(outputs_of(ours, our_tensors)[output : output + 1], our_tensors),
                    gradients(
                        outputs_of(torchs, their_tensors)[output : output + 1], their_tensors
                    ),
                )


LAYOUTS = {
    "transposed": lambda t: t.t().contiguous().t(),
    "expanded": lambda t: t[:1].expand(t.shape),
    "every second": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "misaligned": lambda t: torch.cat((t.flatten()[:1], t.flatten()))[1:].view(t.shape),
    "negated view": lambda t: torch._neg_view(-t),
}


@plain_forms
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_rows_and_gradients(form, layout, device):
    def run(function, tensors):
        x = LAYOUTS[layout](tensors["x"])
        y = function(**tensors | {"x": x})
        dy = LAYOUTS[layout](torch.linspace(-1, 1, y.numel(), device=device).view(y.shape))
        return torch.autograd.grad(y, tuple(tensors.values()), dy)

    assert_alike(form, device, run)


@plain_forms
def test_hooks_on_tensors_and_nodes(form, device):
    def run(function, tensors):
        seen = []
        tensors["x"].register_hook(lambda g: seen.append(g.clone()) or 2 * g)
        y = function(**tensors)
        y.retain_grad()
        y.register_hook(lambda g: 3 * g)
        y.grad_fn.register_prehook(lambda dys: seen.append(dys[0].clone()))
        y.grad_fn.register_hook(lambda _, dys: seen.append(dys[0].clone()))
        for t in tensors.values():
            t.grad = None
        y.sin().sum().backward()
        return [*seen, y.grad, *(t.grad for t in tensors.values())]

    assert_alike(form, device, run)


@every_form
def test_hooks_on_saved_tensors(form, device):
    def run(function, tensors):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
            outputs = outputs_of(function, tensors)
        return gradients(outputs, tensors)

    assert_alike(form, device, run)


@every_form
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(form, reentrant, device):
    def run(function, tensors):
        names = list(tensors)

        def block(*inputs):
            return outputs_of(function, dict(zip(names, inputs, strict=True)))

        outputs = checkpoint(block, *tensors.values(), use_reentrant=reentrant)
        for t in tensors.values():
            t.grad = None
        sum(y.sin().sum() for y in outputs).backward()
        return [t.grad for t in tensors.values()]

    assert_alike(form, device, run)


@plain_forms
@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")
def test_anomaly_mode(form, device):
    def run(function, tensors):
        return gradients(outputs_of(function, tensors), tensors)

    with torch.autograd.set_detect_anomaly(True):
        assert_alike(form, device, run)
        for function, tensors in both(form, device):
            y = function(**tensors)
            with pytest.raises(RuntimeError, match="nan values"):
                y.backward(torch.full_like(y, float("nan")))


class EnablesGradients(torch.nn.Module):
    """As modules that compute forces from an energy do."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, **tensors):
        with torch.enable_grad():
            return self.function(**tensors)


MODES = {
    "inference": torch.inference_mode,
    "inference switched off": lambda: torch.inference_mode(False),
    "no_grad": torch.no_grad,
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
}


@every_form
@pytest.mark.parametrize("enabled", [False, True], ids=["", "enable_grad"])
@pytest.mark.parametrize("mode", MODES)
def test_modes(form, mode, enabled, device):
    def run(function, tensors):
        with MODES[mode]():
            outputs = outputs_of(EnablesGradients(function) if enabled else function, tensors)
        flags = [(y.requires_grad, y.is_inference(), y.grad_fn is None) for y in outputs]
        return *(y.clone() for y in outputs), torch.tensor(flags)

    assert_alike(form, device, run)


@every_form
def test_tensors_of_zeros_without_memory(form, device):
    """Autograd makes such tensors for gradients that are zero."""
    (ours, tensors), (torchs, _) = both(form, device)
    for name, t in tensors.items():
        zero = torch._efficientzerotensor(t.shape, device=device)
        mixed = tensors | {name: zero}
        materialized = tensors | {name: torch.zeros_like(t)}
        with torch.no_grad():
            assert_close(outputs_of(ours, mixed), outputs_of(torchs, materialized))
        got, expected = outputs_of(ours, mixed), outputs_of(torchs, materialized)
        assert_close(gradients(got, mixed), gradients(expected, mixed | {name: t.detach()}))


@every_form
def test_gradients_of_zeros_without_memory(form, device):
    def run(function, tensors):
        outputs = outputs_of(function, tensors)
        dys = [torch._efficientzerotensor(y.shape, device=device) for y in outputs]
        first = torch.autograd.grad(outputs, (*tensors.values(),), dys, retain_graph=True)
        dys[0] = torch.ones_like(outputs[0])
        return *first, *torch.autograd.grad(outputs, (*tensors.values(),), dys)

    assert_alike(form, device, run)


def without_memory(t, offset):
    """A tensor like t, a part of a larger one that was freed, as sharded modules free theirs.

    offset: where it began, in elements. Its address is then not 0.
    """
    larger = torch.cat((t.detach().flatten()[:offset], t.detach().flatten()))
    freed = larger[offset:].view(t.shape)
    larger.untyped_storage().resize_(0)
    return freed


every_offset = pytest.mark.parametrize("offset", [0, 4])


@every_form
@every_offset
def test_a_tensor_whose_memory_was_freed_is_an_error(form, offset, device):
    """Also where others prepared a call before."""
    (ours, tensors), _ = both(form, device)
    for name, t in tensors.items():
        for mode in (torch.no_grad, torch.enable_grad):
            with mode():
                ours(**tensors)
                with pytest.raises(RuntimeError, match=r"no memory|not allocated"):
                    ours(**tensors | {name: without_memory(t, offset)})


@every_form
@every_offset
def test_a_gradient_whose_memory_was_freed_is_an_error(form, offset, device):
    """Also where others prepared a call before."""
    (ours, tensors), _ = both(form, device)
    outputs, inputs = outputs_of(ours, tensors), (*tensors.values(),)
    dys = [torch.ones_like(y) for y in outputs]
    torch.autograd.grad(outputs, inputs, dys, retain_graph=True)
    for number in range(len(outputs)):
        freed = list(dys)
        freed[number] = without_memory(dys[number], offset)
        with pytest.raises(RuntimeError, match=r"no memory|not allocated"):
            torch.autograd.grad(outputs, inputs, freed, retain_graph=True)


@every_form
def test_a_saved_tensor_whose_memory_was_freed_is_an_error(form, device):
    """As a sharded module frees its parameters between forward and backward."""
    for name in FORMS[form][2]:
        if form.startswith("add_") and name in ("residual", "pre_bias"):
            continue  # backward reads no value of these
        (ours, tensors), _ = both(form, device)
        outputs = outputs_of(ours, tensors)
        dys = [torch.ones_like(y) for y in outputs]
        saved = outputs[1] if form.startswith("add_") and name == "x" else tensors[name]
        saved.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match=r"no memory|not allocated"):
            torch.autograd.grad(outputs, (*tensors.values(),), dys)


@every_form
@pytest.mark.parametrize("grad_enabled", [False, True])
def test_a_node_refuses_gradients_that_are_not_of_its_output(form, grad_enabled, device):
    """Autograd never passes such ones, but a node can be called. Also where right ones prepared a call before."""
    (ours, tensors), _ = both(form, device)
    outputs = outputs_of(ours, tensors)
    call = getattr(outputs[0].grad_fn, "apply", outputs[0].grad_fn)
    right = torch.ones(ROWS, COLS, device=device)
    wrong = (
        torch.ones(ROWS, COLS // 2, device=device),
        torch.ones(ROWS - 1, COLS, device=device),
        torch.ones(ROWS, COLS // 2, device=device, dtype=torch.float64),
        torch.ones(ROWS, COLS, device=device, dtype=torch.float64),
    )
    with torch.no_grad():
        call(*[right] * len(outputs))
    with torch.set_grad_enabled(grad_enabled):
        for dy in wrong:
            for number in range(len(outputs)):
                dys = [right] * len(outputs)
                dys[number] = dy
                with pytest.raises(RuntimeError, match="must have the shape, dtype and device"):
                    call(*dys)
            if len(outputs) == 2:
                with pytest.raises(RuntimeError, match="must have the shape, dtype and device"):
                    call(None, dy)


@pytest.mark.parametrize("form", ["add_layer_norm", "add_rms_norm"])
def test_h_of_an_operator_needs_no_gradient_through_the_weight_alone(form, device):
    x = torch.randn(ROWS, COLS, device=device)
    weight = torch.ones(COLS, device=device, requires_grad=True)
    y, h = getattr(torch.ops.rownorm, form)(x, x.clone(), weight)
    assert (y.requires_grad, h.requires_grad) == (True, False)


@every_form
def test_a_node_of_an_operator_refuses_gradients_of_another_dtype_or_shape(form, device):
    tensors = make(FORMS[form][2], device)
    outputs = outputs_of(getattr(torch.ops.rownorm, form), tensors)
    call = getattr(outputs[0].grad_fn, "apply", outputs[0].grad_fn)
    right = torch.ones(ROWS, COLS, device=device)
    for dy in (right.double(), right[:-1], right[:, :-1]):
        with pytest.raises(RuntimeError, match="must have the shape, dtype and device"):
            call(dy, *[right] * (len(outputs) - 1))


@plain_forms
def test_the_node_of_a_result(form, device):
    (ours, tensors), _ = both(form, device)
    y = ours(**tensors)
    assert isinstance(y.grad_fn, torch.autograd.graph.Node)
    assert isinstance(y.grad_fn.name(), str)
    assert isinstance(y.grad_fn.metadata, dict)
    leaves = {edge.variable for edge, _ in y.grad_fn.next_functions if edge is not None}
    assert leaves == set(tensors.values())


@every_form
def test_second_derivatives(form, device):
    """Also: no gradient, rather than zeros, where there is none."""
    ours, torchs, names = FORMS[form]

    def run(function):
        tensors = make(names, device, dtype=torch.float64)
        y = outputs_of(function, tensors)[0]
        dy = torch.linspace(-1, 1, y.numel(), device=device, dtype=torch.float64)
        dy = dy.view(y.shape).requires_grad_()
        first = torch.autograd.grad(y, (*tensors.values(),), dy, create_graph=True)
        inputs = (*tensors.values(), dy)
        second = []
        for wanted in ("x", "weight"):
            total = first[names.index(wanted)].sin().sum()
            second += torch.autograd.grad(total, inputs, allow_unused=True, retain_graph=True)
        return *first, *second

    assert_close(run(ours), run(torchs))


@plain_forms
def test_meta_tensors(form, device):
    _, _, names = FORMS[form]
    ours, torchs, _ = FORMS[form]
    for kind in ("cuda", "cpu") if ON_GPU else ("cpu",):
        for requires_grad in (False, True):
            with torch.autocast(kind, torch.bfloat16):
                tensors = make(names, "cpu", False, torch.bfloat16)
                tensors = {
                    n: t.to("meta").requires_grad_(requires_grad) for n, t in tensors.items()
                }
                got, expected = ours(**tensors), torchs(**tensors)
                assert got.is_meta
                assert got.shape == expected.shape
                assert got.requires_grad == requires_grad


class Eps(float):
    """A number that can be watched."""


def test_options_that_are_refused_are_not_kept(device):
    x = torch.randn(ROWS, COLS, device=device)
    for requires_grad in (False, True):
        x.requires_grad_(requires_grad)
        eps = torch.tensor(1e-5)
        kept = weakref.ref(eps)
        with pytest.raises(TypeError, match="eps"):
            rownorm.rms_norm(x, eps=eps)
        for module in (rownorm.nn.LayerNorm, rownorm.nn.RMSNorm):
            with pytest.raises(TypeError, match="eps"):
                module(COLS, eps=eps, device=device)(x)
            module(COLS, eps=1, device=device)(x)
            with pytest.raises(TypeError, match="eps"):
                module(COLS, eps=True, device=device)(x)
        first = torch.tensor(True)
        kept_too = weakref.ref(first)
        with pytest.raises(ValueError, match="gate_first must be one of False, True"):
            rownorm.rms_norm(x, gate=torch.ones_like(x), gate_first=first)
        del eps, first
        gc.collect()
        assert kept() is kept_too() is None
        for name in ("eps", "weight_shift"):
            rownorm.rms_norm(x, torch.ones_like(x[0]), **{name: 1})
            with pytest.raises(TypeError, match=name):
                rownorm.rms_norm(x, torch.ones_like(x[0]), **{name: True})


def test_the_number_of_prepared_calls_is_bounded(way, device, monkeypatch):
    """Over all options and shapes together."""
    if eager.native._module is None:
        pytest.skip("the calls are kept in C")
    x = torch.randn(ROWS, COLS, device=device)
    first = Eps(3e-3)
    kept = weakref.ref(first)
    eager.native._module.use(find_forward=lambda *_: None)
    for eps in (first, *(1e-4 + i * 1e-8 for i in range(2048))):
        for rows in (x, x[:2]):
            eager.native.norm(*Inputs(rows, None, None, None, None), tuple(Program(False, eps)))
    del first, eps
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("form", ["add_layer_norm", "add_rms_norm"])
def test_pre_bias_beside_a_residual_may_be_modified(form, device):
    """The composition does not save it either."""

    def run(function, tensors):
        outputs = outputs_of(function, tensors)
        with torch.no_grad():
            tensors["pre_bias"].add_(1).sub_(1)
        return gradients(outputs, tensors)

    assert_alike(form, device, run)


@pytest.mark.parametrize("form", ["add_layer_norm", "add_rms_norm"])
def test_gradients_at_h_are_as_documented(form, device):
    """Unlike those of the composition, because y and h are results of one node: docs/operations.md."""
    (ours, tensors), _ = both(form, device)
    y, h = ours(**tensors)
    h.retain_grad()
    (y.sin().sum() + 2 * h.sum()).backward(retain_graph=True)
    assert torch.equal(h.grad, torch.full_like(h, 2))  # not what comes through y
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        torch.autograd.grad(y.sum(), h, retain_graph=True)
    seen = []
    y.register_hook(seen.append)
    h.sum().backward()
    assert seen == [None]


def settled_memory():
    """Bytes allocated on the GPU, once autograd's thread has let go of the gradients that it returned."""
    gc.collect()
    time.sleep(0.1)
    return torch.cuda.memory_allocated()


@plain_forms
def test_statistics_are_freed_after_backward(form, way, device, monkeypatch):
    ours, _, names = FORMS[form]
    n_statistics = 2 if form == "layer_norm" else 1
    if ON_GPU:
        tensors = make(names, device)
        tensors["x"] = torch.randn(1 << 16, COLS, device=device, requires_grad=True)
        for retain, held in ((False, 0), (True, 1)):
            y = ours(**tensors)
            dy = torch.ones_like(y)
            torch.autograd.grad(y, (*tensors.values(),), dy, retain_graph=True)
            before = settled_memory()
            torch.autograd.grad(y, (*tensors.values(),), dy, retain_graph=retain)
            freed = before - settled_memory()
            assert freed == (0 if held else n_statistics * 4 << 16)
        return
    if way in ("c", "c++"):
        pytest.skip("what C++ allocates for the fake driver can be seen on a GPU only")
    seen = []

    def watch(outputs):
        seen.extend(weakref.ref(t) for t in outputs[2:] if t is not None)
        return outputs

    if way == "python":
        find = execute.find_forward

        def find_watched(*arguments):
            call, addresses = find(*arguments)
            return lambda *inputs: watch(call(*inputs)), addresses

        monkeypatch.setattr(execute, "find_forward", find_watched)
    else:
        of_cpu = cpu_native.load()
        forward = lambda *arguments: watch(of_cpu.forward(*arguments))  # noqa: E731
        monkeypatch.setattr(cpu_native, "forward", forward)
        if way == "cpu and c++":
            node = eager.native._node
            functions = (eager.eager_norm, eager._EagerNorm.backward, eager.NodeContext)
            node.use(None, forward, of_cpu.backward, *functions)
    tensors = make(names, device)
    y = ours(**tensors)
    gc.collect()
    assert all(ref() is not None for ref in seen)
    y.sum().backward()
    gc.collect()
    assert [ref() for ref in seen] == [None] * n_statistics


@every_form
def test_an_error_while_unpacking_leaves_nothing(form, device):
    """What was packed is freed with the graph."""

    class Packed:
        def __init__(self, t):
            self.t = t

    ours, _, names = FORMS[form]
    packed = []

    def pack(t):
        one = Packed(t)
        packed.append(weakref.ref(one))
        return one

    def unpack(one):
        raise ZeroDivisionError("in a hook")

    def fail():
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            outputs = outputs_of(ours, make(names, device))
        with pytest.raises(ZeroDivisionError, match="in a hook"):
            outputs[0].sum().backward()

    fail()
    assert packed
    deadline = time.monotonic() + 5  # the thread that ran backward may still hold the error
    while any(ref() is not None for ref in packed) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert all(ref() is None for ref in packed)


@pytest.mark.skipif(not ON_GPU, reason="CUDA graphs need a GPU")
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
def test_a_cuda_graph_of_one_wide_row(device):
    """Nothing of its memory pool is kept outside."""
    weight = torch.randn(1 << 16, device=device, requires_grad=True)

    @torch.compile(mode="reduce-overhead")
    def step(x):
        return rownorm.rms_norm(x, weight).sin().sum()

    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        weight.grad = None  # it belongs to the graph
        x = torch.randn(1, 1 << 16, device=device, requires_grad=True)
        step(x).backward()
        assert x.grad.isfinite().all()
