"""The extension for CPUs: what it covers, its threads, and how it is built."""

import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import rownorm
from rownorm import extension
from rownorm.ops import cpu_native
from rownorm.program import COLUMNS, INPUTS, ROWS_OF_H, Inputs, Program
from support.criterion import assert_same_bits
from support.fake_driver import needs_compiler

OPTIONS = Program(True, 1e-5)


pytestmark = needs_compiler


@pytest.fixture
def module():
    assert cpu_native.reason() == ""
    return cpu_native.load()


@pytest.fixture
def threads():
    """Restores the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def inputs(x, residual=None, pre_bias=None, weight=None, bias=None):
    return Inputs(x, residual, pre_bias, weight, bias)


NO_OTHERS = (None,) * (len(INPUTS) - len((*ROWS_OF_H, *COLUMNS)))  # samples, gate


def wants(*names):
    return tuple(name in names for name in INPUTS)


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "tensors",
    [
        inputs(torch.randn(3, 8, dtype=torch.float64)),
        inputs(torch.randn(3, 8), weight=torch.randn(8, dtype=torch.float64)),
        inputs(torch.randn(8, 3).t()),
        inputs(torch.randn(3, 8), torch.randn(8, 3).t()),
        inputs(torch.randn(3, 8), torch.randn(1, 3, 8)),
        inputs(torch.randn(3, 8), weight=torch.randn(16)[::2]),
        inputs(torch.randn(3, 8), bias=torch.randn(7)),
        inputs(torch.randn(0, 8)),
        inputs(torch.randn(())),
        inputs(torch.ones(3, 8, dtype=torch.int32)),
        inputs(torch.randn(3, 8, device="meta")),
        inputs(torch.randn(3, 8).to_sparse()),
        inputs(torch.randn(3, 8).as_subclass(Subclass)),
        inputs([1.0, 2.0]),
    ],
    ids=[
        "fp64",
        "fp64 weight",
        "strided",
        "strided residual",
        "residual of another shape",
        "strided weight",
        "short bias",
        "no rows",
        "no dimension",
        "integers",
        "meta",
        "sparse",
        "subclass",
        "no tensor",
    ],
)
def test_other_tensors_are_left_to_python(tensors, module):
    assert module.forward(tensors, OPTIONS, True) is None


@pytest.mark.parametrize(
    "options",
    [
        OPTIONS._replace(activation="silu"),
        OPTIONS._replace(rounding="twice"),
        OPTIONS._replace(eps=-1.0),
        OPTIONS._replace(eps=float("nan")),
        OPTIONS._replace(eps=1),
        OPTIONS._replace(weight_shift=1.0),
        (*OPTIONS, "a field that it does not know"),
    ],
    ids=str,
)
def test_other_options_are_left_to_python(options, module):
    x = torch.randn(3, 8)
    assert module.forward(inputs(x), OPTIONS, False) is not None
    assert module.forward(inputs(x), options, False) is None


def test_backward_of_other_tensors_is_left_to_python(module):
    dy, x, weight, mu, rstd = torch.randn(3, 8), torch.randn(3, 8), torch.ones(8), *torch.ones(2, 3)
    wanted = wants("x", "weight")

    def backward(dy=dy, h=x, weight=weight, mu=mu, rstd=rstd, options=OPTIONS):
        tensors = (dy, None, h, None, weight, None, *NO_OTHERS, None, mu, rstd)
        return module.backward(tensors, options, False, wanted)

    assert [each is not None for each in backward()] == list(wanted)
    assert backward(dy=dy.double()) is None
    assert backward(dy=torch.randn(8, 3).t()) is None
    assert backward(h=torch.randn(3, 9)) is None
    assert backward(mu=None) is None
    assert backward(rstd=torch.ones(2)) is None
    assert backward(rstd=torch.ones(1).expand(3)) is None
    assert backward(options=OPTIONS._replace(activation="relu")) is None


def test_a_wrong_number_of_arguments_is_an_error(module):
    with pytest.raises(TypeError):
        module.forward(inputs(torch.randn(3, 8)))
    with pytest.raises(TypeError):
        module.backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_conversions_round_like_torch(dtype, module):
    """All numbers of the dtype are widened; numbers between and around them are rounded, ties to even."""
    plain = Program(False, 1e-6)
    numbers = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    _, wide, _, _ = module.forward(inputs(numbers, torch.full((2**16,), -0.0)), plain, False)
    expected = numbers.float()
    assert torch.equal(wide.isnan(), expected.isnan())
    assert_same_bits(wide.nan_to_num(), expected.nan_to_num())

    finite = expected[expected.isfinite()].sort().values
    middle = (finite[1:] + finite[:-1]) / 2
    near = [torch.nextafter(middle, torch.tensor(s)) for s in (-torch.inf, torch.inf)]
    largest = finite[-1] + (finite[-1] - finite[-2]) / 2  # rounds to infinity
    others = torch.tensor([torch.inf, -torch.inf, largest, -largest, 1e-45, -1e-45])
    values = torch.cat((finite, middle, *near, others))
    zeros = torch.full(values.shape, -0.0, dtype=dtype)
    _, narrow, _, _ = module.forward(inputs(values, zeros), plain, False)
    assert_same_bits(narrow, values.to(dtype))


@pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_x_hat_is_rounded_before_the_weight(center, dtype, module):
    x, weight = torch.randn(1, 200).to(dtype), torch.full((200,), 3.0)
    options = Program(center, 1e-6, rounding="llama")
    x_hat, _, _, _ = module.forward(inputs(x), options, False)
    y, _, mu, rstd = module.forward(inputs(x, weight=weight), options, True)
    assert_same_bits(y, (3 * x_hat.float()).to(dtype))
    tensors = (torch.ones_like(x), None, x, None, weight, weight, *NO_OTHERS, None, mu, rstd)
    gradients = module.backward(tensors, options, False, wants("weight", "bias"))
    assert_same_bits(gradients[3], x_hat[0].float())
    assert_same_bits(gradients[4], torch.ones(200))


@pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
def test_rows_whose_sum_overflows(center, module):
    """The mean of a row is computed without the sum of its elements, which fp32 cannot hold."""
    y, _, mu, _ = module.forward(inputs(torch.full((2, 64), 3e38)), (center, *OPTIONS[1:]), True)
    assert not y.any()
    assert not center or mu.tolist() == [torch.tensor(3e38)] * 2
    alternating = torch.tensor([3e38, -3e38]).repeat(2, 32)
    assert not module.forward(inputs(alternating), (center, *OPTIONS[1:]), False)[0].any()


def moments_of(x, module):
    """(mu, rstd, y) of the rows, by the extension and in fp64."""
    y, _, mu, rstd = module.forward(inputs(x), OPTIONS, True)
    wide = x.double()
    expected_mu = wide.mean(-1)
    expected_rstd = (wide.var(-1, correction=0) + OPTIONS.eps).rsqrt()
    expected_y = (wide - expected_mu[:, None]) * expected_rstd[:, None]
    return (mu, rstd, y), (expected_mu, expected_rstd, expected_y)


@pytest.mark.parametrize("n_cols", [1, 15, 16, 17, 70, 1000, 1024, 5000])
def test_moments_where_the_first_columns_are_not_typical(n_cols, module):
    """LayerNorm reads a row once, around the mean of its first columns, and again if that is far from the mean."""
    for offset in (0.0, 100.0):
        x = offset + torch.randn(4, n_cols)
        for row, n_first in enumerate((0, 1, 16, n_cols // 2)):
            x[row, :n_first] += 3e4
        (mu, rstd, y), (expected_mu, expected_rstd, expected_y) = moments_of(x, module)
        deviation = 1 / expected_rstd
        # mu is rounded to fp32 once, and so is h - mu: their size counts beside the deviation.
        step = 2**-24 * (1 + expected_mu.abs() / deviation)
        assert ((mu - expected_mu).abs() <= 4 * step * deviation).all()
        assert ((rstd - expected_rstd).abs() <= 16 * 2**-24 * expected_rstd).all()
        assert ((y - expected_y).abs() <= 8 * (step[:, None] + 2**-24 * expected_y.abs())).all()


@pytest.mark.parametrize("n_cols", [1, 7, 16, 17, 100, 1000, 5000])
def test_a_constant_row_is_exactly_the_bias(n_cols, module):
    values = torch.tensor([0.1, 1 / 3, -7e-3, 1e7 + 1, 3e38, 1e-40, 0.0, 65504.0])
    bias = torch.randn(n_cols)
    x = values[:, None].repeat(1, n_cols)
    y, _, mu, _ = module.forward(inputs(x, bias=bias), OPTIONS, True)
    assert_same_bits(y, bias.expand(8, n_cols).contiguous())
    assert_same_bits(mu, values)


@pytest.mark.parametrize("n_rows", [64, 700])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_results_do_not_depend_on_the_number_of_threads(n_rows, dtype, module, threads):
    x, residual, dy = torch.randn(3, n_rows, 1000).to(dtype)
    weight, bias, pre_bias = torch.randn(3, 1000).to(dtype)

    def run(n_threads):
        torch.set_num_threads(n_threads)
        outputs = module.forward(inputs(x, residual, pre_bias, weight, bias), OPTIONS, True)
        _, h, mu, rstd = outputs
        tensors = (dy, dy, h, pre_bias, weight, bias, *NO_OTHERS, None, mu, rstd)
        return *outputs, *module.backward(tensors, OPTIONS, True, wants(*ROWS_OF_H, *COLUMNS))

    for n_threads in (2, 3, 8):
        for result, expected in zip(run(n_threads), run(1), strict=True):
            assert_same_bits(result, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_results_allocated_in_cpp(dtype, module, node):
    """They are those that PyTorch's functions in Python allocate, without a call of these."""
    x, residual = torch.randn(1, 3, 8, dtype=dtype), torch.randn(1, 3, 8)
    weight, bias = torch.randn(8, dtype=dtype), torch.randn(8)

    def run():
        y, h, mu, rstd = module.forward(inputs(x, residual, None, weight, bias), OPTIONS, True)
        saved = (h, None, weight, bias, *NO_OTHERS, None, mu, rstd)
        wanted = wants("x", "residual", "weight", "bias")
        gradients = module.backward((y, h, *saved), OPTIONS, True, wanted)
        return y, h, mu, rstd, *(g for g in gradients if g is not None)

    def allocations(profile):
        return sum(event.name.startswith("aten::empty") for event in profile.events())

    def profiled():
        return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])

    module.use_allocator(None)  # on a GPU the node of norms with gradients has set its own
    expected = run()
    with profiled() as profile:
        run()
    assert allocations(profile) >= len(expected) == 8
    module.use_allocator(node.allocator)
    try:
        with profiled() as profile:
            found = run()
        with torch.inference_mode():
            assert all(t.is_inference() for t in run())
    finally:
        module.use_allocator(node.allocator if torch.cuda.is_available() else None)
    assert allocations(profile) == 0
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
        assert_same_bits(one, other)


