"""Two small models that show what a norm is worth in a training step: a Llama and an Evoformer.

Each model computes in one of three stages, which share one parameter layout: see ``blocks.py``.
"""

from .blocks import STAGES, Stage
from .tiny_llama import LlamaConfig, TinyLlama
from .tiny_openfold import OpenFoldConfig, TinyOpenFold

__all__ = ["STAGES", "LlamaConfig", "OpenFoldConfig", "Stage", "TinyLlama", "TinyOpenFold"]
