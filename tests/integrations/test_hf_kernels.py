"""The build for Hugging Face's package ``kernels``: how it loads it, and the norms of transformers that get its layers.

No network is needed: the build is loaded from a folder.
"""

import ast
import importlib
import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import rownorm
from rownorm.ops import cpu_native
from support.documents import indented_block
from support.transformers_models import (
    HUB_DECODERS,
    InFp64,
    OtherOrder,
    distances,
    inputs,
    logits_and_gradients,
    make,
    transformers,
)

# Not "kernels" alone: without the package, that is the folder of this name beside this one.
pytest.importorskip("kernels.layer", reason="needs kernels: pip install kernels==0.17.2")
import kernels
from kernels import LocalLayerRepository, Mode, kernelize, use_kernel_mapping

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers
ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "integrations" / "hf_kernels"
LAYERS = ("RMSNorm", "RMSNormGated", "RMSNormZeroCentered", "LayerNorm")
MODES = {
    "training": Mode.TRAINING,
    "inference": Mode.INFERENCE,
    "training, compiled": Mode.TRAINING | Mode.TORCH_COMPILE,
    "inference, compiled": Mode.INFERENCE | Mode.TORCH_COMPILE,
}
COLS = 48


def builder():
    spec = importlib.util.spec_from_file_location("build_hf_kernels", SOURCES / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """The folder of a build."""
    folder = tmp_path_factory.mktemp("hf_kernels")
    builder().build(folder)
    return folder


@pytest.fixture(scope="module")
def loaded(repository):
    """The build, loaded by ``kernels``. It computes on a CPU without the interpreter and without a C compiler."""
    cpu_native.reason()  # the library decides now whether it has an extension, before the variable says no
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROWNORM_NATIVE", "0")
        if not torch.cuda.is_available():
            patch.setenv("TRITON_INTERPRET", "0")
        kernel = kernels.get_local_kernel(repository)
        yield kernel


@pytest.fixture
def kernelized(loaded, repository, device):
    """A function: the model with the layers of the build for a mode."""
    layers = {name: {device: LocalLayerRepository(repository, layer_name=name)} for name in LAYERS}

    def apply(model, mode):
        with use_kernel_mapping(layers, inherit_mapping=False):
            return kernelize(model, mode=MODES[mode], device=device)

    return apply


def marked_classes():
    """(folder, class, layer name) of every norm of transformers that takes a layer of the hub."""
    models = Path(transformers().__file__).parent / "models"
    for file in sorted(models.glob("*/modeling_*.py")):
        if "RMSNorm" not in (text := file.read_text()):
            continue
        for node in ast.parse(text).body:
            for decorator in getattr(node, "decorator_list", ()):
                words = ast.unparse(decorator)
                if words.startswith("use_kernel_forward_from_hub('RMSNorm"):
                    yield file.parent.name, node.name, ast.literal_eval(decorator.args[0])


def norm_class(folder, name):
    package = f"{transformers().__name__}.models.{folder}"
    return getattr(importlib.import_module(f"{package}.modeling_{folder}"), name)


def small(norm, dtype, device):
    """A module of 48 columns with random weights."""
    torch.manual_seed(5)
    module = norm(COLS)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter))
    return module.to(device, dtype)


def results(module, dtype, device, gated, function=None):
    """The result and the gradients of rows, gate and parameters."""
    generator = torch.Generator().manual_seed(6)
    rows = [
        torch.randn(3, 5, COLS, generator=generator).to(device, dtype).requires_grad_()
        for _ in range(1 + gated)
    ]
    y = (module if function is None else function)(*rows)
    dy = torch.randn(y.shape, generator=generator).to(device, y.dtype)
    gradients = torch.autograd.grad(y, [*rows, *module.parameters()], dy)
    return [t.detach() for t in (y, *gradients)]


