"""Studies of the tuner."""

import pytest
import torch

from rownorm_lab.commands.tune.study import TuningCase


@pytest.mark.parametrize(
    ("study", "kind"),
    [
        (("forward", False, torch.bfloat16), "rms_norm forward bf16"),
        (("backward", True, torch.float32), "layer_norm backward fp32"),
        (
            ("backward", True, torch.bfloat16, torch.float32),
            "add_layer_norm (fp32 residual) backward bf16",
        ),
        (("backward", False, torch.float16, None, "pre_bias"), "rms_norm (pre_bias) backward fp16"),
        (("forward", True, torch.bfloat16, None, "activation"), "layer_norm (silu) forward bf16"),
        (("forward", True, torch.bfloat16, None, "gelu"), "layer_norm (gelu) forward bf16"),
    ],
)
def test_a_study_is_a_case_of_the_lab(study, kind):
    """So its rounds and bytes are those of ``rownorm bench``."""
    direction, center, dtype, *rest = study
    case = TuningCase(direction, center, dtype, 2048, *rest).case(1000)
    assert (case.kind, case.rows, case.cols) == (kind, 1000, 2048)
