"""Two small models that show what a norm is worth in a training step, a Llama and an Evoformer, and how to train them.

Each model computes in one of three stages, which share one parameter layout: see ``blocks.py``. The names are here,
because options need them without torch.
"""

from typing import Literal, get_args

Stage = Literal["baseline", "fused", "rownorm"]
STAGES: tuple[Stage, ...] = get_args(Stage)
TASKS = ("llama", "openfold")
SIZES = ("tiny", "small", "medium")