def check_norm(norm, layer, mode, kernelized, loaded, device):
    """Results and gradients in fp32 and bf16 are as near to fp64 as those of the class."""
    gated = layer == "RMSNormGated"
    for dtype in (torch.float32, torch.bfloat16):
        module = small(norm, dtype, device)
        own = results(module, dtype, device, gated)
        with InFp64():
            exact = results(small(norm, dtype, device).double(), dtype, device, gated)
        assert kernelized(module, mode) is module
        assert module.forward.__func__ is getattr(loaded.layers, layer).forward
        assert loaded.layers._call_of(module, dtype) is not None
        compiled = mode.endswith("compiled")
        function = (
            torch.compile(module, backend="aot_eager", fullgraph=True) if compiled else module
        )
        mine = results(module, dtype, device, gated, function)
        for got, expected, truth in zip(mine, own, exact, strict=True):
            assert got.dtype == expected.dtype
            error, before = ((t.double() - truth).abs().max() for t in (got, expected))
            # The truth rounds what the class rounds to bf16; dy differs by a rounding where y's dtype does.
            slack = 2 * torch.finfo(got.dtype).eps * truth.abs().max()
            assert error <= 1.25 * before + slack, (norm.__name__, dtype)


# Of different forms: llama, once, gates, 1 + weight.
FEW = (
    ("llama", "LlamaRMSNorm", "RMSNorm"),
    ("olmo2", "Olmo2RMSNorm", "RMSNorm"),
    ("qwen3_next", "Qwen3NextRMSNormGated", "RMSNormGated"),
    ("kimi_linear", "KimiLinearRMSNormGated", "RMSNormGated"),
    ("qwen3_5", "Qwen3_5RMSNorm", "RMSNormZeroCentered"),
)


@pytest.mark.parametrize("mode", ["training", "training, compiled"])
@pytest.mark.parametrize(("folder", "name", "layer"), FEW)
def test_norms(folder, name, layer, mode, kernelized, loaded, device):
    torch._dynamo.reset()
    check_norm(norm_class(folder, name), layer, mode, kernelized, loaded, device)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES)
def test_every_marked_class(mode, kernelized, loaded, device):
    """Of transformers 5.22.2: 137 RMSNorm, 8 RMSNormGated, 2 RMSNormZeroCentered."""
    package = transformers()
    marked = list(marked_classes())
    if package.__version__ == "5.22.2":
        layers = [layer for _, _, layer in marked]
        assert [layers.count(name) for name in LAYERS] == [137, 8, 2, 0]
    for folder, name, layer in marked:
        torch._dynamo.reset()
        check_norm(norm_class(folder, name), layer, mode, kernelized, loaded, device)


def is_marked(module):
    return getattr(type(module), "kernel_layer_name", "") in LAYERS


def check_model(name, mode, kernelized, loaded):
    """A model in fp32 differs from the original as another order of summation does.

    Without the gradients of DiffLlama's lambda, a sum that cancels: ``test_gradients_of_lambda``.
    """
    torch._dynamo.reset()
    model, arguments = make(name), inputs(name)
    original = logits_and_gradients(model, arguments)
    with OtherOrder():
        other = distances(logits_and_gradients(model, arguments), original)
    model = kernelized(model, mode)
    norms = [module for module in model.modules() if is_marked(module)]
    assert norms
    assert all(loaded.layers._call_of(norm, torch.float32) is not None for norm in norms)
    if mode.endswith("compiled"):
        model.compile(backend="aot_eager")
    mine = distances(logits_and_gradients(model, arguments), original)
    mine = {tensor: distance for tensor, distance in mine.items() if "lambda" not in tensor}
    rounding = torch.finfo(torch.float32).eps
    assert max(mine.values()) <= 2 * max(other.values()) + 8 * rounding


on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the small models are made on a CPU")


@on_cpu
@pytest.mark.parametrize("mode", ["training", "inference, compiled"])
def test_a_model(mode, kernelized, loaded):
    check_model("qwen3", mode, kernelized, loaded)


@on_cpu
@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "phi3", "olmo2", *HUB_DECODERS])
def test_models(name, mode, kernelized, loaded):
    check_model(name, mode, kernelized, loaded)


@on_cpu
@pytest.mark.exhaustive
def test_gradients_of_lambda(kernelized, loaded):
    """Their terms cancel, so for one input the errors of both are luck: over ten inputs they are of one size."""
    errors = []
    for seed in range(10):
        tokens = torch.randint(3, 64, (2, 7), generator=torch.Generator().manual_seed(seed))
        exact, own, mine = (
            logits_and_gradients(model, {"input_ids": tokens})
            for model in (
                make("diffllama", torch.float64),
                make("diffllama"),
                kernelized(make("diffllama"), "training"),
            )
        )
        errors += [
            [(one[name] - exact[name]).norm() for one in (own, mine)]
            for name in exact
            if "lambda" in name
        ]
    before, after = torch.tensor(errors).square().mean(0).sqrt()
    assert len(errors) == 80
    assert 0 < after <= 1.25 * before


