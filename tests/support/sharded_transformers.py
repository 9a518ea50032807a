"""A patched model of transformers under FSDP2, beside the same model in one process. The checks run on two ranks."""

import torch
from torch import distributed
from torch.distributed import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity

import rownorm
from support.transformers_models import inputs, make


def _gradients(model, tokens):
    """The gradients of the mean of the squared logits of each sample, and the names of the functions that ran."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profile:
        loss = model(input_ids=tokens).logits.square().mean()
    loss.backward()
    names = {event.key for event in profile.key_averages() if event.key.startswith("rownorm::")}
    return {name: parameter.grad for name, parameter in model.named_parameters()}, names


def fsdp2(patched_first: bool) -> None:
    """Gradients of a batch that two ranks share are those of one process with the original model."""
    tokens = inputs("llama")["input_ids"]
    expected, _ = _gradients(make("llama"), tokens)
    model = make("llama")
    if patched_first:
        rownorm.patch(model, fuse_residuals=True)
    mesh = init_device_mesh("cpu", (2,))  # also on a machine with a GPU
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if not patched_first:
        report = rownorm.patch(model, fuse_residuals=True)
        assert len(report.swapped) == 5
        assert {one.reason for one in report.unfused} >= {
            "a tensor of its block is sharded, quantized or without a shape"
        }
    gradients, names = _gradients(model, tokens.chunk(2)[distributed.get_rank()])
    assert names == {"rownorm::rms_norm"} | ({"rownorm::add_rms_norm"} if patched_first else set())
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient.full_tensor(), expected[name], rtol=1e-4, atol=1e-6, msg=name
        )
