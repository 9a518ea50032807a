"""The plugins for vLLM and SGLang: with the real packages where they can be imported, and with stand-ins everywhere.

What the stand-ins have in common with the packages is compared with the sources of the packages, which must only be
found, not imported: an unpacked wheel on PYTHONPATH is enough.
"""

import ast
import importlib
import importlib.metadata
import importlib.util
import logging
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rownorm.integrations import sglang as sglang_plugin
from rownorm.integrations import vllm as vllm_plugin
from support.frameworks import ALL_ARE_THERE, HOW

ROOT = Path(__file__).parents[2]
STAND_INS = ROOT / "tests" / "support" / "serving"
COLS = 48
pytestmark = [
    pytest.mark.usefixtures("without_interpreter"),
    pytest.mark.filterwarnings("ignore"),  # of the packages
]


def source_of(package):
    """The folder of an installed package, which is not imported; None without one."""
    spec = importlib.util.find_spec(package)
    return None if spec is None else Path(spec.submodule_search_locations[0])


@pytest.fixture(params=["stand-in", "package"])
def modules(request, monkeypatch):
    """A function that imports modules of the stand-in, or of the real package."""

    def imported(package, *names):
        if request.param == "package":
            if source_of(package) is None:
                pytest.skip(f"needs {package}: {HOW}, and what it imports")
            try:
                return [importlib.import_module(f"{package}.{name}") for name in names]
            except Exception as error:
                forget(package)  # what was imported before the error
                pytest.skip(f"{package} cannot be imported here: {error!r}")
        for name in [one for one in sys.modules if one.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.syspath_prepend(STAND_INS)
        made = [importlib.import_module(f"{package}.{name}") for name in names]
        request.addfinalizer(lambda: forget(package))
        return made

    return imported


def forget(package):
    """The modules of a stand-in; monkeypatch then restores those of the package."""
    for name in [one for one in sys.modules if one.partition(".")[0] == package]:
        del sys.modules[name]


@pytest.fixture
def vllm(modules, monkeypatch):
    """(the class RMSNorm as it was, the module custom_op), with the plugin registered."""
    layers, custom_op, envs = modules(
        "vllm", "model_executor.layers.layernorm", "model_executor.custom_op", "envs"
    )
    monkeypatch.setattr(custom_op, "op_registry_oot", registry := {})
    config = SimpleNamespace(
        custom_ops=["all"], enabled_custom_ops=set(), disabled_custom_ops=set()
    )
    monkeypatch.setattr(custom_op, "get_cached_compilation_config", lambda: config, raising=False)
    for variables in ("", "other", None):
        if variables is None:
            monkeypatch.delenv("VLLM_PLUGINS")
        else:
            monkeypatch.setenv("VLLM_PLUGINS", variables)
        vllm_plugin.register()
        assert not registry, "it is off unless it is named"
    monkeypatch.setenv("VLLM_PLUGINS", "other,rownorm")
    assert envs.VLLM_PLUGINS == ["other", "rownorm"]
    vllm_plugin.register()
    vllm_plugin.register()  # vLLM may load a plugin several times
    return SimpleNamespace(
        own=layers.RMSNorm, registry=registry, config=config, envs=envs, monkeypatch=monkeypatch
    )


@pytest.fixture
def sglang(modules, monkeypatch):
    """The class RMSNorm with the hook applied; ``original``: the method as it was."""
    layers, hooks = modules("sglang", "srt.layers.layernorm", "srt.plugins.hook_registry")
    hooks.HookRegistry.reset()
    original = layers.RMSNorm.forward_cuda
    monkeypatch.setattr(layers.RMSNorm, "forward_cuda", original)  # restored at the end
    for variables in ("", "other", None):
        if variables is None:
            monkeypatch.delenv("SGLANG_PLUGINS")
        else:
            monkeypatch.setenv("SGLANG_PLUGINS", variables)
        sglang_plugin.register()
        assert not hooks.HookRegistry._hooks, "it is off unless it is named"
    monkeypatch.setenv("SGLANG_PLUGINS", "other, rownorm")
    sglang_plugin.register()
    hooks.HookRegistry.apply_hooks()
    assert layers.RMSNorm.forward_cuda is not original
    yield SimpleNamespace(norm=layers.RMSNorm, layers=layers)
    hooks.HookRegistry.reset()


def rows(dtype, device, n):
    return [torch.randn(5, COLS, device=device).to(dtype) for _ in range(n)]


def assert_as_near(mine, own, exact):
    """Each result is as near to that in fp64 as the framework's own, within a rounding of its dtype."""
    mine, own, exact = (t if isinstance(t, tuple) else (t,) for t in (mine, own, exact))
    for got, theirs, truth in zip(mine, own, exact, strict=True):
        assert got.dtype == theirs.dtype
        assert got.shape == theirs.shape
        error, before = ((t.double() - truth).abs().max() for t in (got, theirs))
        assert error <= before + torch.finfo(got.dtype).eps * truth.abs().max()


def exact_norm(x, weight, eps, *terms):
    h = sum((t.double() for t in terms), start=x.double())
    y = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * weight.double()
    return (y, h) if terms else (y,)


def calls_of_rownorm(plugin, monkeypatch):
    """A list that gets the rounding of each call of a norm."""
    made = []
    for name in ("rms_norm", "add_rms_norm"):
        norm = getattr(plugin, name)
        monkeypatch.setattr(
            plugin,
            name,
            lambda *args, norm=norm, **options: (
                made.append(options["rounding"]) or norm(*args, **options)
            ),
        )
    return made


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("weight_dtype", [None, torch.float32], ids=["same", "fp32"])
@pytest.mark.parametrize("add", [False, True], ids=["norm", "add"])
def test_vllm(vllm, dtype, weight_dtype, add, device, monkeypatch):
    made = calls_of_rownorm(vllm_plugin, monkeypatch)
    norm = vllm.own(COLS, eps=1e-5, dtype=weight_dtype or dtype).to(device)
    assert type(norm) is vllm.registry["RMSNorm"]
    assert isinstance(norm, vllm.own)
    assert norm.state_dict().keys() == {"weight"}
    with torch.inference_mode():
        norm.weight.copy_(torch.randn(COLS))
        x, *residual = rows(dtype, device, 1 + add)
        own = norm.forward_native(x.clone(), *(t.clone() for t in residual))
        mine = norm.forward_cuda(x, *residual)
        truth = exact_norm(x, norm.weight, 1e-5, *residual)
    assert_as_near(mine, own, truth)
    same = weight_dtype in (None, dtype)
    assert made == ["llama" if same else "once"]
    if not add and dtype == torch.bfloat16 and same:  # the same roundings: at most one differs
        assert (mine != own).sum() <= 1


def test_vllm_without_a_weight(vllm, device, monkeypatch):
    made = calls_of_rownorm(vllm_plugin, monkeypatch)
    norm = vllm.own(COLS, has_weight=False, dtype=torch.bfloat16).to(device)
    (x,) = rows(torch.bfloat16, device, 1)
    exact = exact_norm(x, torch.ones(COLS, device=device), 1e-6)
    assert_as_near(norm.forward_cuda(x), norm.forward_native(x), exact)
    assert made == ["once"]


def test_vllm_computes_the_rest_itself(vllm, monkeypatch):
    """Statistics of some columns, and dtypes that its own norm takes in its own way."""
    made = calls_of_rownorm(vllm_plugin, monkeypatch)
    x, residual = rows(torch.float32, "cpu", 2)
    some = vllm.own(COLS, var_hidden_size=16)
    narrow = vllm.own(COLS, dtype=torch.bfloat16)
    with torch.inference_mode():
        for norm, arguments in ((some, (x,)), (narrow, (x,)), (some, (x, residual.bfloat16()))):
            mine, own = (
                f(*(t.clone() for t in arguments)) for f in (norm.forward_cuda, norm.forward_native)
            )
            torch.testing.assert_close(mine, own, atol=0, rtol=0)
    assert not made


def test_vllm_finds_it_by_the_registered_name(vllm):
    """``custom_ops: ["none", "+rms_norm"]`` is for it, as for vLLM's own norm; a model that is compiled has "none"."""
    norm = vllm.registry["RMSNorm"]
    assert norm.name == vllm.own.name == "rms_norm"
    if not hasattr(norm, "enabled"):
        return  # the stand-in
    for custom_ops, expected in (
        (["all"], True),
        (["none"], False),
        (["none", "+rms_norm"], True),
        (["all", "-rms_norm"], False),
    ):
        vllm.config.custom_ops = custom_ops
        assert norm.enabled() is expected


def test_vllm_with_another_plugin_for_its_norm(vllm, caplog):
    vllm.registry["RMSNorm"] = other = type("Other", (vllm.own,), {})
    with caplog.at_level(logging.WARNING):
        vllm_plugin.register()
    assert vllm.registry["RMSNorm"] is other
    assert "is registered for RMSNorm" in caplog.text


def test_vllm_compiles_it_without_graph_breaks(vllm, device):
    norm = vllm.own(COLS, dtype=torch.bfloat16).to(device)
    x, residual = rows(torch.bfloat16, device, 2)
    torch._dynamo.reset()
    compiled = torch.compile(norm.forward_cuda, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, residual), norm.forward_cuda(x, residual))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rounded", [False, True], ids=["once", "llama"])
