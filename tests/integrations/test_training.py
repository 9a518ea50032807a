"""Callbacks, plugins and overrides of training frameworks, with the real packages, on a CPU."""

import inspect
import logging

import pytest
import torch
from torch import nn

from support.documents import indented_block
from support.frameworks import framework
from support.ranks import run_on_ranks
from support.transformers_models import inputs, logits_and_gradients, make, transformers

pytestmark = [
    pytest.mark.usefixtures("without_interpreter"),
    pytest.mark.filterwarnings("ignore"),  # of the packages
]


def is_swapped(module):
    from rownorm.patching.swap import is_swapped

    return is_swapped(module)


class Texts(torch.utils.data.Dataset):
    """Four sequences of tokens."""

    def __len__(self):
        return 4

    def __getitem__(self, i):
        tokens = torch.arange(i, i + 6) % 60
        return {"input_ids": tokens, "labels": tokens}


@pytest.mark.parametrize("later", [False, True], ids=["model", "model_init"])
def test_transformers_trainer(later, tmp_path):
    package = transformers()
    pytest.importorskip("accelerate", reason="needs accelerate: pip install accelerate==1.15.0")
    from rownorm.integrations.trainer import PatchNorms

    callback = PatchNorms(fuse_residuals=True)
    arguments = package.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        save_strategy="no",
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
    )
    made = {"model_init": lambda: make("llama")} if later else {"model": make("llama")}
    trainer = package.Trainer(args=arguments, train_dataset=Texts(), callbacks=[callback], **made)
    trainer.train()
    assert len(callback.report.swapped) == 5
    assert len(callback.report.fused) == 2
    norms = [one for one in trainer.model.modules() if type(one).__name__ == "LlamaRMSNorm"]
    assert len(norms) == 5
    assert all(is_swapped(one) for one in norms)


def test_accelerate():
    """Patched before ``prepare``, which wraps the model and the optimizer."""
    package = pytest.importorskip(
        "accelerate", reason="needs accelerate: pip install accelerate==1.15.0"
    )
    import rownorm

    model, arguments = make("llama"), inputs("llama")
    rownorm.patch(model)
    before = model.model.norm.weight.detach().clone()
    accelerator = package.Accelerator(cpu=not torch.cuda.is_available())
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    arguments = {name: t.to(accelerator.device) for name, t in arguments.items()}
    accelerator.backward(model(**arguments).logits.square().mean())
    optimizer.step()
    norm = accelerator.unwrap_model(model).model.norm
    assert is_swapped(norm)
    assert not torch.equal(norm.weight.cpu(), before)


def test_trl(tmp_path):
    """Its trainers are transformers'; ``SFTTrainer`` with tokens and a tokenizer of our own."""
    trl = framework("trl")
    datasets = framework("datasets")
    package = transformers()
    from tokenizers import Tokenizer, models

    from rownorm.integrations.trainer import PatchNorms

    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, 64)}
    tokenizer = package.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="</s>",
    )
    callback = PatchNorms()
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        save_strategy="no",
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    # With a fingerprint, because the package cannot make one with pyarrow 26.
    rows = [[3 + (i + j) % 60 for j in range(6)] for i in range(4)]
    table = datasets.table.InMemoryTable.from_pydict({"input_ids": rows})
    trainer = trl.SFTTrainer(
        model=make("llama"),
        args=arguments,
        train_dataset=datasets.Dataset(table, fingerprint="tokens"),
        processing_class=tokenizer,
        callbacks=[callback],
    )
    trainer.train()
    assert len(callback.report.swapped) == 5
    norms = [one for one in trainer.model.modules() if type(one).__name__ == "LlamaRMSNorm"]
    assert len(norms) == 5
    assert all(is_swapped(one) for one in norms)


def test_lightning(tmp_path):
    lightning = framework("lightning")
    from rownorm.integrations.lightning import PatchNorms

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))

        def training_step(self, batch, _):
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module, callback = Module(), PatchNorms()
    before = module.net[1].bias.clone()
    trainer = lightning.Trainer(
        max_steps=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[callback],
    )
    trainer.fit(module, torch.utils.data.DataLoader(torch.randn(4, 8), batch_size=2))
    assert [one.name for one in callback.report.swapped] == ["net.1"]
    assert is_swapped(module.net[1])
    assert not torch.equal(module.net[1].bias, before)


def test_axolotl():
    base = framework("axolotl.integrations.base")
    model, arguments = make("qwen3"), inputs("qwen3")
    own = logits_and_gradients(model, arguments)
    plugins = base.PluginManager.get_instance()
    plugins.register("rownorm.integrations.axolotl.Plugin")
    plugins.post_model_build(None, model)
    norms = [one for one in model.modules() if type(one).__name__ == "Qwen3RMSNorm"]
    assert len(norms) == 9
    assert all(is_swapped(one) for one in norms)
    torch.testing.assert_close(logits_and_gradients(model, arguments), own, atol=1e-4, rtol=1e-4)