def test_calls_at_the_same_time(module):
    """The extension releases the GIL while it computes."""
    rows = [torch.randn(300, 500) for _ in range(8)]
    expected = [module.forward(inputs(x), OPTIONS, False)[0] for x in rows]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda x: module.forward(inputs(x), OPTIONS, False)[0], rows * 4))
    for result, one in zip(results, expected * 4, strict=True):
        assert_same_bits(result, one)


# How it is built


@pytest.fixture
def unloaded(monkeypatch):
    """As in a new process: nothing was loaded."""
    monkeypatch.setattr(
        cpu_native, "_load", cpu_native.functools.cache(cpu_native._load.__wrapped__)
    )
    monkeypatch.setattr(cpu_native, "forward", cpu_native._first_forward)
    monkeypatch.setattr(cpu_native, "backward", cpu_native._first_backward)


def test_threads_that_call_it_first_wait_for_one_build(module, unloaded, monkeypatch):
    built, together = [], threading.Barrier(4)
    monkeypatch.setattr(cpu_native, "build", lambda: built.append(1) or module)

    def call(_):
        together.wait()
        return cpu_native.forward(inputs(torch.randn(3, 8)), OPTIONS, False)

    with ThreadPoolExecutor(4) as pool:
        assert all(outputs is not None for outputs in pool.map(call, range(4)))
    assert len(built) == 1


