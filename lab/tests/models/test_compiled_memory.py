"""What a compiled block keeps for backward."""

from unittest import mock

import pytest
import torch
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import compile_fx

from rownorm_lab.models import tiny_openfold
from rownorm_lab.models.tiny_openfold import TinyOpenFold


class Partitioned(Exception):
    """Ends a compilation, because generating code for a whole block takes long."""


def kept_bytes(stage):
    """Bytes that the forward of a compiled block of medium size returns, without one value per row."""
    config = tiny_openfold.SIZES["medium"]
    block = TinyOpenFold(config, stage).bfloat16().blocks[1]
    msa = torch.randn(1, config.n_sequences, config.n_residues, config.msa_width).bfloat16()
    pair = torch.randn(1, config.n_residues, config.n_residues, config.pair_width).bfloat16()
    kept = []

    def partition(*arguments, **options):
        forward, _ = min_cut_rematerialization_partition(*arguments, **options)
        [outputs] = forward.graph.find_nodes(op="output")
        made = [one for one in dict.fromkeys(outputs.args[0]) if one.op != "placeholder"]
        kept.extend(one.meta["val"] for one in made)
        raise Partitioned

    torch._dynamo.reset()
    inputs = [one.requires_grad_() for one in (msa, pair, torch.randn_like(pair))]
    with (
        mock.patch.object(compile_fx, "min_cut_rematerialization_partition", partition),
        torch._functorch.config.patch(enable_autograd_cache=False),
        pytest.raises(Exception, match="Partitioned"),
    ):
        torch.compile(block, dynamic=False)(*inputs)
    return sum(one.nbytes for one in kept if one.shape[-1] > 1)


@pytest.mark.exhaustive
def test_no_more_than_the_fused_stage():
    """Without statistics, which PyTorch rounds to the dtype of the rows on a CPU only."""
    assert kept_bytes("rownorm") == kept_bytes("fused")