def test_torchtitan():
    """A small Llama of torchtitan: the same ``state_dict``, logits and gradients, with every norm replaced."""
    override = framework("torchtitan.config.override")
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.common.nn_modules import RMSNorm
    from torchtitan.models.llama3 import model_registry

    def spec():
        made = model_registry("debugmodel")
        for layer in made.model.layers:  # flex attention would have to be compiled
            layer.attention.inner_attention = ScaledDotProductAttention.Config()
        return made

    own, mine = spec(), spec()
    entry = "rownorm.integrations.torchtitan.rms_norm"
    lines = override.apply_overrides(override.OverrideConfig(imports=[entry]), mine.model)
    from rownorm.integrations.torchtitan import RownormRMSNorm

    models = [one.model.build() for one in (own, mine)]
    for model in models:
        model.init_states()
    models[1].load_state_dict(models[0].state_dict())
    norms = [[m for m in model.modules() if isinstance(m, RMSNorm)] for model in models]
    assert len(norms[0]) == len(norms[1]) == len(lines) > 0
    assert all(type(one) is RownormRMSNorm for one in norms[1])
    tokens = torch.arange(12).reshape(2, 6)
    results = []
    for model in models:
        logits = model(tokens)
        logits.square().sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        results.append({"logits": logits.detach(), **gradients})
    torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=1e-4)


def test_torchtitan_as_documented(capsys, monkeypatch):
    """The block of docs/integrations.md: a line of the log for every norm, and gradients by rownorm's norms."""
    framework("torchtitan")
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))  # init_logger clears them
    level = root.level
    names = {}
    block = indented_block("integrations.md", "from torchtitan")
    try:
        exec(block, names)
    finally:
        root.setLevel(level)
    *log, printed = capsys.readouterr().out.splitlines()
    assert f"# {printed}" in block
    norms = [one for one in names["model"].modules() if "RMSNorm" in type(one).__name__]
    replaced = [one for one in log if "[Override]" in one]
    assert len(replaced) == len(norms) > 1
    assert all("RMSNorm.Config -> RownormRMSNorm.Config" in one for one in replaced)
    assert all(type(one) is type(names["model"].norm) for one in norms)
    assert all(one.weight.grad.abs().max() > 0 for one in norms)


def test_torchtitan_on_four_ranks(tmp_path):
    """FSDP2, tensor and sequence parallelism with DTensors, and a checkpoint of torch.distributed."""
    framework("torchtitan")
    from support.sharded_torchtitan import llama

    run_on_ranks(4, llama, "partial_dtensor", tmp_path)


@pytest.mark.parametrize("normalization", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("zero_centered", [False, True])
def test_megatron(normalization, zero_centered):
    """Built from a layer spec, beside the norm of torch that Megatron-Core wraps."""
    spec_utils = framework("megatron.core.transformer.spec_utils")
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    from rownorm.integrations.megatron import Norm

    sizes = {"num_layers": 1, "hidden_size": 32, "num_attention_heads": 2}
    config = TransformerConfig(**sizes, normalization=normalization)
    config.layernorm_zero_centered_gamma = zero_centered
    config.sequence_parallel = True
    names = list(inspect.signature(WrappedTorchNorm.__new__).parameters)[1:]
    assert list(inspect.signature(Norm.__init__).parameters)[1:] == names

    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    assert hasattr(spec.submodules, "pre_mlp_layernorm")
    spec.submodules.input_layernorm = Norm
    norm = spec_utils.build_module(
        spec.submodules.input_layernorm, config=config, hidden_size=32, eps=1e-4
    )
    plain = TransformerConfig(**sizes, normalization=normalization)
    own = WrappedTorchNorm(plain, 32, 1e-4)
    assert norm.state_dict().keys() == own.state_dict().keys()
    assert all(parameter.sequence_parallel for parameter in norm.parameters())
    with torch.no_grad():
        torch.testing.assert_close(norm.weight + norm.weight_shift, own.weight)
        for parameter in norm.parameters():
            parameter.add_(torch.randn_like(parameter))
        own.load_state_dict(norm.state_dict())
        own.weight.add_(norm.weight_shift)
    x = torch.randn(6, 2, 32)
    dy = torch.randn(6, 2, 32)
    results = []
    for module in (norm, own):
        rows = x.clone().requires_grad_()
        y = module(rows)
        results.append((y, *torch.autograd.grad(y, (rows, *module.parameters()), dy)))
    torch.testing.assert_close(*results)


def test_megatron_refuses_other_normalizations():
    framework("megatron.core")
    from megatron.core.transformer import TransformerConfig

    from rownorm.integrations.megatron import Norm

    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=2)
    config.normalization = "L2Norm"
    with pytest.raises(ValueError, match=r"must be one of LayerNorm, RMSNorm; got 'L2Norm'"):
        Norm(config, 8)
