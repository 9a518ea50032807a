"""The tiny Llama with tensor and sequence parallelism beside the same model in one process, in fp64."""

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from rownorm_lab.models import STAGES
from rownorm_lab.models.tensor_parallel import SeparateStates, parallelize
from rownorm_lab.models.tiny_llama import LlamaConfig, TinyLlama

CONFIG = LlamaConfig(
    width=16, n_layers=2, n_heads=4, n_kv_heads=2, hidden=12, vocabulary=10, n_tokens=6
)


def _model(stage):
    """Weights of norms other than 1, because ones hide a missing weight."""
    torch.manual_seed(1)
    model = TinyLlama(CONFIG, stage).double()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter)
    return model


def _step(model, tokens):
    """The logits, and the gradients by the names of their parameters."""
    logits = model(tokens)
    F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    return logits.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


def _whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def matches_one_process() -> None:
    """Logits and gradients in every stage."""
    tokens = torch.randint(CONFIG.vocabulary, (3, CONFIG.n_tokens))
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for stage in STAGES:
        alone, model = _model(stage), _model(stage)
        states = SeparateStates(model)
        parallelize(model, mesh)
        assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
        expected_logits, expected = _step(alone, tokens)
        logits, separate = _step(model, tokens)
        torch.testing.assert_close(logits, expected_logits)
        optimizer = {"state": {}, "param_groups": [{"params": list(separate)}]}
        gradients, groups = states.joined({n: _whole(g) for n, g in separate.items()}, optimizer)
        assert list(gradients) == list(expected) == groups["param_groups"][0]["params"]
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], msg=f"{stage}, {name}")
        back, _ = states.separated(gradients, groups)
        assert all(torch.equal(_whole(separate[name]), value) for name, value in back.items())


def norms_do_not_communicate() -> None:
    """One gather before and one scatter after each update; the embedding scatters, the head gathers twice."""
    tokens = torch.randint(CONFIG.vocabulary, (3, CONFIG.n_tokens))
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for stage in ("rownorm", "fused"):
        model = _model(stage)
        parallelize(model, mesh)
        local = {n: p.to_local().numel() / p.numel() for n, p in model.named_parameters()}
        assert all(
            share == (1 if "norm" in name else 1 / mesh.size()) for name, share in local.items()
        )
        with CommDebugMode() as communication:
            model(tokens)
        counts = {str(op).rpartition(".")[2]: n for op, n in communication.comm_counts.items() if n}
        n_updates = 2 * CONFIG.n_layers
        assert counts == {
            "all_gather_into_tensor": n_updates + 2,
            "reduce_scatter_tensor": n_updates + 1,
        }