def test_the_block_in_the_documentation(loaded, repository, capsys):
    """With kernels alone, on a CPU: in both modes, forward and backward."""
    block = indented_block("integrations.md", "from kernels import")
    assert block.count("/models/rownorm-kernel") == 1
    names = {}
    exec(block.replace("/models/rownorm-kernel", str(repository)), names)
    (comment,) = re.findall(r"# ends in (\S+)", block)
    assert capsys.readouterr().out.strip().endswith(comment)
    model = names["model"]
    for training in (True, False):
        model.train(training)
        model(torch.arange(8)[None]).logits.square().mean().backward()
        norms = [one for one in model.modules() if is_marked(one)]
        assert len(norms) == 5
        assert all(one.forward.__func__ is loaded.layers.RMSNorm.forward for one in norms)
        assert all(one.weight.grad.abs().max() > 0 for one in norms)


# ---- transformers' own way to its layers: KernelConfig ----

CONFIGURED = {"llama": ("RMSNorm", 5), "qwen3_next": ("RMSNormGated", 1)}


@pytest.fixture
def supported(monkeypatch):
    """transformers' list of devices for kernels has no CPU. That is all that is different without a GPU."""
    settings = importlib.import_module(f"{transformers().__name__}.utils.kernel_config")
    devices = [*settings.KERNELS_SUPPORTED_DEVICE_TYPES, "cpu"]
    monkeypatch.setattr(settings, "KERNELS_SUPPORTED_DEVICE_TYPES", devices)


def kernel_config(layer, repository):
    return transformers().KernelConfig({layer: f"{repository}:{layer}"}, use_local_kernel=True)


def outputs(model, arguments, training):
    """The logits, for training with gradients of all parameters."""
    if training:
        return logits_and_gradients(model, arguments)
    with torch.no_grad():
        return {"logits": model(**arguments).logits.double()}


def largest_error(results, exact):
    """Over all tensors, in units of the largest element of each, or of 1% of the largest gradient."""
    if len(exact) > 1:
        return max(distances(results, exact).values())
    return ((results["logits"] - exact["logits"]).abs().max() / exact["logits"].abs().max()).item()


def check_configured(name, training, compiled, dtype, loaded, repository, device):
    """Logits and gradients are as near to those in fp64 as the original's."""
    torch._dynamo.reset()
    arguments = {key: t.to(device) for key, t in inputs(name).items()}
    with InFp64():
        exact = outputs(make(name, torch.float64).to(device), arguments, training)
    model = make(name, dtype).to(device).train(training)
    own = largest_error(outputs(model, arguments, training), exact)
    layer, n = CONFIGURED[name]
    model.set_use_kernels(True, kernel_config(layer, repository))
    forward = getattr(loaded.layers, layer).forward
    norms = [one for one in model.modules() if getattr(one, "kernel_layer_name", "") == layer]
    assert len(norms) == n
    assert all(one.forward.__func__ is forward for one in norms)
    assert all(loaded.layers._call_of(one, dtype) is not None for one in norms)
    if compiled:
        model.compile(backend="aot_eager")
    mine = largest_error(outputs(model, arguments, training), exact)
    assert 0 < mine <= 2 * own + 8 * torch.finfo(dtype).eps


@pytest.mark.usefixtures("supported")
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", CONFIGURED)
def test_kernel_config(name, training, loaded, repository, device):
    check_configured(name, training, False, torch.float32, loaded, repository, device)


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU: KernelConfig in bf16, and compiled"
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "training", "compiled"),
    [
        ("llama", False, False),
        ("llama", False, True),
        ("llama", True, False),
        ("llama", True, True),
        ("qwen3_next", False, False),
        ("qwen3_next", False, True),
        # Not compiled: with Qwen3-Next's own norms, too, the backward graph stops at a view of strided rows.
        ("qwen3_next", True, False),
    ],
)
def test_kernel_config_on_a_gpu(name, training, compiled, dtype, loaded, repository):
    check_configured(name, training, compiled, dtype, loaded, repository, "cuda")


