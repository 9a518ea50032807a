"""Connecting to a Ray cluster, or starting one on this host."""

from __future__ import annotations

import logging
import os
import socket

import ray

from . import ClusterError

CONNECT_S = 5
LOCAL_STORE = 200 << 20  # bytes of Ray's object store; jobs and results are small


def connect(address: str) -> None:
    """Connect this process. address: "local", "auto" or HOST:PORT. ClusterError if it cannot."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # What Ray does in its next version; without it, every start prints a warning about it.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address not in ("local", "auto"):
        _require_reachable(address)
    local = {"include_dashboard": False, "object_store_memory": LOCAL_STORE}
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **(local if address == "local" else {}),
        )
    except ConnectionError:
        if address == "auto":
            why = (
                "no cluster runs on this host; start one with ray start --head, or use --ray local"
            )
        else:
            why = (
                "something answers there, but it is no head node of Ray. "
                "Is it the address that ray start --head printed?"
            )
        raise ClusterError(why) from None
    except (RuntimeError, ValueError) as error:  # another version of Ray or Python, among others
        raise ClusterError(str(error).strip()) from None


def slots() -> tuple[int, dict[str, int]]:
    """(how many processes the cluster has room for, what each of them needs): one for each GPU, else for each CPU."""
    resources = ray.cluster_resources()
    if gpus := int(resources.get("GPU", 0)):
        return gpus, {"num_gpus": 1, "num_cpus": 0}
    return int(resources.get("CPU", 0)), {"num_cpus": 1}


def _require_reachable(address: str) -> None:
    """Ray itself tries for minutes."""
    host, colon, port = address.rpartition(":")
    if "://" in address or not (host and colon and port.isdigit()):
        raise ClusterError(
            "an address is HOST:PORT of the head node (6379 unless it was started otherwise), auto or local. "
            "For ray://, run rownorm on a node of the cluster"
        )
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as error:
        raise ClusterError(
            f"cannot be reached: {error.strerror or error}. Is it the address that ray start --head printed?"
        ) from None
