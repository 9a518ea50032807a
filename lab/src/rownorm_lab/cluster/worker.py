"""The process on a GPU of the cluster.

The class is sent to the node with its code, and imports rownorm there only inside its methods: a node that lacks
rownorm, or has another version, can say so.
"""

from __future__ import annotations

from collections.abc import Iterator


class Worker:
    """Runs jobs one after the other."""

    def about(self, version: str) -> bytes:
        """An ``About`` as JSON. version: the rownorm of the process that hands out jobs."""
        import json
        import os
        import socket

        about: dict[str, object] = {"node": socket.gethostname(), "pid": os.getpid()}
        try:
            import rownorm

            if rownorm.__version__ != version:
                raise ImportError(f"its version is {rownorm.__version__}, not {version}")
            from .here import environment_here

            about["environment"] = environment_here()
        except ImportError as error:
            about["problem"] = f"cannot use rownorm: {error}"
        return json.dumps(about).encode()

    def run(self, function: str, arguments: bytes) -> Iterator[bytes]:
        """What ``function`` ("package.module:name") gives, item by item."""
        import pkgutil

        yield from pkgutil.resolve_name(function)(arguments)
