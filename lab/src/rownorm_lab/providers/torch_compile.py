"""torch.compile of the eager expression, for each shape separately."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
import torch._functorch.config

from ..data.case import Case
from . import EVERY_OPTION, Call, Refusal, by_autograd, provider
from .data import Tensors, program_of
from .torch_eager import composition


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
    function = _compiled(case)
    # Backward runs many times on the tensors that one forward saved, so the compiler must not reuse their memory.
    with torch._functorch.config.patch(donated_buffer=case.direction == "both"):
        return by_autograd(case, t, lambda: function(*t[:5]))


@functools.lru_cache(maxsize=1)
def _compiled(case: Case) -> Callable[..., Any]:
    # The compiler counts recompilations per function over all cases and gives up after eight.
    torch.compiler.reset()
    return torch.compile(
        functools.partial(composition, program_of(case)), dynamic=False, fullgraph=True
    )
