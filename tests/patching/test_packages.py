"""Patched models of transformers with what people use beside it: PEFT, accelerate, checkpointing, compile, FSDP2."""

import pytest
import torch

import rownorm
from rownorm.patching.swap import Patched, PatchedBlock
from support import sharded_transformers
from support.ranks import run_on_ranks
from support.transformers_models import inputs, logits_and_gradients, make, transformers

pytestmark = [
    pytest.mark.usefixtures("without_interpreter"),
    pytest.mark.filterwarnings("ignore"),  # of these packages
]
TARGETS = ["q_proj", "v_proj"]


@pytest.fixture
def peft():
    return pytest.importorskip("peft", reason="needs peft: pip install peft==0.21.2")


@pytest.fixture
def accelerate():
    return pytest.importorskip(
        "accelerate", reason="needs accelerate: pip install accelerate==1.15.0"
    )


def logits(model):
    return model(**inputs("llama")).logits.detach()


def n_patched(model):
    """The numbers of swapped norms and of rewritten blocks."""
    modules = [module for module in model.modules() if isinstance(module, Patched)]
    n_blocks = sum(isinstance(module, PatchedBlock) for module in modules)
    return len(modules) - n_blocks, n_blocks


# ---- PEFT ----


@pytest.mark.parametrize("patched_first", [True, False])
def test_lora(patched_first, peft):
    """Adapters on linear layers do not matter. Weights are merged into the patched model."""
    model = make("llama")
    config = peft.LoraConfig(r=4, target_modules=TARGETS, init_lora_weights=False)
    original = peft.get_peft_model(make("llama"), config).eval()
    if patched_first:
        rownorm.patch(model, fuse_residuals=True)
    adapted = peft.get_peft_model(model, config).eval()
    adapted.load_state_dict(original.state_dict())
    if not patched_first:
        rownorm.patch(adapted, fuse_residuals=True)
    assert n_patched(adapted) == (5, 2)
    torch.testing.assert_close(logits(adapted), logits(original))
    gradients = logits_and_gradients(adapted, inputs("llama"))
    for name, expected in logits_and_gradients(original, inputs("llama")).items():
        torch.testing.assert_close(gradients[name], expected, rtol=1e-4, atol=1e-5)
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(logits(merged), logits(original))
    assert rownorm.unpatch(merged) == 5


@pytest.mark.exhaustive
@pytest.mark.parametrize("patched_first", [True, False])
def test_norms_that_peft_trains(patched_first, peft):
    """A norm in a wrapper of PEFT is swapped, with its trained copy. It is not fused: its block sees the wrapper."""
    model, expected = make("llama"), logits(make("llama"))
    config = peft.LoraConfig(
        r=4, target_modules=TARGETS, modules_to_save=["post_attention_layernorm"]
    )
    if patched_first:
        rownorm.patch(model, fuse_residuals=True)
    adapted = peft.get_peft_model(model, config).eval()
    if not patched_first:
        report = rownorm.patch(adapted, fuse_residuals=True)
        assert not report.fused
        assert not report.left
    assert n_patched(adapted)[0] == 7
    torch.testing.assert_close(logits(adapted), expected)
    logits_and_gradients(adapted, inputs("llama"))
    assert all(p.grad is not None for p in adapted.parameters() if p.requires_grad)


# ---- accelerate ----


@pytest.mark.parametrize("patched_first", [True, False])
def test_device_map(patched_first, accelerate, tmp_path):
    """Offloaded to a disk. After accelerate's hooks, nothing is swapped, and the report says what to do."""
    model, expected = make("llama"), logits(make("llama"))
    if patched_first:
        rownorm.patch(model, fuse_residuals=True)
    places = {"model.layers.1": "disk", "model.norm": "disk"}
    places |= dict.fromkeys(["model.embed_tokens", "model.layers.0", "lm_head"], "cpu")
    places["model.rotary_emb"] = "cpu"
    accelerate.dispatch_model(
        model, places, main_device="cpu", offload_dir=tmp_path, force_hooks=True
    )
    assert model.model.norm.weight.is_meta
    if not patched_first:
        report = rownorm.patch(model, fuse_residuals=True)
        assert (len(report.swapped), len(report.left)) == (0, 5)
        assert all("patch the model before that" in one.reason for one in report.left)
    torch.testing.assert_close(logits(model), expected)
    if patched_first:
        with pytest.raises(RuntimeError, match=r"accelerate's hooks for example\. Undo that first"):
            rownorm.unpatch(model)
        accelerate.hooks.remove_hook_from_submodules(model)
        assert rownorm.unpatch(model) == 5
        assert not any("forward" in module.__dict__ for module in model.model.layers)
        torch.testing.assert_close(logits(model), expected)


# ---- transformers and torch ----


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpointing(use_reentrant):
    model, arguments = make("llama").train(), inputs("llama")
    expected = logits_and_gradients(model, arguments)
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    model.enable_input_require_grads()
    rownorm.patch(model, fuse_residuals=True)
    assert n_patched(model) == (5, 2)
    for name, one in logits_and_gradients(model, arguments).items():
        torch.testing.assert_close(one, expected[name], rtol=1e-4, atol=1e-5)


def test_hidden_states_and_saved_models(tmp_path):
    model, arguments = make("llama"), inputs("llama")
    expected = model(**arguments, output_hidden_states=True).hidden_states
    rownorm.patch(model, fuse_residuals=True)
    found = model(**arguments, output_hidden_states=True).hidden_states
    torch.testing.assert_close(found, expected)
    model.save_pretrained(tmp_path)
    loaded = type(make("llama")).from_pretrained(tmp_path)
    torch.testing.assert_close(logits(loaded), logits(model))


@pytest.mark.parametrize("called_first", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_compile(called_first):
    """Patched after the compiled model was called, or before."""
    model, graphs = make("llama"), []
    expected = logits(model)
    compiled = torch.compile(model, backend=lambda g, _: graphs.append(g) or g)
    if called_first:
        logits(compiled)
    rownorm.patch(model, fuse_residuals=True)
    torch.testing.assert_close(logits(compiled), expected)
    targets = [str(node.target) for graph in graphs for node in graph.graph.nodes]
    assert sum("rownorm.add_rms_norm" in target for target in targets) == 2
    assert sum("rownorm.rms_norm" in target for target in targets) == 3


@pytest.mark.parametrize("patched_first", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_fsdp2(patched_first):
    transformers()
    run_on_ranks(2, sharded_transformers.fsdp2, patched_first)
