"""What a plan needs to know of a GPU, and the function that asks for it."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from .cluster_capacity import SHARES, SIZES, resident_clusters


class Device(NamedTuple):
    """A GPU, or Triton's interpreter.

    clusters: how many clusters run at once. One tuple for each number of programs per multiprocessor (1, and 2, 4 and 8
    where known), with one count for each cluster size (2, 4, 8 and 16). Empty where there are no clusters.
    """

    name: str
    arch: str  # "sm_90", "gfx942", ... or "interpreter"
    n_sms: int  # streaming multiprocessors; compute units on AMD
    warp_size: int
    clusters: tuple[tuple[int, ...], ...] = ()

    @property
    def is_nvidia(self) -> bool:
        return self.arch.startswith("sm_")

    def max_clusters(self, cluster_size: int, programs_per_sm: int = 1) -> int:
        """How many clusters of ``cluster_size`` programs run at once, ``programs_per_sm`` on each multiprocessor.

        0 where such clusters cannot be started.
        """
        if cluster_size == 1:
            return self.n_sms * programs_per_sm
        if not self.clusters or cluster_size not in SIZES:
            return 0
        known = zip(SHARES, self.clusters, strict=False)
        share, counts = max(pair for pair in known if programs_per_sm % pair[0] == 0)
        return programs_per_sm // share * counts[SIZES.index(cluster_size)]


# Clusters that run at once, as the driver of an H200 reports them: see ``Device.clusters``.
_H200_CLUSTERS = ((66, 30, 15, 7), (132, 62, 30, 14), (264, 124, 62, 28), (528, 248, 124, 58))
# One device of each architecture that kernels are compiled for.
DEVICES = {
    device.arch: device
    for device in (
        Device("NVIDIA A100", "sm_80", 108, 32),
        Device("NVIDIA H100/H200", "sm_90", 132, 32, _H200_CLUSTERS),
        Device("NVIDIA B200", "sm_100", 148, 32, ((74, 36, 18, 8),)),
        Device("AMD MI250X", "gfx90a", 110, 64),
        Device("AMD MI300X", "gfx942", 304, 64),
    )
}
INTERPRETER = Device("Triton interpreter", "interpreter", 4, 32)


@functools.cache
def device_of(index: int) -> Device:
    """The GPU with this index; the interpreter for -1, which is the index of the CPU. The driver is asked once."""
    if index < 0:
        return INTERPRETER
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip is not None:
        arch = properties.gcnArchName.split(":")[0]
        return Device(properties.name, arch, properties.multi_processor_count, 64)
    # Imported here because it needs Triton, which a plan for a GPU elsewhere does not.
    from . import launcher

    arch = f"sm_{properties.major}{properties.minor}"
    has_clusters = properties.major >= 9 and launcher.CAN_START_CLUSTERS
    clusters = resident_clusters(index) if has_clusters else ()
    return Device(properties.name, arch, properties.multi_processor_count, 32, clusters)