@pytest.mark.parametrize("terms", [0, 1, 2], ids=["norm", "add", "add_two"])
def test_sglang(sglang, dtype, rounded, terms, device, monkeypatch):
    made = calls_of_rownorm(sglang_plugin, monkeypatch)
    norm = sglang.norm(COLS, eps=1e-5, weight_dtype=dtype, cast_x_before_out_mul=rounded).to(device)
    with torch.inference_mode():
        norm.weight.copy_(torch.randn(COLS))
        x, *added = rows(dtype, device, 1 + terms)
        own = norm.forward_native(x, *added)
        mine = norm.forward_cuda(x, *added)
        if terms == 2:  # SGLang's kernel adds these two first, and rounds
            added = [added[0] + added[1]]
        truth = exact_norm(x, norm.weight, 1e-5, *added)
    assert_as_near(mine, own, truth)
    assert made == ["llama" if rounded else "once"]
    if not terms and dtype == torch.bfloat16:
        assert (mine != own).sum() <= 1


@pytest.mark.parametrize(
    "attribute", ["_quant_linear", "variance_size_override", "override_orig_dtype"]
)
def test_sglang_computes_the_rest_itself(sglang, attribute, monkeypatch):
    made = calls_of_rownorm(sglang_plugin, monkeypatch)
    values = {"_quant_linear": torch.nn.Linear(1, 1), "variance_size_override": 16}
    norm = sglang.norm(COLS)
    (x,) = rows(torch.float32, "cpu", 1)
    object.__setattr__(norm, attribute, values.get(attribute, torch.bfloat16))
    called = []
    sglang_plugin.forward_cuda(lambda *arguments: called.append(arguments), norm, x)
    assert called == [(norm, x, None, None, None)]
    delattr(norm, attribute) if attribute == "_quant_linear" else setattr(norm, attribute, None)
    for arguments in ((x[:0],), (x, x.bfloat16()), (x.bfloat16(),), (x, None, None, object())):
        sglang_plugin.forward_cuda(lambda *arguments: called.append(arguments), norm, *arguments)
    assert len(called) == 5
    assert not made


