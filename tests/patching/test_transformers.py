"""Patched models of transformers beside the originals: logits, gradients, generation; and all of its norm classes."""

import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import rownorm
from support.transformers_models import (
    MODELS,
    OtherOrder,
    distances,
    inputs,
    logits_and_gradients,
    make,
    models,
    transformers,
)

pytestmark = [
    pytest.mark.usefixtures("without_interpreter"),
    pytest.mark.filterwarnings("ignore"),  # of transformers
]
# The norms with a residual add before them in the block: one in each of two layers.
FUSED = dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3", "vit"), 2)


@pytest.mark.parametrize("name", MODELS)
def test_fp32_differs_as_another_order_of_summation_does(name):
    model, arguments = make(name), inputs(name)
    original = logits_and_gradients(model, arguments)
    with OtherOrder():
        other = distances(logits_and_gradients(model, arguments), original)
    assert max(other.values()) > 0
    report = rownorm.patch(model)
    assert not report.left
    assert len(report.swapped) == MODELS[name][3]
    patched = distances(logits_and_gradients(model, arguments), original)
    rounding = torch.finfo(torch.float32).eps
    assert patched["logits"] <= 2 * other["logits"] + 4 * rounding
    assert max(patched.values()) <= 2 * max(other.values()) + 8 * rounding
    rownorm.unpatch(model)
    assert len(rownorm.patch(model, fuse_residuals=True).fused) == FUSED.get(name, 0)
    fused = distances(logits_and_gradients(model, arguments), original)
    assert fused["logits"] <= 2 * other["logits"] + 4 * rounding
    assert max(fused.values()) <= 2 * max(other.values()) + 8 * rounding


@pytest.mark.parametrize("name", models())
def test_bf16_is_as_near_to_fp32_as_the_original(name):
    """Logits differ by one rounding. Gradients are compared with fp32, because the originals round them more often."""
    model, arguments = make(name, torch.bfloat16), inputs(name, torch.bfloat16)
    exact = make(name)
    exact.load_state_dict(model.state_dict())
    truth = logits_and_gradients(
        exact, {k: v.float() if v.is_floating_point() else v for k, v in arguments.items()}
    )
    original = logits_and_gradients(model, arguments)
    assert not rownorm.patch(model).left
    patched = logits_and_gradients(model, arguments)
    rounding = torch.finfo(torch.bfloat16).eps
    assert distances(patched, original)["logits"] <= rounding
    before, after = distances(original, truth), distances(patched, truth)
    assert max(after.values()) <= 1.25 * max(before.values()) + rounding
    assert sum(after.values()) <= 1.1 * sum(before.values())
    rownorm.unpatch(model)
    assert len(rownorm.patch(model, fuse_residuals=True).fused) == FUSED.get(name, 0)
    fused = distances(logits_and_gradients(model, arguments), truth)
    assert fused["logits"] <= 1.25 * before["logits"] + rounding
    assert max(fused.values()) <= 1.25 * max(before.values()) + rounding
    assert sum(fused.values()) <= 1.25 * sum(before.values())


@pytest.mark.parametrize("name", models("bert", "vit"))
def test_greedy_generation_gives_the_same_tokens(name):
    model = make(name)
    settings = {"max_new_tokens": 12, "do_sample": False, "use_cache": True, "min_new_tokens": 12}
    tokens = inputs(name)["input_ids"]
    expected = model.generate(tokens, **settings)
    rownorm.patch(model)
    assert torch.equal(model.generate(tokens, **settings), expected)
    if rownorm.patch(model, fuse_residuals=True).fused:
        assert torch.equal(model.generate(tokens, **settings), expected)


def test_the_report_in_the_documentation():
    """The first example of docs/patching.md prints the lines below it, the second what its comments say."""
    transformers()
    text = (Path(__file__).parents[2] / "docs" / "patching.md").read_text()
    example, undone = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    shown = text.split("```")[2].strip("\n").split("\n\n")[0]
    printed = []
    names = {"print": printed.append}
    exec(example, names)
    assert str(printed.pop()) == textwrap.dedent(shown)
    before = str(names["model"])
    exec(undone, names)
    assert printed == [True, 129, False]
    assert str(names["model"]) == before


@pytest.mark.exhaustive
def test_most_norm_classes_are_recognized():
    """Of the classes called *RMSNorm or *LayerNorm in the modeling files, in fp32 and in bf16."""
    package = transformers()
    if package.__version__ != "5.22.2":
        pytest.skip(f"counts the classes of transformers 5.22.2; this is {package.__version__}")
    swapped = {torch.float32: set(), torch.bfloat16: set()}
    classes = list(norm_classes(package))
    for norm_class in classes:
        for dtype, names in swapped.items():
            try:
                module = instance(norm_class).to(dtype)
            except Exception:  # a block that needs a config, or another number of arguments
                continue
            if any(
                one.name == "one" for one in rownorm.patch(nn.ModuleDict({"one": module})).swapped
            ):
                names.add(norm_class)
    assert len(classes) == 245
    assert len(swapped[torch.float32]) >= 200
    assert len(swapped[torch.bfloat16]) >= 190
    assert not any("Gated" in one.__name__ for names in swapped.values() for one in names)


def norm_classes(package):
    """Every class of that name, found in the sources because not all are exported."""
    for file in sorted((Path(package.__file__).parent / "models").glob("*/modeling_*.py")):
        names = [
            node.name
            for node in ast.parse(file.read_text()).body
            if isinstance(node, ast.ClassDef) and node.name.endswith(("RMSNorm", "LayerNorm"))
        ]
        if names:
            module = importlib.import_module(
                f"{package.__name__}.models.{file.parent.name}.{file.stem}"
            )
            yield from (getattr(module, name) for name in names)


def instance(norm_class):
    """A module of 48 columns."""
    parameters = list(inspect.signature(norm_class.__init__).parameters.values())[1:]
    sizes = ("hidden_size", "dim", "normalized_shape", "size", "c_in")
    given = {one.name: 48 for one in parameters if one.name in sizes}
    variable = [one for one in parameters if one.kind is inspect.Parameter.VAR_POSITIONAL]
    return norm_class(*([48] if variable and not given else []), **given)