@pytest.mark.usefixtures("supported")
def test_train_drops_the_layers_until_they_are_asked_for_again(loaded, repository, device):
    """transformers makes a configuration for the mode of the model at that time. The documentation says so."""
    model = make("llama").to(device)
    model.set_use_kernels(True, kernel_config("RMSNorm", repository))
    norm, layer = model.model.norm, loaded.layers.RMSNorm
    assert norm.forward.__func__ is layer.forward
    model.train()
    assert norm.forward.__func__ is not layer.forward
    model.set_use_kernels(True, kernel_config("RMSNorm", repository))
    assert norm.forward.__func__ is layer.forward


@pytest.mark.usefixtures("supported")
def test_from_pretrained_takes_no_local_path(repository, tmp_path):
    """Of transformers 5.22.2. When it does, the documentation can say so."""
    make("llama").save_pretrained(tmp_path)
    with pytest.raises(AttributeError, match="split"):
        transformers().AutoModelForCausalLM.from_pretrained(
            tmp_path,
            use_kernels=True,
            kernel_config=kernel_config("RMSNorm", repository),
        )


@pytest.mark.parametrize("norm", [nn.RMSNorm, nn.LayerNorm])
@pytest.mark.parametrize("compiled", [False, True])
def test_torchs_norms(norm, compiled, kernelized, loaded, device):
    """Their classes are marked by whoever wants it; any ``normalized_shape`` is right."""

    class Marked(norm):
        kernel_layer_name = norm.__name__

    module = Marked((4, 12), eps=1e-4).to(device)
    x = torch.randn(3, 4, 12, device=device)
    own = module(x)
    module = kernelized(module, "training, compiled")
    assert module.forward.__func__ is getattr(loaded.layers, norm.__name__).forward
    if compiled:
        torch._dynamo.reset()
        module.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(module(x), own)


class OtherNorm(nn.Module):
    """It divides by the largest element."""

    kernel_layer_name = "RMSNorm"

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(COLS))

    def forward(self, x):
        return x / x.abs().amax(-1, keepdim=True) * self.weight


@pytest.mark.parametrize("compiled", [False, True])
def test_another_module_keeps_its_forward(compiled, kernelized, loaded, device, caplog):
    modules = [OtherNorm().to(device) for _ in range(2)]
    x = torch.randn(3, COLS, device=device)
    loaded.layers._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for module in modules:
            own = OtherNorm.forward(module, x)
            module = kernelized(module, "training, compiled")
            if compiled:
                torch._dynamo.reset()
                module.compile(backend="aot_eager", fullgraph=True)
            assert torch.equal(module(x), own)
    said = [one.getMessage() for one in caplog.records if "its own forward" in one.getMessage()]
    assert said == ["OtherNorm keeps its own forward: no form of the row program reproduces it"]


def test_a_call_that_was_not_proved_takes_the_forward_of_the_class(kernelized, device):
    """A gated norm without its gate, and rows of a dtype that the weight has no form for."""
    norm = norm_class("kimi_linear", "KimiLinearRMSNormGated")
    module = small(norm, torch.float32, device)
    x = torch.randn(3, COLS, device=device)

    def outcome():
        try:
            return module(x)
        except Exception as error:
            return type(error)

    own = outcome()
    kernelized(module, "training")
    mine = outcome()
    assert torch.equal(mine, own) if isinstance(own, torch.Tensor) else mine is own


def test_layout(repository):
    """What the package checks and writes itself: build.toml, metadata.json with its digests, the file of operators."""
    from kernels._rust import Build, Digest, DigestAlgorithm, Metadata

    general = Build.open(SOURCES).general
    assert {str(one) for one in general.backends} == {"cpu", "cuda", "rocm"}
    variant = repository / "build" / "torch-universal"
    metadata = Metadata.read_from_file(variant / "metadata.json")
    assert (str(metadata.name), metadata.version, metadata.license) == ("rownorm", 1, "MIT")
    assert metadata.python_depends == []
    there = Digest.hash_variant(DigestAlgorithm.SHA256, variant)
    files = dict(there.files)
    files.pop("metadata.json", None)
    caches = {name for name in files if "__pycache__" in name}
    assert metadata.digest.files == {n: files[n] for n in files if n not in caches}
    assert {Path(name).suffix for name in metadata.digest.files} == {
        *(".py", ".json", ".c", ".h", ".cpp")
    }
    library = {Path(n).relative_to("rownorm/library") for n in files if "/library/" in n} - {
        Path(n).relative_to("rownorm/library") for n in caches if "/library/" in n
    }
    sources = ROOT / "src" / "rownorm"
    assert library == {
        file.relative_to(sources)
        for file in sources.rglob("*")
        if file.suffix in (".py", ".json", ".c", ".h", ".cpp") and "__pycache__" not in file.parts
    }