@pytest.mark.usefixtures("unloaded", "without_interpreter")
@pytest.mark.parametrize("what", ["setting", "Python.h", "compiler", "DLPack"])
def test_without_it_torch_computes_the_same(what, monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    if what == "setting":
        monkeypatch.setenv("ROWNORM_NATIVE", "0")
    elif what == "Python.h":
        monkeypatch.setattr(sysconfig, "get_paths", lambda *_: {"include": str(tmp_path)})
    elif what == "compiler":
        monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    else:
        monkeypatch.setattr(extension, "build", lambda *_, **__: None)
    x = torch.randn(3, 8, requires_grad=True)
    y = rownorm.layer_norm(x)
    (dx,) = torch.autograd.grad(y.square().sum(), x)
    assert cpu_native.load() is None
    named = {"setting": "ROWNORM_NATIVE is 0", "Python.h": "missing", "compiler": "no-compiler"}
    assert named.get(what, "") in cpu_native.reason()
    assert capfd.readouterr() == ("", "")
    expected = torch.layer_norm(x, (8,))
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(dx, torch.autograd.grad(expected.square().sum(), x)[0])


def test_another_cpu_has_its_own_build(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    described = []
    for cpu in ("one", "another", "one"):
        monkeypatch.setattr(cpu_native, "_cpu", lambda cpu=cpu: cpu)
        described.append(extension.describe(cpu_native.description()))
    assert described[0] == described[2] != described[1]
