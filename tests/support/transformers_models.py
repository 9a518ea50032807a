"""Tiny models of transformers with random weights, made locally, and another order of summation for their norms."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

TOKENS = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
DECODER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    **TOKENS,
}
ENCODER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, **TOKENS}
# name: (class of the config, class of the model, fields of the config, number of norms)
MODELS = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", DECODER, 5),
    "mistral": ("MistralConfig", "MistralForCausalLM", DECODER, 5),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", DECODER, 5),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", DECODER, 9),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", DECODER, 9),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", DECODER, 13),
    "gemma4": (
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        DECODER
        | {
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 64,
            "num_kv_shared_layers": 0,
        },
        18,
    ),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", DECODER, 5),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", DECODER, 9),
    "t5": ("T5Config", "T5ForConditionalGeneration", T5, 12),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, **TOKENS},
        5,
    ),
    "bert": ("BertConfig", "BertForMaskedLM", ENCODER | TOKENS, 6),
    "vit": (
        "ViTConfig",
        "ViTForImageClassification",
        ENCODER | {"image_size": 8, "patch_size": 4},
        5,
    ),
}
# More decoders with norms that take layers of the hub: the classes of config and model.
HUB_DECODERS = {
    "apertus": ("ApertusConfig", "ApertusForCausalLM"),
    "arcee": ("ArceeConfig", "ArceeForCausalLM"),
    "bitnet": ("BitNetConfig", "BitNetForCausalLM"),
    "cwm": ("CwmConfig", "CwmForCausalLM"),
    "diffllama": ("DiffLlamaConfig", "DiffLlamaForCausalLM"),
    "ernie4_5": ("Ernie4_5Config", "Ernie4_5ForCausalLM"),
    "exaone4": ("Exaone4Config", "Exaone4ForCausalLM"),
    "flex_olmo": ("FlexOlmoConfig", "FlexOlmoForCausalLM"),
    "glm": ("GlmConfig", "GlmForCausalLM"),
    "glm4": ("Glm4Config", "Glm4ForCausalLM"),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM"),
    "granite": ("GraniteConfig", "GraniteForCausalLM"),
    "hunyuan": ("HunYuanDenseV1Config", "HunYuanDenseV1ForCausalLM"),
    "lfm2": ("Lfm2Config", "Lfm2ForCausalLM"),
    "minimax": ("MiniMaxConfig", "MiniMaxForCausalLM"),
    "ministral": ("MinistralConfig", "MinistralForCausalLM"),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM"),
    "olmo3": ("Olmo3Config", "Olmo3ForCausalLM"),
    "seed_oss": ("SeedOssConfig", "SeedOssForCausalLM"),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM"),
}
# Linear attention with a gated norm in one layer, attention in the other; no experts, whose choice a rounding changes.
OTHERS = {
    "qwen3_next": (
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        DECODER
        | {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "mlp_only_layers": [0, 1],
        },
    )
}
SAME_NORM_AS_ANOTHER = ("mistral", "qwen2", "gemma2", "phi3")


def models(*left_out):
    """The names of the models as parameters of a test. Those with the norm of another model are exhaustive."""
    return [
        pytest.param(name, marks=[pytest.mark.exhaustive] * (name in SAME_NORM_AS_ANOTHER))
        for name in MODELS
        if name not in left_out
    ]


def transformers():
    """The package, or a skip that says what is missing."""
    return pytest.importorskip(
        "transformers", reason="needs transformers: pip install transformers==5.22.2"
    )


def make(name, dtype=torch.float32):
    """The model in evaluation mode, always with the same random weights, norms' weights too."""
    classes = HUB_DECODERS.get(name)
    others = MODELS | OTHERS
    config_class, model_class, fields = (*classes, DECODER) if classes else others[name][:3]
    package = transformers()
    torch.manual_seed(3)
    model = getattr(package, model_class)(getattr(package, config_class)(**fields))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def inputs(name, dtype=torch.float32):
    """Keyword arguments of the model's forward."""
    generator = torch.Generator().manual_seed(4)
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 8, 8, generator=generator).to(dtype)}
    tokens = torch.randint(3, 64, (2, 7), generator=generator)
    return {"input_ids": tokens} | ({"decoder_input_ids": tokens} if name == "t5" else {})


def logits_and_gradients(model, arguments):
    """The logits, and the gradients of all parameters that get one, in fp64."""
    model.zero_grad()
    logits = model(**arguments).logits
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(5))
    (logits * weights.to(logits)).sum().backward()
    named = {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach().double(), **named}


def distances(results, expected):
    """The largest difference of each tensor, in units of its largest element, or of 1% of the largest gradient."""
    largest = max(gradient.abs().max() for name, gradient in expected.items() if name != "logits")
    return {
        name: (
            (results[name] - one).abs().max() / torch.maximum(one.abs().max(), largest / 100)
        ).item()
        for name, one in expected.items()
    }


class OtherOrder(TorchFunctionMode):
    """torch's means and norms over the last dimension, with their columns summed in another order."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (torch.Tensor.mean, torch.mean) and args[1:2] == (-1,):
            return args[0].roll(5, -1).mean(*args[1:], **kwargs)
        if func is F.layer_norm:
            x, shape, *rest = args
            names = dict(zip(("weight", "bias", "eps"), rest, strict=False)) | kwargs
            for vector in ("weight", "bias"):
                if names.get(vector) is not None:
                    names[vector] = names[vector].roll(5, -1)
            return func(x.roll(5, -1), shape, **names).roll(-5, -1)
        return func(*args, **kwargs)


class InFp64(TorchFunctionMode):
    """What a module converts to fp32 is converted to fp64, so that a module in fp64 computes all in fp64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            return args[0].double()
        args = [torch.float64 if one is torch.float32 else one for one in args]
        kwargs = {
            name: torch.float64 if one is torch.float32 else one
            for name, one in (kwargs or {}).items()
        }
        return func(*args, **kwargs)


def gated_classes(package):
    """(name, module) of every class called *RMSNormGated in the modeling files."""
    for file in sorted((Path(package.__file__).parent / "models").glob("*/modeling_*.py")):
        for name in re.findall(r"^class (\w+RMSNormGated)\(", file.read_text(), re.MULTILINE):
            yield name, f"{package.__name__}.models.{file.parent.name}.{file.stem}"
