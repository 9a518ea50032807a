"""``torch.compile``: one graph, the same bits as eager in both directions, no recompilation for new row counts.

Under Inductor, rows of moderate width are composed of PyTorch's operators: the same up to rounding.
"""

import contextlib

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.utils import run_and_get_code
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import rownorm
from rownorm.ops import inductor
from rownorm.program import Inputs, Program
from support.operators import (
    COLS,
    FULL_CASES,
    ROWS,
    cases_in_turns,
    every_case,
    full_cases,
    gradients,
    outer_cases,
    same_bits,
)


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def recompiling_is_an_error():
    return torch._dynamo.config.patch(error_on_recompile=True)


class Block(torch.nn.Module):
    """Both modules and a residual stream, as in a transformer; one norm is over two dimensions."""

    def __init__(self):
        super().__init__()
        self.before = rownorm.nn.LayerNorm(COLS)
        self.linear = torch.nn.Linear(COLS, COLS)
        self.scale = torch.nn.Parameter(torch.randn(COLS))
        self.after = rownorm.nn.RMSNorm((2, COLS // 2))

    def forward(self, x):
        y, h = rownorm.add_rms_norm(self.linear(self.before(x)), x, self.scale, activation="silu")
        return self.after((y + h).unflatten(-1, (2, COLS // 2)))


@every_case
def test_same_bits_as_eager(case, device):
    compiled = torch.compile(case.positional, fullgraph=True, dynamic=False, backend="aot_eager")
    tensors = case.tensors(device, rows=(2, ROWS), requires_grad=True)
    outputs, expected = compiled(*tensors.values()), case(**tensors)
    same_bits(outputs, expected)
    same_bits(gradients(outputs, tensors), gradients(expected, tensors))


@full_cases
def test_without_gradients(case, device):
    compiled = torch.compile(case.positional, fullgraph=True, backend="aot_eager")
    tensors = case.tensors(device, strided=True, requires_grad=True)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            outputs, expected = compiled(*tensors.values()), case(**tensors)
        same_bits(outputs, expected)
        assert not any(output.requires_grad for output in outputs)


@outer_cases
def test_new_row_counts_do_not_recompile(case, device):
    compiled = torch.compile(case.positional, fullgraph=True, backend="aot_eager")

    def step(rows):
        tensors = case.tensors(device, rows=(rows,), requires_grad=True)
        outputs, expected = compiled(*tensors.values()), case(**tensors)
        same_bits(outputs, expected)
        same_bits(gradients(outputs, tensors), gradients(expected, tensors))

    step(3)
    step(4)  # torch marks the size as dynamic when it sees a second one
    with recompiling_is_an_error():
        for rows in (5, 2, 17):  # torch specializes on the sizes 0 and 1 for any function
            step(rows)


class Recorder:
    """A backend that records the operators of rownorm and of ATen in its graphs."""

    def __init__(self):
        self.forward, self.backward = [], []
        self.backend = aot_autograd(
            fw_compiler=self.keep(self.forward), bw_compiler=self.keep(self.backward)
        )

    def keep(self, operators):
        def compiler(graph, example_inputs):
            targets = [str(node.target) for node in graph.graph.nodes]
            operators.extend(t for t in targets if t.startswith(("rownorm.", "aten.")))
            with contextlib.suppress(ValueError):
                operators.remove("aten.detach.default")  # an output that is also saved, h
            return make_boxed_func(graph.forward)

        return compiler


@full_cases
def test_one_operator_each_way(case, device):
    """One operator in forward and one in backward, and no other operator."""
    recorder = Recorder()
    compiled = torch.compile(case.positional, fullgraph=True, backend=recorder.backend)
    tensors = case.tensors(device, requires_grad=True)
    gradients(compiled(*tensors.values()), tensors)
    assert recorder.forward == ["rownorm.norm_forward.default"]
    assert recorder.backward == ["rownorm.norm_backward.default"]


@full_cases
def test_no_statistics_without_gradients(case, device):
    recorder = Recorder()
    compiled = torch.compile(case.positional, fullgraph=True, backend=recorder.backend)
    with torch.no_grad():
        compiled(*case.tensors(device, requires_grad=True).values())
    assert recorder.forward == [f"rownorm.{case.operator}.default"]


def training_step(model, x):
    model.zero_grad()
    y = model(x)
    y.sin().sum().backward()
    return [y.detach(), *(p.grad for p in model.parameters())]


def test_modules_in_a_model(device):
    model = torch.nn.Sequential(Block(), torch.nn.Flatten(1), Block()).to(device)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    first, second = (torch.randn(rows, COLS, device=device) for rows in (3, 5))
    torch.testing.assert_close(training_step(compiled, first), training_step(model, first))
    with recompiling_is_an_error():
        torch.testing.assert_close(training_step(compiled, second), training_step(model, second))


def test_inductor(device):
    """Inductor generates the code around the operators, for any number of rows."""
    model = Block().to(device)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="inductor")
    first, second = (torch.randn(rows, COLS, device=device) for rows in (3, 5))
    torch.testing.assert_close(training_step(compiled, first), training_step(model, first))
    with recompiling_is_an_error():
        torch.testing.assert_close(training_step(compiled, second), training_step(model, second))


# A C++ compiler takes seconds for each. These two are both norms, and one has a residual.
BY_INDUCTOR = [
    pytest.param(
        case,
        id=str(case),
        marks=[pytest.mark.exhaustive] * (case.operator in ("layer_norm", "add_rms_norm")),
    )
    for case in FULL_CASES
]


@pytest.mark.parametrize("case", BY_INDUCTOR)
@pytest.mark.parametrize("n_cols", [COLS, inductor.MAX_COLS + 1], ids=["composed", "operator"])
def test_inductor_gets_operators_for_wide_rows_only(case, n_cols, device):
    tensors = case.tensors(device, cols=n_cols, requires_grad=True)
    compiled = torch.compile(case.positional, fullgraph=True, backend="inductor")
    outputs, forward = run_and_get_code(lambda: compiled(*tensors.values()))
    found, backward = run_and_get_code(lambda: gradients(outputs, tensors))
    codes = [*forward, *backward]
    assert codes
    assert all(("torch.ops.rownorm" in code) == (n_cols > inductor.MAX_COLS) for code in codes)
    expected = case(**tensors)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(found, gradients(expected, tensors), rtol=1e-4, atol=1e-4)


def test_inductor_keeps_two_roundings(device):
    """Inductor may leave out a rounding in between, so ``rounding="llama"`` stays an operator."""
    x = torch.randn(ROWS, COLS, device=device, dtype=torch.bfloat16)
    weight = torch.rand(COLS, device=device, dtype=torch.bfloat16)

    def call(x):
        return rownorm.rms_norm(x, weight, rounding="llama")

    y, codes = run_and_get_code(lambda: torch.compile(call, fullgraph=True)(x))
    assert all("torch.ops.rownorm" in code for code in codes)
    same_bits(y, call(x))


@pytest.mark.parametrize("norm", [rownorm.add_layer_norm, rownorm.add_rms_norm])
def test_composed_gradients_are_those_at_the_stored_h(norm, device):
    """Rows of a 16-bit residual stream that vary less than their rounding."""
    x = torch.full((2, 40), 20.0, dtype=torch.bfloat16, device=device, requires_grad=True)
    residual, dy = (torch.randn(2, 40, device=device).bfloat16() for _ in range(2))
    y, h = torch.compile(norm, fullgraph=True, backend="inductor")(x, residual.mul(0.05))
    (dx,) = torch.autograd.grad(y, x, dy)
    alone = rownorm.layer_norm if norm is rownorm.add_layer_norm else rownorm.rms_norm
    exact_h = h.detach().double().requires_grad_()
    (exact,) = torch.autograd.grad(alone(exact_h), exact_h, dy.double())
    torch.testing.assert_close(dx.double(), exact, rtol=2**-7, atol=2**-7 * exact.abs().max())


@pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
def test_composed_additions_take_h_as_it_is_stored(center):
    """A conversion that two additions share would be kept for backward, in fp32: see ``_prologue``."""
    program = Program(center, 1e-5)

    def two(x, residual, update):
        _, h, *_ = inductor.forward(Inputs(x, residual, None, None, None), program)
        y, h, *_ = inductor.forward(Inputs(update, h, None, None, None), program)
        return y, h

    graph = make_fx(two)(*(torch.randn(4, COLS).bfloat16() for _ in range(3))).graph
    sums = [one for one in graph.nodes if one.target is torch.ops.aten.add.Tensor]
    of_rows = [one for one in sums if one.meta["tensor_meta"].shape == (4, COLS)]
    assert len(of_rows) == 2
    for one in of_rows:
        assert all(term.meta["tensor_meta"].dtype == torch.bfloat16 for term in one.args)


def test_inductor_on_strided_rows(device):
    """Inductor chooses the strides of an operator's inputs. The operators accept any."""

    def around(x, residual):
        y, h = rownorm.add_layer_norm(x.t() * 2, residual.t().relu(), activation="gelu")
        return y.t() + h.t()

    x, residual = (torch.randn(COLS, ROWS, device=device) for _ in range(2))
    compiled = torch.compile(around, fullgraph=True, backend="inductor")
    torch.testing.assert_close(compiled(x, residual), around(x, residual))


def test_options_may_be_arguments(device):
    def call(x, eps, activation):
        return rownorm.rms_norm(x, eps=eps, activation=activation)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    x = torch.randn(ROWS, COLS, device=device)
    for eps, activation in ((1e-6, None), (1e-2, "relu"), (1e-1, "silu")):
        same_bits(compiled(x, eps, activation), call(x, eps, activation))


@full_cases
def test_checkpoint_inside(case, device):
    def call(*inputs):
        return checkpoint(case.positional, *inputs, use_reentrant=False)

    tensors = case.tensors(device, requires_grad=True)
    outputs = torch.compile(call, fullgraph=True, backend="aot_eager")(*tensors.values())
    same_bits(gradients(outputs, tensors), gradients(case(**tensors), tensors))


@full_cases
def test_autocast_inside(case, device):
    def call(*inputs):
        with torch.autocast(device, torch.bfloat16):
            return case.positional(*inputs)

    tensors = case.tensors(device, torch.bfloat16, requires_grad=True)
    outputs = torch.compile(call, fullgraph=True, backend="aot_eager")(*tensors.values())
    expected = call(*tensors.values())
    same_bits(outputs, expected)
    same_bits(gradients(outputs, tensors), gradients(expected, tensors))


def test_transforms_inside(device):
    weight = torch.randn(COLS, device=device, dtype=torch.float64)
    x = torch.randn(ROWS, COLS, device=device, dtype=torch.float64)

    def per_sample(x, weight):
        def loss(x, weight):
            return rownorm.layer_norm(x, weight).sin().sum()

        return torch.func.vmap(torch.func.grad(loss, (0, 1)), (0, None))(x, weight)

    compiled = torch.compile(per_sample, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, weight), per_sample(x, weight))


@pytest.mark.parametrize("wrong", [{"activation": "sigmoid"}, {"rounding": "twice"}])
def test_errors_reach_the_caller(wrong, device):
    compiled = torch.compile(
        lambda x: rownorm.rms_norm(x, **wrong), fullgraph=True, backend="aot_eager"
    )
    with pytest.raises(Exception, match=r"rownorm\.rms_norm: .* must be one of"):
        compiled(torch.randn(ROWS, COLS, device=device))


@cases_in_turns("through", ["function", "operator"])
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute"
)  # torch reads the gradients of saved tensors
def test_compiled_autograd(case, through, device):
    """Forward runs in eager mode. Backward is captured while it runs."""
    tensors = case.tensors(device, requires_grad=True)
    namespace = rownorm if through == "function" else torch.ops.rownorm
    call = getattr(namespace, case.operator)
    outputs = call(**tensors, **case.options)
    loss = sum(y.sin().sum() for y in (outputs if isinstance(outputs, tuple) else (outputs,)))
    expected = torch.autograd.grad(loss, tuple(tensors.values()), retain_graph=True)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        loss.backward()
    same_bits(tuple(t.grad for t in tensors.values()), expected)
