"""``analysis.md``: four questions about a kernel, answered from the records, with the figures used.

What is its arithmetic intensity? What bounds it? How much of the peak bandwidth does it reach? How does it scale with
the batch?
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import texts
from ..cli.tables import escaped, markdown
from ..results.rows import Group, Results, Row, typical
from . import headline, points, scaling
from .failures import failures_of
from .peaks import peak_flops

NEAR_CEILING = 0.8  # at this share of the ceiling or more, the kernel is memory-bound


def analysis(results: Sequence[Results], damaged: Sequence[tuple[int, str]] = ()) -> str:
    """The whole file."""
    parts = ["# Analysis"]
    if damaged:
        lines = "; ".join(f"line {number}: {escaped(reason)}" for number, reason in damaged)
        parts.append(f"{texts.count(len(damaged), 'damaged line')} left out: {lines}.")
    if not results:
        parts.append(
            "There are no records. Measure some with `rownorm bench`, then run `rownorm report` on them."
        )
    for one in results:
        parts += _of_device(one)
    return "\n\n".join(parts) + "\n"


def _of_device(results: Results) -> list[str]:
    environment = results.environments[-1]
    software = (
        f"torch {environment.torch}, triton {environment.triton}, rownorm {environment.rownorm}"
    )
    parts = [
        f"## {escaped(results.device)}",
        f"{escaped(software)}. {escaped(headline.sentence(results))}",
    ]
    parts += map(escaped, results.notes)
    if results.kind == "cpu":
        parts.append(
            "**These are CPU timings.** They show rownorm's CPU path, which is PyTorch's own arithmetic, not the GPU "
            "kernels. On a machine with a GPU, `rownorm bench` measures the kernels."
        )
    if warning := headline.suspect_warning(results):
        parts.append(f"**{warning}**")
    if results.subject is None:
        return [*parts, *_not_measured(results)]
    of_group = {group: results.of(results.subject, group) for group in results.groups}
    measured = {group: rows for group, rows in of_group.items() if rows}
    parts.append(f"The answers are about **{escaped(results.subject)}**.")
    parts += _intensity(measured)
    parts += _bound(results, measured)
    parts += _share_of_peak(results, measured)
    parts += _scaling(measured)
    return [*parts, *_table_of_results(results), *_not_measured(results)]


def _intensity(measured: dict[Group, list[Row]]) -> list[str]:
    lines = []
    for group, rows in measured.items():
        for row in _ends(rows):
            case = row.record.case
            elements = case.rows * case.cols
            lines.append(
                (
                    group,
                    points.shape(row),
                    f"{case.flops:,} ({case.flops / elements:.3g} per element)",
                    f"{case.compulsory_bytes:,} ({case.compulsory_bytes / elements:.3g} per element)",
                    f"{case.intensity:.3g}",
                )
            )
    return [
        "### 1. What is the arithmetic intensity?",
        "Intensity is floating-point operations over bytes moved. The operations are those of the formulas; a "
        "multiply-add counts as two. The bytes are the compulsory ones: inputs read once, outputs written once, weight "
        "and bias once; the statistics of a row are left out. With few rows the parameters are a large part of the "
        "bytes, and the intensity is lower. The smallest and the largest case of each kind:",
        markdown(("case", "shape", "flop", "bytes", "flop/byte"), lines),
    ]


def _bound(results: Results, measured: dict[Group, list[Row]]) -> list[str]:
    flops, bandwidth = peak_flops(results), results.peak or results.ceiling
    sentences = ["### 2. Is it bound by compute, by memory, or by launch overhead?"]
    ridge = flops / bandwidth if flops and bandwidth else None
    if flops and bandwidth and ridge:
        sentences.append(
            f"The ridge point is {flops / 1e12:.3g} TFLOP/s (fp32) over {texts.gigabytes_per_second(bandwidth)} = "
            f"**{ridge:.3g} flop/byte**. Below it memory is the limit, above it compute."
        )
    else:
        sentences.append(
            "The device's peak compute or peak bandwidth is not known, so there is no ridge point. The share of the "
            "measured ceiling remains: a kernel close to the ceiling is memory-bound."
        )
    lines = []
    for group, rows in measured.items():
        best = headline.best_bandwidth(rows)
        if best is None:
            continue
        intensity = best.record.case.intensity
        ceiling = (
            f"{texts.percent(best.of_ceiling)} of the ceiling"
            if best.of_ceiling
            else "no ceiling measured"
        )
        lines.append(
            (
                group,
                f"{intensity:.3g}" + (f", ridge {ridge:.3g}" if ridge else ""),
                f"{ceiling} at {points.shape(best)}",
                _verdict_on_bound(intensity, ridge, best.of_ceiling),
                scaling.launch_text(rows),
            )
        )
    heads = ("case", "flop/byte", "best bandwidth", "large batches", "small batches")
    return [*sentences, markdown(heads, lines)]


def _verdict_on_bound(intensity: float, ridge: float | None, of_ceiling: float | None) -> str:
    if ridge and intensity >= ridge:
        return "compute"
    reach = (
        f"; compute could be {ridge / intensity:.2g} times higher before it became the limit"
        if ridge
        else ""
    )
    if of_ceiling is None:
        return f"memory, by its intensity{reach}" if ridge else "unknown: measure `ceiling` too"
    if of_ceiling >= NEAR_CEILING:
        return f"memory{reach}"
    return (
        f"neither: memory bandwidth is not saturated{reach}"
        if ridge
        else "memory bandwidth is not saturated"
    )


def _share_of_peak(results: Results, measured: dict[Group, list[Row]]) -> list[str]:
    lines = []
    for group, rows in measured.items():
        best = headline.best_bandwidth(rows)
        if best is None:
            continue
        lines.append(
            (
                group,
                points.shape(best),
                points.bandwidth_text(best),
                _percent(best.of_peak),
                _percent(best.of_ceiling),
                _percent(typical(row.of_peak for row in rows)),
                _percent(typical(row.of_ceiling for row in rows)),
            )
        )
    known = f"The peak is {texts.gigabytes_per_second(results.peak)}" if results.peak else ""
    sources = sorted(
        {e.peak_source for e in results.environments if e.peak_source and results.peak}
    )
    text = (
        f"{known} ({escaped('; '.join(sources))})."
        if known and sources
        else f"{known}."
        if known
        else (
            "The device's peak bandwidth is not known, so only the share of the measured ceiling can be given."
        )
    )
    if results.ceiling:
        text += (
            " The ceiling is an elementwise kernel of PyTorch over as many bytes as the case; its best was "
            f"{texts.gigabytes_per_second(results.ceiling)}."
        )
    else:
        text += " The ceiling was not measured: `rownorm bench` with the provider `ceiling` measures it."
    heads = (
        "case",
        "best shape",
        "bandwidth",
        "of peak",
        "of ceiling",
        "median of peak",
        "median of ceiling",
    )
    return ["### 3. What percentage of peak bandwidth does it reach?", text, markdown(heads, lines)]


def _scaling(measured: dict[Group, list[Row]]) -> list[str]:
    heading = "### 4. How does it scale with the batch?"
    parts = []
    for group, rows in measured.items():
        tall = scaling.by_rows(rows)
        if len(tall) < 2:
            continue
        cols = tall[0].record.case.cols
        lines = [
            (
                row.record.case.rows,
                points.time_text(row.time) if row.time else "",
                points.bandwidth_text(row),
                _percent(row.of_ceiling),
            )
            for row in tall
        ]
        parts += [
            f"**{escaped(str(group))}, {cols} columns.** {scaling.saturation_text(tall)}",
            markdown(("rows", "time", "bandwidth", "of ceiling"), lines),
        ]
    if not parts:
        parts = [
            "Not measured: no case has two row counts at one width. "
            "`rownorm bench --suite batch` measures 1 to 32768 rows of 4096 columns."
        ]
    return [heading, *parts]


def _table_of_results(results: Results) -> list[str]:
    lines = []
    for row in results.measured:
        speedup = row.speedups.get(results.baseline or "")
        memory = row.record.peak_bytes
        lines.append(
            (
                row.group,
                points.shape(row),
                row.provider + (" (suspect)" if row.record.suspect else ""),
                points.time_text(row.time) if row.time else "",
                "" if memory is None else texts.memory(memory),
                points.bandwidth_text(row),
                _percent(row.of_ceiling),
                _percent(row.of_peak),
                points.speedup_text(speedup) if speedup else "",
            )
        )
    over = f"speed-up over {results.baseline}" if results.baseline else "speed-up"
    heads = (
        "case",
        "shape",
        "provider",
        "time",
        "memory",
        "bandwidth",
        "of ceiling",
        "of peak",
        over,
    )
    text = (
        "Times are medians with the 20th and 80th percentiles; speed-ups have their 95% interval; memory is the most "
        "that is allocated during one call, beyond its inputs."
    )
    return ["### Results", text, markdown(heads, lines)]


def _not_measured(results: Results) -> list[str]:
    found = failures_of(results)
    if not found:
        return []
    lines = [(one.provider, one.kind, one.why, _cases(one.rows)) for one in found]
    heads = ("provider", "what", "why", "cases")
    return ["### Not measured or suspect", markdown(heads, lines)]


def _cases(rows: list[Row]) -> str:
    named = f"{rows[0].group} {points.shape(rows[0])}"
    return named if len(rows) == 1 else f"{named} and {len(rows) - 1} more"


def _ends(rows: list[Row]) -> list[Row]:
    """The rows with the fewest and the most elements."""
    ordered = sorted(rows, key=lambda row: row.record.case.rows * row.record.case.cols)
    return ordered[:1] if len(ordered) == 1 else [ordered[0], ordered[-1]]


def _percent(share: float | None) -> str:
    return "unknown" if share is None else texts.percent(share)
