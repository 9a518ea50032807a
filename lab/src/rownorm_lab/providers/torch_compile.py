"""torch.compile of the eager expression, for each shape separately; and as newer versions of PyTorch compile it.

Inductor fuses the gradients of rows and of parameters into one kernel. Torch 2.13 pipelines its loop by default, and
2.15 drops the condition that there are at least twice as many rows as columns. Before, two settings do both."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch._functorch.config

from ..data.case import Case
from . import EVERY_OPTION, Call, Refusal, by_autograd, provider
from .data import Tensors, program_of
from .torch_eager import composition

# Settings of Inductor: one kernel whatever the numbers of rows and columns, and a pipelined loop.
NEWER = {
    "triton.mix_order_reduction_non_strict_mode": True,
    "triton.mix_order_reduction_allow_multi_stages": True,
}
DOES_IT_ITSELF = (2, 15)


@provider(
    "torch.compile",
    about="the expression of `torch`, compiled as a whole for each shape (dynamic=False)",
    options=EVERY_OPTION,
    package="torch",
    slow_on_cpu=True,
)
def torch_compile(case: Case, t: Tensors) -> Call:
    if not t.x.is_cuda and not shutil.which(os.environ.get("CXX", "g++")):
        raise Refusal(
            "torch.compile needs a C++ compiler on a CPU (g++, or the one that CXX names)"
        )
    return _call(case, t, {})


@provider(
    "torch.compile_newer",
    about="torch.compile, newer: with the fused backward pass of torch 2.15, in versions from 2.11 on that can do it",
    directions=("backward", "both"),
    options=EVERY_OPTION,
    package="torch",
    needs_gpu=True,
)
def compile_newer(case: Case, t: Tensors) -> Call:
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version >= DOES_IT_ITSELF:
        raise Refusal(f"torch {torch.__version__} compiles this way by itself: it is torch.compile")
    from torch._inductor import config  # imported here because Inductor is large

    absent = [name for name in NEWER if not hasattr(config.triton, name.removeprefix("triton."))]
    if absent:
        raise Refusal(f"torch {torch.__version__} has no setting {' and '.join(absent)}")
    return _call(case, t, NEWER)


def _call(case: Case, t: Tensors, options: Mapping[str, bool]) -> Call:
    """The call of a compiled case. options: settings of Inductor."""
    function = _compiled(case, tuple(options.items()))
    # Backward runs many times on the tensors that one forward saved, so the compiler must not reuse their memory.
    with torch._functorch.config.patch(donated_buffer=case.direction == "both"):
        return by_autograd(case, t, lambda: function(t.inputs))


@functools.lru_cache(maxsize=2)
def _compiled(case: Case, options: tuple[tuple[str, bool], ...]) -> Callable[..., Any]:
    _forget_others(case)
    return torch.compile(
        functools.partial(composition, program_of(case)),
        dynamic=False,
        fullgraph=True,
        options=dict(options) or None,
    )


@functools.lru_cache(maxsize=1)
def _forget_others(case: Case) -> None:
    """Drop the code of other cases. Both providers of a case are timed in turns, so they are reset together.

    The compiler counts recompilations per function over all cases and gives up after eight.
    """
    torch.compiler.reset()
