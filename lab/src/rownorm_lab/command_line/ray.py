"""The option ``--ray`` and the connection that it asks for."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..cluster.pool import Pool

ray_option = click.option(
    "--ray",
    "ray_address",
    metavar="ADDRESS",
    help="Use all GPUs of a Ray cluster: HOST:PORT, auto (the one that this host belongs to), or local "
    "(the GPUs of this host).",
)


@contextlib.contextmanager
def connected(address: str | None, most: int) -> Iterator[Pool | None]:
    """The processes of a cluster, at most ``most``; None without an address. A usage error if there are none."""
    if address is None:
        yield None
        return
    if importlib.util.find_spec("ray") is None:
        raise click.UsageError("--ray: Ray is not installed; pip install 'rownorm-lab[ray]'")
    from ..cluster import ClusterError
    from ..cluster.pool import Pool

    try:
        pool = Pool(address, most)
    except ClusterError as error:
        raise click.UsageError(f"--ray {address}: {error}") from None
    try:
        with pool:
            yield pool
    except ClusterError as error:
        raise click.ClickException(f"--ray {address}: {error}") from None
