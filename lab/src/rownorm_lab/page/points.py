"""A ``Measurement`` as a flat dictionary, for charts, the page's filters and tooltips.

Every text with an interval is made here, so that a figure has the same text everywhere.
"""

from __future__ import annotations

from typing import Any

from ..data import texts
from ..data.measurements import Measurement, Results
from ..data.statistics import Ratio, Summary
from .fastest import standing_of

Point = dict[str, Any]


def points_of(results: Results) -> list[Point]:
    """One point per row, in the order of the table. Fields without a value are left out."""
    return [point(row) for row in results.rows]


def point(row: Measurement) -> Point:
    """The fields of one row."""
    record, case = row.record, row.record.case
    fields: Point = {
        "device": record.environment.device,
        "operation": case.variant,
        "pass": case.direction,
        "dtype": case.dtype,
        "rows": case.rows,
        "cols": case.cols,
        "shape": shape(row),
        "name": case.name,
        "provider": record.provider,
        "status": record.status,
        "intensity": _short(case.intensity),
        "tallest": row.tallest or None,
        "scaling": row.scaling or None,
        "note": "; ".join(filter(None, (record.why, *record.suspect))),
    }
    if row.time and row.bandwidth and row.bandwidth_between:
        low, high = row.bandwidth_between
        fields |= {
            "us": _short(row.time.median * 1e6),
            "us_low": _short(row.time.p20 * 1e6),
            "us_high": _short(row.time.p80 * 1e6),
            "gbps": _short(row.bandwidth / 1e9),
            "gbps_low": _short(low / 1e9),
            "gbps_high": _short(high / 1e9),
            "gflops": _short(case.flops / row.time.median / 1e9),
            "time": time_text(row.time),
            "bandwidth": bandwidth_text(row),
            "limits": limits_text(row),
            "of_ceiling": row.of_ceiling and _short(row.of_ceiling),
            "of_peak": row.of_peak and _short(row.of_peak),
            "peak_bytes": record.peak_bytes,
            "speedups": {
                other: [
                    _short(ratio.ratio),
                    speedup_text(ratio),
                    standing_of(ratio, row.time.n),
                ]
                for other, ratio in row.speedups.items()
            },
        }
    if row.host:
        fields |= {"host_us": _short(row.host.median * 1e6), "host": time_text(row.host)}
    if record.accuracy:
        fields |= {"ulp": _short(record.accuracy.max_ulp), "error": error_text(row)}
    return {name: value for name, value in fields.items() if value not in (None, "", {})}


def shape(row: Measurement) -> str:
    """``4096 x 8192 (Llama-3-8B hidden)``."""
    case = row.record.case
    return f"{case.rows} x {case.cols}" + (f" ({case.name})" if case.name else "")


def time_text(summary: Summary) -> str:
    """``12.3 µs (12.1 to 12.6)``: the median, and the 20th and 80th percentile; with units if they differ."""
    median, low, high = map(texts.duration, (summary.median, summary.p20, summary.p80))
    if low == high:
        return median
    if len({text.split()[1] for text in (median, low, high)}) == 1:
        low, high = low.split()[0], high.split()[0]
    return f"{median} ({low} to {high})"


def bandwidth_text(row: Measurement) -> str:
    """``4,270 GB/s (4,260 to 4,280)``: at the median, the 80th and the 20th percentile of the times."""
    if not row.bandwidth or not row.bandwidth_between:
        return ""
    low, high = (texts.significant(end / 1e9) for end in row.bandwidth_between)
    middle = texts.gigabytes_per_second(row.bandwidth)
    return middle if low == high else f"{middle} ({low} to {high})"


def limits_text(row: Measurement) -> str:
    """``93% of the measured ceiling, 81% of peak``."""
    parts = [
        f"{texts.percent(share)} of {what}"
        for share, what in ((row.of_ceiling, "the measured ceiling"), (row.of_peak, "peak"))
        if share is not None
    ]
    return ", ".join(parts)


def speedup_text(ratio: Ratio) -> str:
    """``1.90x (1.88 to 1.93)``: the ratio and its 95% interval; without one if it is a single point."""
    if ratio.low == ratio.high:
        return texts.times(ratio.ratio)
    return f"{texts.times(ratio.ratio)} ({texts.significant(ratio.low)} to {texts.significant(ratio.high)})"


def error_text(row: Measurement) -> str:
    """``0.52 ulp in y (largest 0.011, mean 0.0012)``."""
    accuracy = row.record.accuracy
    if accuracy is None:
        return ""
    where = f" in {accuracy.worst}" if accuracy.worst else ""
    return (
        f"{texts.significant(accuracy.max_ulp)} ulp{where} "
        f"(largest {accuracy.max_error:.2g}, mean {accuracy.mean_error:.2g})"
    )


def _short(value: float) -> float:
    """Five significant digits: more than the measurements support, and a smaller page."""
    return float(f"{value:.5g}")