def definitions(path):
    """The parameters of every function of a file, by its qualified name, and what is assigned to ``self``."""
    found, attributes = {}, set()

    def visit(body, prefix):
        for node in body:
            if isinstance(node, ast.ClassDef):
                found[prefix + node.name] = None
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.If):  # of TYPE_CHECKING
                visit(node.body, prefix)
            elif isinstance(node, ast.FunctionDef):
                every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                defaults = [ast.unparse(one) for one in node.args.defaults]
                found[prefix + node.name] = ([one.arg for one in every], defaults)
                for one in ast.walk(node):
                    if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store):
                        attributes.add(ast.unparse(one))
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    found[prefix + ast.unparse(target)] = None

    visit(ast.parse(path.read_text()).body, "")
    return found, attributes


CONTRACTS = {
    "vllm/envs.py": ("VLLM_PLUGINS", "VLLM_BATCH_INVARIANT"),
    "vllm/plugins/__init__.py": ("DEFAULT_PLUGINS_GROUP",),
    "vllm/model_executor/custom_op.py": (
        *("op_registry", "op_registry_oot", "CustomOp.__new__", "CustomOp.__init__"),
        *("CustomOp.register", "CustomOp.register_oot"),
    ),
    "vllm/model_executor/layers/layernorm.py": (
        *("RMSNorm.__init__", "RMSNorm.forward_cuda", "RMSNorm.forward_native"),
    ),
    "sglang/srt/environ.py": ("Envs.SGLANG_PLUGINS", "envs"),
    "sglang/srt/batch_invariant_ops/batch_invariant_ops.py": ("is_batch_invariant_mode_enabled",),
    "sglang/srt/plugins/__init__.py": ("GENERAL_PLUGINS_GROUP",),
    "sglang/srt/plugins/hook_registry.py": (
        *("HookType.AROUND", "HookRegistry.register", "HookRegistry.apply_hooks"),
        "HookRegistry.reset",
    ),
    "sglang/srt/layers/layernorm.py": (
        *("RMSNorm._quant_linear", "RMSNorm.__init__", "RMSNorm.forward_cuda"),
        "RMSNorm.forward_native",
    ),
}


@pytest.mark.parametrize("file", CONTRACTS)
def test_the_stand_ins_are_like_the_packages(file):
    package = source_of(file.partition("/")[0])
    if package is None and not ALL_ARE_THERE:
        pytest.skip(f"needs {file.partition('/')[0]}: {HOW}, or its sources on PYTHONPATH")
    assert package is not None
    mine, attributes = definitions(STAND_INS / file)
    real, there = definitions(package.parent / file)
    for name in CONTRACTS[file]:
        assert real[name] == mine[name], name
    assert attributes <= there


def test_the_entry_points():
    """Groups of the frameworks, and a function that imports them only when it is called."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for file, name, plugin in (
        ("vllm/plugins/__init__.py", "DEFAULT_PLUGINS_GROUP", vllm_plugin),
        ("sglang/srt/plugins/__init__.py", "GENERAL_PLUGINS_GROUP", sglang_plugin),
    ):
        group = points[literal(STAND_INS / file, name)]
        point = importlib.metadata.EntryPoint("rownorm", group["rownorm"], "")
        assert point.load() is plugin.register
        package = source_of(file.partition("/")[0])
        if package is not None:
            assert literal(package.parent / file, name) in points


def literal(path, name):
    """The value of a constant of a file."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{path} has no {name}")