def test_a_build_is_reproduced_and_replaced(repository, tmp_path):
    folder = builder().build(tmp_path)
    stray = folder / "stray.py"
    stray.write_text("")
    ran = subprocess.run(
        [sys.executable, str(SOURCES / "build.py"), "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    wrote, layers = ran.stdout.splitlines()
    assert wrote == f"wrote {folder}"
    assert f"{tmp_path}:RMSNorm," in layers
    assert not stray.exists()
    first, second = (
        json.loads((one / "build" / "torch-universal" / "metadata.json").read_text())
        for one in (repository, tmp_path)
    )
    assert first == second


def test_imports_are_relative_or_of_torch(repository):
    """Of the standard library, torch, and Triton, which belongs to torch; numpy only where torch brings it."""
    allowed = {*sys.stdlib_module_names, "torch", "triton", "typing_extensions"}
    for file in (repository / "build").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            else:
                is_absolute = isinstance(node, ast.ImportFrom) and not node.level
                named = [node.module] if is_absolute else []
            if "integrations" in file.parts and file.name != "hf_kernels.py":
                continue  # imported by another framework
            for name in named:
                assert name.partition(".")[0] in allowed, (file, name)


TWO_COPIES = """
import sys, torch, rownorm, kernels
from pathlib import Path
first, second = (kernels.get_local_kernel(Path(folder)) for folder in sys.argv[1:])
names = [kernel.layers._call_of.__module__.split(".")[0] for kernel in (first, second)]
x = torch.randn(4, 32, requires_grad=True)
weight = torch.randn(32, requires_grad=True)
results = []
for library in (first, rownorm, second, first, rownorm, second):
    y = library.rms_norm(x, weight)
    results.append((y, *torch.autograd.grad(y.square().sum(), (x, weight))))
for result in results:
    for mine, expected in zip(result, results[0], strict=True):
        assert torch.equal(mine, expected)
libraries = ("rownorm", *(f"{one}.rownorm.library" for one in names))
loaded = [sys.modules[f"{name}.ops.cpu_native"].load() for name in libraries]
files = {getattr(one, "__file__", None) for one in loaded}
reasons = [sys.modules[f"{name}.ops.cpu_native"].reason() for name in libraries]
print(len(files), *filter(None, reasons))
"""


def another_build(folder):
    build = builder()
    build.INIT += "\n# another build\n"
    build.build(folder)
    return folder


def test_another_build_and_the_installed_library_in_one_process(
    loaded, tmp_path, device, without_interpreter
):
    """Each has operators of its own, which vmap calls."""
    other = kernels.get_local_kernel(another_build(tmp_path))
    namespaces = [one.layers._call_of.__module__.partition(".")[0] for one in (loaded, other)]
    assert len({"rownorm", *namespaces}) == 3
    x = torch.randn(4, 32, device=device, requires_grad=True)
    weight = torch.randn(32, device=device, requires_grad=True)
    results = []
    for library in (loaded, other, rownorm, loaded):
        y = torch.vmap(library.rms_norm, (0, None))(x, weight)
        results.append((y, *torch.autograd.grad(y.square().sum(), (x, weight))))
    for result in results:
        for mine, expected in zip(result, results[0], strict=True):
            torch.testing.assert_close(mine, expected)
    for namespace in ("rownorm", *namespaces):
        assert hasattr(getattr(torch.ops, namespace), "rms_norm")


@pytest.mark.exhaustive
def test_their_extensions_in_c_have_variables_of_their_own(repository, tmp_path):
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "ROWNORM_NATIVE": "1",  # ``loaded`` may have said 0
        "ROWNORM_NODE": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    ran = subprocess.run(
        [sys.executable, "-c", TWO_COPIES, str(repository), str(another_build(tmp_path))],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["3"]  # three files, and no reason why one is missing
