"""Which host and GPU of a cluster this process has. Runs in the processes of the cluster."""

from __future__ import annotations

import socket
from typing import Any

import msgspec
import ray
import torch

from ..data.records import Environment
from ..device.environment import environment
from . import ProcessLost


def located(environment: Environment) -> Environment:
    """The environment with the names of this host and this GPU."""
    return msgspec.structs.replace(environment, node=socket.gethostname(), gpu=_gpu())


def environment_here() -> dict[str, Any]:
    """The environment of this process, for JSON."""
    return msgspec.to_builtins(located(environment()))


def require_working_gpu() -> None:
    """ProcessLost if an earlier job has ended the GPU's context."""
    if torch.cuda.is_available():
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise ProcessLost(f"the GPU's context was lost: {error}") from None


def place() -> str:
    """Host and GPU in one line."""
    return f"{socket.gethostname()} {_gpu()}".rstrip()


def _gpu() -> str:
    """The number of the GPU on its host, and its UUID; empty on a CPU."""
    if not torch.cuda.is_available():
        return ""
    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", "")
    return " ".join([*map(str, ray.get_gpu_ids()), *([f"GPU-{uuid}"] if uuid else [])])
