"""Small models that show what a norm is worth in a training step, a Llama, an Evoformer and a DiT, and their training.

Each model computes in one of three stages, which share one parameter layout: see ``blocks.py``. The names are here,
because options need them without torch.
"""

from typing import Any, Literal, NamedTuple, get_args

Stage = Literal["baseline", "fused", "rownorm"]
STAGES: tuple[Stage, ...] = get_args(Stage)
TASKS = ("llama", "openfold", "dit")
SIZES = ("tiny", "small", "medium")
SmallModel = Literal["llama", "gpt2"]
Parallel = Literal["ddp", "fsdp", "tensor"]
PARALLELS: tuple[Parallel, ...] = get_args(Parallel)
State = dict[str, Any]  # of a model or an optimizer, by the names of parameters


class Size(NamedTuple):
    """The dimensions of a model of ``small.py`` and of its batch."""

    width: int
    n_layers: int
    n_heads: int
    batch: int
    n_tokens: int


SMALL_MODELS: dict[SmallModel, Size] = {
    "llama": Size(1024, 8, 16, 16, 512),
    "gpt2": Size(768, 12, 12, 16, 1024),
}
# Of stacks of DiT blocks, by their width. The numbers of tokens are squares.
DIT_SIZES: dict[int, Size] = {
    1152: Size(1152, 8, 16, 16, 1024),
    3072: Size(3072, 4, 24, 4, 4096),
}
TINY = Size(width=64, n_layers=2, n_heads=2, batch=2, n_tokens=16)
