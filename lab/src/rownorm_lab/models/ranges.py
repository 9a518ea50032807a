"""Ranges around norms, so that a profile can tell which kernels belong to them.

A list of kernel names is not enough: in the stage ``baseline`` a norm is a dozen elementwise kernels and reductions,
with names that other operations have too. So ``norm_ranges`` records a range around

    forward     each call of a norm, with its residual add and its activation where it has them
    backward    each autograd node that such a call has made

and a kernel belongs to a norm if the host launched it inside such a range. The addition of two gradients of a residual
stream belongs to the node that completes the sum (``trace.py``). So the same work is counted in all stages: rownorm
does the adds inside its kernels.

Inside compiled code there are no ranges. There, a kernel belongs to a norm if its name or its operator names one. Such
a kernel may do other work too, because Inductor fuses norms with their neighbors: the share is then an upper bound. A
norm that was written op by op leaves no name in backward: its share is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from ..profilers.trace import NORM
from .blocks import Baseline, Modulation, Norm


@contextmanager
def norm_ranges(model: nn.Module, enabled: bool = True) -> Iterator[None]:
    """Record a range around every norm of ``model``, forward and backward, of steps that begin inside."""
    norms = [module for module in model.modules() if enabled and isinstance(module, Norm)]
    for norm in norms:
        norm.compute = _Ranged(norm.compute)
    try:
        yield
    finally:
        for norm in norms:
            norm.compute = norm.compute.compute  # type: ignore[attr-defined]


class _Ranged(Baseline):
    """The norms of a stage inside ranges."""

    def __init__(self, compute: Baseline) -> None:
        self.compute = compute

    def norm(self, x: Tensor, norm: Norm, modulation: Modulation | None = None) -> Tensor:
        with record_function(NORM):
            y = self.compute.norm(x, norm, modulation)
        record_backward((y,), (x, *filter(torch.is_tensor, modulation or ())))
        return y

    def add_norm(
        self, h: Tensor, update: Tensor, norm: Norm, modulation: Modulation | None = None
    ) -> tuple[Tensor, Tensor]:
        with record_function(NORM):
            outputs = self.compute.add_norm(h, update, norm, modulation)
        record_backward(outputs, (h, update, *filter(torch.is_tensor, modulation or ())))
        return outputs


def record_backward(outputs: Iterable[Tensor], inputs: Iterable[Tensor], name: str = NORM) -> None:
    """Record a range around each autograd node between outputs and inputs."""
    seen: set[Any] = {tensor.grad_fn for tensor in inputs} | {None}
    nodes: list[Any] = [tensor.grad_fn for tensor in outputs]
    while nodes:
        node = nodes.pop()
        if node in seen or node.name().endswith("AccumulateGrad"):
            continue
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
        _record_node(node, name)


def _record_node(node: Any, name: str) -> None:
    span = record_function(name)

    def enter(gradients: Any) -> None:
        span.__enter__()

    def leave(inputs: Any, outputs: Any) -> None:
        span.__exit__(None, None, None)

    node.register_prehook(enter)
    node.register_hook(leave)
