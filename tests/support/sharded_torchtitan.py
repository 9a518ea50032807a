"""A Llama of torchtitan with its own tensor, sequence and data parallelism and overridden norms, on four ranks."""

import torch
from torch import distributed
from torch.distributed import checkpoint
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

ENTRY = "rownorm.integrations.torchtitan.rms_norm"


def small_llama():
    """The configuration of torchtitan's smallest Llama, with two layers."""
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3 import model_registry

    config = model_registry("debugmodel").model
    config.layers = config.layers[:2]
    for layer in config.layers:  # flex attention would have to be compiled
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return config


def parallelize(model, backend):
    """Rows of the residual stream over two ranks, parameters over two groups of them."""
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.distributed import ParallelDims, parallel_dims, utils
    from torchtitan.models.llama3.parallelize import parallelize_llama

    parallel_dims.device_type = "cpu"  # torchtitan takes CUDA for granted
    utils.set_spmd_backend(backend)
    parallelism = ParallelismConfig(
        data_parallel_shard_degree=2, tensor_parallel_degree=2, spmd_backend=backend
    )
    dims = ParallelDims.from_config(parallelism, distributed.get_world_size())
    parallelize_llama(
        model,
        parallel_dims=dims,
        training=TrainingConfig(mixed_precision_param="float32"),
        parallelism=parallelism,
        compile_config=CompileConfig(),
        ac_config=None,
        dump_folder="",
    )
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no reduction that scales
    return dims


def whole(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


def gradients_of(model, tokens):
    """Those of a sum over these samples, because torchtitan adds gradients of ranks up."""
    whole(model(tokens)).square().sum().backward()
    return {name: whole(p.grad) for name, p in model.named_parameters()}


def llama(backend, folder):
    """Gradients are those of one process without rownorm, and a checkpoint goes from one to the other."""
    from torchtitan.config.override import OverrideConfig, apply_overrides
    from torchtitan.models.llama3.sharding import set_llama3_sharding_config

    plain, overridden = small_llama(), small_llama()
    set_llama3_sharding_config(overridden, enable_sp=True)
    sharded_plain = small_llama()
    set_llama3_sharding_config(sharded_plain, enable_sp=True)
    apply_overrides(OverrideConfig(imports=[ENTRY]), overridden)
    from rownorm.integrations.torchtitan import RownormRMSNorm

    torch.manual_seed(1)
    own, mine, other = (config.build() for config in (plain, overridden, sharded_plain))
    for model in (own, mine, other):
        model.init_states()
    mine.load_state_dict(own.state_dict())
    dims = parallelize(mine, backend)
    parallelize(other, backend)
    norms = [one for one in mine.modules() if isinstance(one, RownormRMSNorm)]
    assert len(norms) == 5
    assert all(one.weight.device_mesh.mesh_dim_names == ("fsdp", "tp") for one in norms)

    tokens = torch.arange(4 * 8).reshape(4, 8)
    expected = gradients_of(own, tokens)
    half = tokens.chunk(2)[dims.get_mesh("batch").get_local_rank()]
    for name, gradient in gradients_of(mine, half).items():
        slack = 1e-5 * expected[name].abs().max().item()
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=slack)

    checkpoint.save(mine.state_dict(), checkpoint_id=folder)
    states = other.state_dict()
    checkpoint.load(states, checkpoint_id=folder)
    other.load_state_dict(states)
    for name, state in own.state_dict().items():
        assert torch.equal(whole(other.state_dict()[name]), state), name
