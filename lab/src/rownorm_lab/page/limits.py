"""The limits of a device: its peak FLOP/s, and those that charts draw: peak bandwidth, roofs of the roofline."""

from __future__ import annotations

from ..data.measurements import Results
from ..device.database import known
from .points import Point

MEASURED = "measured ceiling"  # the roof of the measured ceiling
# Intensities: of the left end, of labels, of the right end if compute is unknown.
LEFT, LABELED, RIGHT = (0.25, 4.0, 8.0)
# The label of the measured ceiling is on the right of this point, and a chart that ends at RIGHT is narrow.
LABELED_NARROW = 1.0


def peak_flops(results: Results) -> float | None:
    """Peak fp32 FLOP/s of the device, from the database; None if it is not listed.

    Times by another clock have a device name with that clock after a comma.
    """
    found = known(results.device.partition(",")[0])
    return float(found.peak_flops_fp32.value) if found and found.peak_flops_fp32 else None


def bandwidth_limits(peak: float | None) -> list[Point]:
    """A peak in bytes per second, drawn as a rule. The ceiling is measured, so it is a line like the providers."""
    return [{"gbps": peak / 1e9, "label": f"peak {peak / 1e9:,.0f} GB/s"}] if peak else []


def roofs(results: Results, peak_flops: float | None) -> list[Point]:
    """The corners and labels of each roof: bandwidth times intensity, up to the peak FLOP/s if it is known."""
    found: list[Point] = []
    for name, bandwidth in (("peak", results.peak), (MEASURED, results.ceiling)):
        if not bandwidth:
            continue
        end = peak_flops / bandwidth if peak_flops else RIGHT
        label = f"{name}, {bandwidth / 1e9:,.4g} GB/s"
        narrow = name == MEASURED and not peak_flops
        labeled = LABELED_NARROW if narrow else min(LABELED, end / 1.5)
        for at, text in ((LEFT, None), (labeled, label), (end, None)):
            gflops = bandwidth * at / 1e9
            found.append({"roof": name, "intensity": at, "gflops": gflops, "label": text})
    if peak_flops and found:
        ridge = peak_flops / (results.peak or results.ceiling or 1.0)
        top = {"roof": "fp32", "gflops": peak_flops / 1e9}
        found.append(top | {"intensity": ridge, "label": None})
        label = f"fp32 peak, {peak_flops / 1e12:.3g} TFLOP/s"
        found.append(top | {"intensity": 4 * ridge, "label": label})
    return found
