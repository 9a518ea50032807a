"""Proton, Triton's profiler: the kernels with their times, as a tree in a hatchet file (JSON)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..data.profiles import ScopeTime, ToolResult
from .process import read_json, recorded
from .request import ProfileRequest

FILES = {one: f"proton-{one}.hatchet" for one in ("rownorm", "torch", "script")}
TIME, COUNT = "time (ns)", "count"
NANOSECOND = 1e-9


class ProtonKernel(NamedTuple):
    """All launches of one kernel."""

    name: str
    calls: int
    seconds: float


def collect(request: ProfileRequest, folder: Path) -> ToolResult:
    """Record the kernels in a process of its own."""
    import torch

    if not torch.cuda.is_available():
        why = (
            "torch sees no GPU, and Proton records kernels of GPUs: run this on a machine with one"
        )
        return ToolResult("proton", "missing", why)
    return recorded("proton", request, folder, FILES)


def parse(file: Path) -> list[ProtonKernel]:
    """The kernels, those with the most time first. ValueError, with the reason, if the file is not Proton's."""
    document = read_json(file)
    if not (isinstance(document, list) and document and _is_node(document[0])):
        raise ValueError("it is no hatchet file of Proton: it does not begin with a tree")
    totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for one in _launched(document[0]):
        totals[one.name][0] += one.calls
        totals[one.name][1] += one.seconds
    kernels = [ProtonKernel(name, round(n), s) for name, (n, s) in totals.items()]
    return sorted(kernels, key=lambda one: -one.seconds)


def scopes(file: Path, repeats: int) -> list[ScopeTime]:
    """The tree: each scope before what is in it, the longest first; of one of ``repeats`` calls or steps.

    Empty if there are kernels and no scopes. The time of a scope is that of the kernels below it.
    """
    root = read_json(file)[0]
    found = list(_scopes(root, [], repeats))
    return found if any(not one.is_kernel for one in found) else []


def _scopes(node: Any, path: list[str], repeats: int) -> Iterator[ScopeTime]:
    found = [(child, list(_launched(child))) for child in _children(node)]
    timed = [(child, sum(one.seconds for one in kernels), kernels) for child, kernels in found]
    for child, seconds, kernels in sorted(timed, key=lambda one: -one[1]):
        if calls := sum(one.calls for one in kernels):
            names = [*path, str(child["frame"]["name"])]
            is_kernel = not _children(child)
            yield ScopeTime(
                path=names, calls=calls / repeats, seconds=seconds / repeats, is_kernel=is_kernel
            )
            yield from _scopes(child, names, repeats)


def _launched(node: Any) -> Iterator[ProtonKernel]:
    """The kernels of a tree: the nodes with a time. A scope may have one too, the sum of what is below it."""
    children = _children(node)
    for child in children:
        yield from _launched(child)
    metrics = node.get("metrics", {})
    if not children and TIME in metrics:
        yield ProtonKernel(node["frame"]["name"], metrics.get(COUNT, 1), metrics[TIME] * NANOSECOND)


def _children(node: Any) -> list[Any]:
    return [child for child in node.get("children", ()) if _is_node(child)]


def _is_node(node: Any) -> bool:
    return isinstance(node, dict) and "children" in node and "frame" in node
