"""``norm`` of the extension: the whole forward call in C, or NotImplemented where Python has to do it."""

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import rownorm
from rownorm.ops import eager, execute, norms
from rownorm.program import Inputs, Program
from support.fake_driver import leaked_blocks, needs_compiler, needs_interpreter

pytestmark = [needs_compiler, needs_interpreter]

OPTIONS = tuple(Program(False, 1e-6))


def call(x, weight=None, residual=None, options=OPTIONS):
    return eager.native.norm(*Inputs(x, residual, None, weight, None), options)


@pytest.fixture
def in_c(eager_in_c, monkeypatch):
    """Every call of Python's own path is an error."""

    def fail(*_):
        raise AssertionError("the call left C")

    monkeypatch.setattr(norms, "can_skip_dispatcher", fail)
    return eager_in_c


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_functions_and_modules(dtype, trains, in_c):
    x, residual = (torch.randn(2, 3, 8, dtype=dtype, requires_grad=trains) for _ in range(2))
    rms, layer = rownorm.nn.RMSNorm(8, dtype=dtype), rownorm.nn.LayerNorm(8, dtype=dtype)
    rms.requires_grad_(trains), layer.requires_grad_(trains)
    for _ in range(2):
        assert torch.equal(rms(x), rownorm.functional.rms_norm(x, (8,), rms.weight))
        expected = rownorm.layer_norm(x, layer.weight, layer.bias)
        assert torch.equal(layer(x), expected)
        y, h = rownorm.add_rms_norm(x, residual, rms.weight)
        torch.testing.assert_close(h, x + residual)
        assert y.requires_grad == h.requires_grad == trains


@pytest.mark.parametrize("trains", [False, True])
def test_a_default_device_is_no_reason_to_leave_c(trains, in_c):
    x = torch.randn(4, 8, requires_grad=trains)
    module = rownorm.nn.RMSNorm(8, eps=1e-6)
    expected = module(x), rownorm.rms_norm(x)
    with torch.device("cpu"):
        assert torch.equal(module(x), expected[0])
        assert torch.equal(rownorm.rms_norm(x), expected[1])
        assert torch._C._is_torch_function_mode_enabled(), "the mode is on again"
        with BaseTorchFunctionMode():
            assert call(x) is NotImplemented
    in_c.module.use(find_forward=_interrupt, record=_interrupt)
    other = torch.randn(6, 8, requires_grad=trains)
    with torch.device("cpu"), pytest.raises(KeyboardInterrupt):
        call(other)
    assert not torch._C._is_torch_function_mode_enabled()


def _interrupt(*_):
    raise KeyboardInterrupt


def test_without_gradients_where_they_are_disabled(in_c):
    x = torch.randn(4, 8, requires_grad=True)
    with torch.no_grad():
        assert not call(x).requires_grad
    with torch.inference_mode():
        assert call(x).is_inference()
    assert call(x).requires_grad


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_python_does_what_c_does_not_cover(eager_in_c):
    x = torch.randn(4, 8)
    assert call(x) is not NotImplemented
    with _Mode():
        assert call(x) is NotImplemented
    with BaseTorchFunctionMode():
        assert call(x) is NotImplemented
    with torch.autograd.forward_ad.dual_level():
        assert call(x) is NotImplemented
    with torch.profiler.profile():
        assert call(x) is NotImplemented
    assert call(torch.zeros(4, 8, dtype=torch.complex64).conj().imag) is NotImplemented
    assert call(x.as_subclass(type("Mine", (torch.Tensor,), {}))) is NotImplemented
    assert call(x, weight=[1.0] * 8) is NotImplemented
    assert call(torch.empty(0, 8)) is NotImplemented
    assert torch.vmap(rownorm.rms_norm)(x[None]).shape == (1, 4, 8)


def test_bad_input_is_left_to_python(eager_in_c):
    x = torch.randn(4, 8)
    assert call(x, weight=torch.ones(7)) is NotImplemented
    assert call(x, options=(False, [], 0.0, None, "once", None)) is NotImplemented
    with pytest.raises((ValueError, RuntimeError), match="weight"):
        rownorm.rms_norm(x, torch.ones(7))
    with pytest.raises((ValueError, RuntimeError), match="normalized_shape"):
        rownorm.nn.RMSNorm(7)(x)


def test_an_interrupt_is_not_swallowed(eager_in_c, monkeypatch):
    monkeypatch.setattr(execute, "find_forward", _interrupt)
    for trains in (False, True):
        with pytest.raises(KeyboardInterrupt):
            call(torch.randn(5, 8, requires_grad=trains))


def test_a_module_is_traced_and_exported_as_before(eager_in_c):
    module = rownorm.nn.RMSNorm(8)
    x = torch.randn(4, 8)
    expected = module(x)
    graph = torch.fx.symbolic_trace(module)
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [
        rownorm.functional.rms_norm
    ]
    torch.testing.assert_close(graph(x), expected)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected)


@pytest.mark.parametrize("trains", [False, True])
def test_nothing_leaks(trains, eager_in_c):
    x, weight = torch.randn(4, 8, requires_grad=trains), torch.randn(8)
    eager_in_c.on_launch = None
    assert leaked_blocks(lambda: (eager_in_c.launched.clear(), call(x, weight))) < 0.5
    bad = torch.ones(7)
    assert leaked_blocks(lambda: call(x, bad) if not trains else None, 200) < 0.5
