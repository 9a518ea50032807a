"""Dispatch: modes, subclasses, profilers, fake and meta tensors see the operators."""

import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import rownorm
from rownorm.ops import eager, norms
from support.operators import COLS, ROWS, every_case, full_cases, gradients, same_bits


class Dispatched(TorchDispatchMode):
    """A mode that records the operators of rownorm that are dispatched."""

    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.namespace == "rownorm":
            self.operators.append(str(operator))
        return operator(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


class Wrapped(torch.Tensor):
    """A subclass that wraps a tensor and records the operators called on it."""

    seen: list[str] = []  # noqa: RUF012

    @staticmethod
    def __new__(cls, tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls, tensor.shape, dtype=tensor.dtype, device=tensor.device
        )

    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        cls.seen.append(str(operator))
        unwrap = torch.utils._pytree.tree_map_only(Wrapped, lambda t: t.tensor, (args, kwargs))
        results = operator(*unwrap[0], **(unwrap[1] or {}))
        return torch.utils._pytree.tree_map_only(torch.Tensor, Wrapped, results)


@full_cases
def test_dispatch_mode(case, device):
    tensors = case.tensors(device, requires_grad=True)
    expected = case(**tensors)
    with Dispatched() as mode:
        outputs = case(**tensors)
        dispatched = gradients(outputs, tensors)
    assert mode.operators == ["rownorm.norm_forward.default", "rownorm.norm_backward.default"]
    same_bits(outputs, expected)
    same_bits(dispatched, gradients(expected, tensors))
    with Dispatched() as mode, torch.no_grad():
        case(**tensors)
    assert mode.operators == [f"rownorm.{case.operator}.default"]


@full_cases
def test_dispatch_mode_around_the_backward_alone(case, device):
    tensors = case.tensors(device, requires_grad=True)
    outputs = case(**tensors)
    with Dispatched() as mode:
        gradients(outputs, tensors)
    assert mode.operators == ["rownorm.norm_backward.default"]


@full_cases
def test_function_mode(case, device):
    with Functions() as mode:
        case(**case.tensors(device))
    assert any(case.operator in name for name in mode.seen)


@full_cases
def test_subclass(case, device):
    tensors = case.tensors(device)
    Wrapped.seen.clear()
    outputs = case(**{name: Wrapped(t) for name, t in tensors.items()})
    assert Wrapped.seen == [f"rownorm.{case.operator}.default"]
    same_bits(tuple(output.tensor for output in outputs), case(**tensors))


@full_cases
def test_profiler(case, device):
    tensors = case.tensors(device, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        gradients(case(**tensors), tensors)
        with torch.no_grad():
            case(**tensors)
    names = [event.name for event in profile.events() if event.name.startswith("rownorm::")]
    operator = f"rownorm::{case.operator}"
    assert names == [operator, "rownorm::norm_backward", operator]


@full_cases
def test_default_device(case, device, monkeypatch):
    """A default device is a function mode. It changes nothing about a norm, so no operator is called."""
    tensors = case.tensors(device, requires_grad=True)
    outputs = case(**tensors)
    expected = (*outputs, *gradients(outputs, tensors))
    monkeypatch.setattr(norms, "Program", None)  # the path to the operators needs it
    monkeypatch.setattr(eager, "_gradients_by", None)
    with torch.device("meta"):
        outputs = case(**tensors)
        results = (*outputs, *gradients(outputs, tensors))
    same_bits(results, expected)


@full_cases
def test_another_mode_beside_a_default_device(case, device):
    for outer, inner in ((torch.device("meta"), Functions()), (Functions(), torch.device("meta"))):
        with outer, inner:
            case(**case.tensors(device))
        mode = outer if isinstance(outer, Functions) else inner
        assert any(case.operator in name for name in mode.seen)


@every_case
@pytest.mark.parametrize("requires_grad", [False, True], ids=["inference", "training"])
def test_fake_tensors(case, requires_grad, device):
    tensors = case.tensors(device, torch.float16, rows=(2, ROWS), requires_grad=requires_grad)
    with FakeTensorMode() as mode:
        fakes = {name: mode.from_tensor(t) for name, t in tensors.items()}
        outputs = case(**fakes)
        results = (*outputs, *gradients(outputs, fakes)) if requires_grad else outputs
    outputs = case(**tensors)
    expected = (*outputs, *gradients(outputs, tensors)) if requires_grad else outputs
    assert all(isinstance(t, FakeTensor) for t in results)
    for fake, real in zip(results, expected, strict=True):
        assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
        assert fake.stride() == real.stride()


@every_case
def test_meta_device(case):
    tensors = case.tensors("meta", torch.bfloat16, requires_grad=True)
    outputs = case(**tensors)
    results = (*outputs, *gradients(outputs, tensors))
    rows = [tensors[name] for name in ("x", "residual") if name in tensors]
    for t, like in zip(results, (*rows, *tensors.values()), strict=True):
        assert (t.device.type, t.dtype, t.shape) == ("meta", like.dtype, like.shape)


@pytest.mark.parametrize("norm", [rownorm.layer_norm, rownorm.rms_norm])
def test_checks_come_before_fake_tensors_too(norm):
    with pytest.raises(ValueError, match="weight must have shape"):
        norm(torch.empty(ROWS, COLS, device="meta"), torch.empty(COLS + 1, device="meta"))
    with FakeTensorMode(), pytest.raises(ValueError, match="weight must have shape"):
        norm(torch.empty(ROWS, COLS), torch.empty(COLS + 1))


@pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning",
    "ignore:`torch.jit.trace:DeprecationWarning",
    "ignore:`torch.jit.trace:FutureWarning",
)
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("module", [rownorm.nn.RMSNorm, rownorm.nn.LayerNorm])
def test_jit_trace(module, trains, device):
    """Tracing goes through the dispatcher."""
    norm = module(64, device=device).requires_grad_(trains)
    traced = torch.jit.trace(norm, (torch.randn(4, 64, device=device),))
    x = torch.randn(7, 64, device=device)  # another number of rows
    assert torch.equal(traced(x), norm(x))
