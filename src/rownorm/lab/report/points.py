"""A ``Row`` as the flat dictionary that charts, the page's filters and its tooltips read.

Every text that shows an interval is made here, so that a figure reads the same wherever it is hovered over.
"""

from __future__ import annotations

from typing import Any

from .. import texts
from ..results import Results, Row
from ..statistics import Ratio, Summary

Point = dict[str, Any]


def points_of(results: Results) -> list[Point]:
    """One point a row, in the order of the table. Fields that have no value are left out."""
    return [point(row) for row in results.rows]


def point(row: Row) -> Point:
    record, case = row.record, row.record.case
    made: Point = {
        "device": record.environment.device,
        "operation": case.variant,
        "pass": case.direction,
        "dtype": case.dtype,
        "rows": case.rows,
        "cols": case.cols,
        "shape": shape(row),
        "provider": record.provider,
        "status": record.status,
        "intensity": _short(case.intensity),
        "tallest": row.tallest or None,
        "scaling": row.scaling or None,
        "note": "; ".join(filter(None, (record.why, *row.record.suspicions))),
    }
    if row.time and row.bandwidth and row.bandwidth_between:
        low, high = row.bandwidth_between
        made |= {
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
                other: [_short(ratio.ratio), speedup_text(ratio)]
                for other, ratio in row.speedups.items()
            },
        }
    if row.host:
        made |= {"host_us": _short(row.host.median * 1e6), "host": time_text(row.host)}
    if record.accuracy:
        made |= {"ulp": _short(record.accuracy.max_ulp), "error": error_text(row)}
    return {name: value for name, value in made.items() if value not in (None, "", {})}


def shape(row: Row) -> str:
    case = row.record.case
    return f"{case.rows} x {case.cols}" + (f" ({case.name})" if case.name else "")


def time_text(summary: Summary) -> str:
    """12.3 µs (12.1 to 12.6): the median, the 20th and 80th percentiles; units where they differ."""
    median, low, high = map(texts.duration, (summary.median, summary.p20, summary.p80))
    if low == high:
        return median
    if len({text.split()[1] for text in (median, low, high)}) == 1:
        low, high = low.split()[0], high.split()[0]
    return f"{median} ({low} to {high})"


def bandwidth_text(row: Row) -> str:
    if not row.bandwidth or not row.bandwidth_between:
        return ""
    low, high = (texts.significant(end / 1e9) for end in row.bandwidth_between)
    middle = texts.gigabytes_per_second(row.bandwidth)
    return middle if low == high else f"{middle} ({low} to {high})"


def limits_text(row: Row) -> str:
    """93 % of the measured ceiling, 81 % of peak."""
    parts = [
        f"{texts.percent(share)} of {what}"
        for share, what in ((row.of_ceiling, "the measured ceiling"), (row.of_peak, "peak"))
        if share is not None
    ]
    return ", ".join(parts)


def speedup_text(ratio: Ratio) -> str:
    """1.90x (1.88 to 1.93): the ratio and its 95 % interval."""
    return f"{texts.times(ratio.ratio)} ({texts.significant(ratio.low)} to {texts.significant(ratio.high)})"


def error_text(row: Row) -> str:
    accuracy = row.record.accuracy
    if accuracy is None:
        return ""
    where = f" in {accuracy.worst}" if accuracy.worst else ""
    return (
        f"{texts.significant(accuracy.max_ulp)} ulp{where} "
        f"(largest {accuracy.max_error:.2g}, mean {accuracy.mean_error:.2g})"
    )


def _short(value: float) -> float:
    """Five significant digits: more than any of these figures is good for, and a smaller page."""
    return float(f"{value:.5g}")
