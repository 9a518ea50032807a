"""Proton, Triton's profiler: the kernels with their times, as a tree in a hatchet file (JSON)."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from ..data.profiles import ToolResult
from .process import failure, read_json, run_work
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
    ran = run_work("proton", folder)
    files = [FILES[one] for one in request.subjects if (folder / FILES[one]).exists()]
    if ran.status:
        return ToolResult("proton", "failed", failure(ran), files)
    return ToolResult("proton", "ok", files=files)


def parse(file: Path) -> list[ProtonKernel]:
    """The kernels, those with the most time first. ValueError, with the reason, if the file is not Proton's."""
    document = read_json(file)
    if not (isinstance(document, list) and document and _is_node(document[0])):
        raise ValueError("it is no hatchet file of Proton: it does not begin with a tree")
    totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    _add(document[0], totals)
    kernels = [ProtonKernel(name, round(n), s) for name, (n, s) in totals.items()]
    return sorted(kernels, key=lambda one: -one.seconds)


def _is_node(node: Any) -> bool:
    return isinstance(node, dict) and "children" in node and "frame" in node


def _add(node: Any, totals: dict[str, list[float]]) -> None:
    """Add the kernels of a tree: the nodes with a time. A scope may have one too, the sum of what is below it."""
    children = [child for child in node.get("children", ()) if _is_node(child)]
    for child in children:
        _add(child, totals)
    metrics = node.get("metrics", {})
    if not children and TIME in metrics:
        total = totals[node["frame"]["name"]]
        total[0] += metrics.get(COUNT, 1)
        total[1] += metrics[TIME] * NANOSECOND
