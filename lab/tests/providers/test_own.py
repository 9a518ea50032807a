"""Providers from users' files: which arguments a function gets, what it offers, and what is refused."""

import re
from pathlib import Path

import pytest
import torch

from rownorm_lab import providers
from rownorm_lab.data.case import Case
from rownorm_lab.measure.accuracy import judge
from rownorm_lab.providers import OPTIONS, Refusal, all_providers, as_tuple
from rownorm_lab.providers.data import rotation
from rownorm_lab.providers.own import PASSED, add_provider, add_providers


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    all_providers()
    monkeypatch.setattr(providers, "_registry", dict(providers._registry))


@pytest.fixture
def own(tmp_path):
    """A function that writes a file and adds the provider ``name`` of it."""

    def add(text, name, file="mine.py"):
        (tmp_path / file).write_text("import torch\nimport torch.nn.functional as F\n" + text)
        return add_provider(f"{tmp_path / file}:{name}")

    return add


KERNEL = """
import triton, triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def kernel(y, x, weight, n, eps, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + cols, mask=cols < n, other=0.0).to(tl.float32)
    w = tl.load(weight + cols, mask=cols < n, other=0.0)
    tl.store(y + row * n + cols, v * tl.rsqrt(tl.sum(v * v) / n + eps) * w, mask=cols < n)


def rms(x, weight, eps):
    triton.runtime.driver.active.get_active_torch_device()
    y = torch.empty(x.shape, device=DEVICE, dtype=x.dtype)
    kernel[(x.shape[0],)](y, x, weight, x.shape[1], eps)
    return y
"""
RMS = """
def norm(x, weight, eps=1e-6):
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().mean(-1, True) + eps) * weight.float()).to(x.dtype)
"""
ADD = """
def add_layer_norm(x, residual, weight, bias=None, eps=1e-5, activation=None):
    h = x + residual
    y = F.layer_norm(h, h.shape[-1:], weight, bias, eps)
    return (F.silu(y) if activation == "silu" else y), h
"""
TORCH = """
def layer_norm(input, normalized_shape, weight, bias, eps):
    return F.layer_norm(input, normalized_shape, weight, bias, eps)
"""
DECLARED = """
from rownorm_lab.providers import by_autograd, provider

@provider("Swift", about="mine", operations=("rms_norm",), dtypes=("fp32",), directions=("forward", "backward"))
def make(case, t):
    scale = t.weight * 1  # what is prepared once is not timed
    return by_autograd(case, t, lambda: F.rms_norm(t.x, (case.cols,), t.weight, case.eps))
"""


def judged(one, case):
    (t,) = rotation(case, 1, "cpu")
    return judge(case, t, as_tuple(one.prepare(case, t)()), strict=False)


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        (RMS, "norm", {"operation": "rms_norm"}),
        (RMS, "norm", {"operation": "rms_norm", "direction": "backward", "dtype": "bf16"}),
        (RMS, "norm", {"operation": "rms_norm", "direction": "both", "eps": 0.1}),
        (ADD, "add_layer_norm", {"operation": "add_layer_norm"}),
        (ADD, "add_layer_norm", {"operation": "add_layer_norm", "bias": False}),
        (ADD, "add_layer_norm", {"operation": "add_layer_norm", "activation": "silu"}),
        (ADD, "add_layer_norm", {"operation": "add_layer_norm", "direction": "both"}),
        (TORCH, "layer_norm", {"operation": "layer_norm"}),
        (TORCH, "layer_norm", {"operation": "layer_norm", "bias": False}),
        (DECLARED, "make", {"operation": "rms_norm", "direction": "backward"}),
        ("def rms_norm(x, **options): return F.rms_norm(x, x.shape[-1:], options['weight'], "
         "options['eps'])", "rms_norm", {"operation": "rms_norm"}),
    ],
)  # fmt: skip
def test_a_function_gets_what_the_case_has(own, text, name, options):
    case = Case(rows=3, cols=40, **({"dtype": "fp32"} | options))
    found = judged(own(text, name), case)
    assert found.ok, found.why


def test_a_wrong_function_is_found(own):
    one = own(RMS.replace("+ eps", "+ 10 * eps"), "norm")
    assert not judged(one, Case(operation="rms_norm", rows=3, cols=40, dtype="fp32", eps=0.1)).ok


def test_what_a_function_offers_follows_from_its_names_and_parameters(own):
    assert own(RMS, "norm").operations == ("layer_norm", "rms_norm")
    assert own(RMS, "norm", "my_rms.py").operations == ("rms_norm",)
    assert own(ADD, "add_layer_norm").operations == ("add_layer_norm",)
    both = ADD.replace("residual,", "weight, residual=None,").replace(
        "residual=None, weight", "residual=None"
    )
    assert own(both, "add_layer_norm").operations == ("layer_norm", "add_layer_norm")
    assert own(TORCH, "layer_norm").name == "mine.layer_norm"
    declared = own(DECLARED, "make", "declared.py")
    assert (declared.name, declared.kind, declared.dtypes) == ("swift", "own", ("fp32",))


