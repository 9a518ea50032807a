"""The peak of arithmetic, which records do not carry."""

from __future__ import annotations

from .. import devices
from ..results import Results


def peak_flops(results: Results) -> float | None:
    """fp32 operations per second of the device according to the database; None if it is not in there."""
    found = devices.known(results.device)
    return float(found.peak_flops_fp32.value) if found and found.peak_flops_fp32 else None
