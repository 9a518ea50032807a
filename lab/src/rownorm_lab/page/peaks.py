"""The peak FLOP/s of a device, which records do not hold."""

from __future__ import annotations

from ..data.rows import Results
from ..device.database import known


def peak_flops(results: Results) -> float | None:
    """Peak fp32 FLOP/s of the device, from the database; None if it is not listed.

    Times by another clock have a device name with that clock after a comma.
    """
    found = known(results.device.partition(",")[0])
    return float(found.peak_flops_fp32.value) if found and found.peak_flops_fp32 else None