@pytest.mark.parametrize(
    ("text", "name", "options", "why"),
    [
        (RMS, "norm", {"bias": True}, "norm has no parameter bias"),
        (RMS, "norm", {"activation": "silu"}, "norm has no parameter activation"),
        (RMS, "norm", {"gate_activation": "silu"}, "norm has no parameter gate"),
        (RMS.replace("x32 = x", "x32 = x.detach()"), "norm", {"direction": "both"}, None),
        ("def norm(x, weight, eps): return x.detach()", "norm", {"direction": "backward"},
         "the results of norm have no gradient"),
        (DECLARED, "make", {"direction": "both"}, "swift has no backward"),
        (DECLARED, "make", {"pre_bias": True}, "a bias before the norm"),
    ],
)  # fmt: skip
def test_what_it_does_not_take_is_refused(own, text, name, options, why):
    case = Case(operation="rms_norm", rows=2, cols=8, **({"dtype": "fp32"} | options))
    if why is None:  # a gradient of the weight alone is no gradient of x: autograd says so
        with pytest.raises(RuntimeError, match="not have been used"):
            judged(own(text, name), case)
        return
    with pytest.raises(Refusal, match=why):
        judged(own(text, name), case)


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        ("norm = 3", "norm", "is not a function, but a int"),
        ("def norm(): pass", "norm", "the first parameter must be x"),
        ("def norm(x, gamma): pass", "norm", "gamma is not an argument of a norm"),
        ("def norm(x): pass", "other", "mine.py has no 'other'; it has norm"),
        (
            KERNEL,
            "kernel",
            r"kernel is a kernel \(@triton.jit\): name the function that launches it",
        ),
        ("import surely_missing", "norm", r"No module named 'surely_missing' \(mine.py, line 3\)"),
        ("def norm(x:", "norm", r"SyntaxError: .*\(mine.py, line 3\)"),
        ("raise SystemExit(2)", "norm", "cannot be imported: SystemExit"),
        (DECLARED.replace("Swift", "torch"), "make", "there is a provider torch already"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(own, text, name, why):
    before = all_providers()
    with pytest.raises(ValueError, match=why):
        own(text, name)
    assert all_providers() == before


@pytest.mark.parametrize("place", ["mine.py", "mine.py:", "no_such.py:norm"])
def test_a_place_that_is_none(place):
    with pytest.raises(ValueError, match=r"as FILE.py:name|No such file"):
        add_provider(place)


def test_a_place_without_a_name_says_what_the_file_has(tmp_path):
    (tmp_path / "mine.py").write_text(RMS + "\ndef _inner(): pass\nimport surely_missing\n")
    with pytest.raises(ValueError, match=r"as FILE.py:name; it has norm$"):
        add_provider(str(tmp_path / "mine.py"))


def test_a_file_is_loaded_as_it_is_now_and_a_change_is_noticed(own, tmp_path):
    one = own(RMS, "norm")
    add_providers([one.source])
    x = torch.ones(2, 4)
    assert own("def norm(x, weight): return x + 1", "norm").source.digest != one.source.digest
    case = Case(operation="rms_norm", rows=2, cols=4, dtype="fp32")
    (t,) = rotation(case, 1, "cpu")
    assert torch.equal(all_providers()["mine.norm"].prepare(case, t._replace(x=x))(), x + 1)
    with pytest.raises(
        ValueError, match=r"mine.py has changed since: it was mine.py:norm, SHA-256"
    ):
        add_providers([one.source])


def test_a_file_with_triton_kernels_needs_a_gpu_or_the_interpreter(own):
    kernel = "import triton\n@triton.jit\ndef kernel(x): pass\n"
    assert own(kernel + RMS, "norm").interpreted
    assert not own(RMS, "norm").interpreted


@pytest.mark.skipif(torch.cuda.is_available(), reason="for the interpreter")
def test_an_autotuned_kernel_of_a_file_that_asks_triton_for_its_gpu(own):
    case = Case(operation="rms_norm", rows=3, cols=40, dtype="fp32")
    assert judged(own(KERNEL, "rms"), case).ok


def test_a_function_that_returns_nothing(own):
    for text, why in (
        ("def rms(x, weight):\n    y = x", "rms returned None; it must return y$"),
        (
            "def add_rms(x, residual, weight):\n    y = x",
            "add_rms returned None; it must return y, h",
        ),
    ):
        (name,) = re.findall(r"def (\w+)", text)
        operation = "add_rms_norm" if "residual" in text else "rms_norm"
        case = Case(operation=operation, rows=3, cols=40, dtype="fp32")
        with pytest.raises(ValueError, match=why):
            judged(own(text, name, f"{name}.py"), case)


def test_the_provider_of_the_document(own):
    page = Path(__file__).parents[3] / "docs" / "own-kernel.md"
    (snippet,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    one = own(snippet, "mine")
    for direction in one.directions:
        case = Case(operation="rms_norm", direction=direction, rows=3, cols=40, dtype="fp32")
        assert judged(one, case).ok


def test_the_page_has_every_parameter_and_option():
    page = (Path(__file__).parents[3] / "docs" / "own-kernel.md").read_text()
    table = page.partition("| parameter | what |")[2].partition("\n\n")[0]
    cells = [line.split(" | ")[0] for line in table.splitlines()]
    assert sorted(re.findall(r"`(\w+)`", " ".join(cells))) == sorted(PASSED)
    comment = re.search(r"# of (.+)\n    options=", page)
    assert comment[1].split(", ") == list(OPTIONS)
