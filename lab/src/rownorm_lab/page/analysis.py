"""``analysis.md``: a comparison and four questions about a kernel, answered from the records with the figures used.

How does it compare with the fastest alternative? What is its arithmetic intensity? What bounds it? How much of the peak
bandwidth does it reach? How does it scale with the batch?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..data import texts
from ..data.measurements import Group, Measurement, Results, fastest_other, typical
from ..data.tables import escaped, markdown
from . import headline, points, scaling
from .bounds import LEAST_OF_PEAK, MEMORY, MOSTLY_MEMORY, Bounds, by_limit
from .failures import failures_of
from .fastest import LEVEL_TEXT, Standing, standing_of
from .limits import peak_flops


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
            "**These are CPU timings.** They show rownorm's CPU path, not the GPU "
            "kernels. On a machine with a GPU, `rownorm bench` measures the kernels."
        )
    if warning := headline.suspect_warning(results):
        parts.append(f"**{warning}**")
    if results.subject is None:
        return [*parts, *_not_measured(results)]
    of_group = {group: results.of(results.subject, group) for group in results.groups}
    measured = {group: rows for group, rows in of_group.items() if rows}
    parts.append(f"The answers are about **{escaped(results.subject)}**.")
    bounds = Bounds(results)
    parts += _comparison(results, measured)
    parts += _intensity(measured)
    parts += _bound(results, measured, bounds)
    parts += _share_of_peak(results, measured)
    parts += _scaling(measured, bounds)
    return [*parts, *_table_of_results(results), *_not_measured(results)]


def _comparison(results: Results, measured: dict[Group, list[Measurement]]) -> list[str]:
    """The subject against the fastest other provider of each case."""
    lines = []
    for group, rows in measured.items():
        compared = [(row, other) for row in rows if (other := fastest_other(row))]
        if not compared:
            continue
        found = Counter(_standing(row, other) for row, other in compared)
        names = Counter(other for _, other in compared)
        worst, worst_other = min(compared, key=lambda pair: pair[0].speedups[pair[1]].ratio)
        middle = typical(row.speedups[other].ratio for row, other in compared) or 0.0
        lowest = texts.times(worst.speedups[worst_other].ratio)
        listed = ", ".join(f"{name} {number}" for name, number in names.most_common())
        lines.append(
            {
                "case": group,
                "shapes": len(compared),
                "fastest": found["fastest"],
                "level": found["level"],
                "slower": found["slower"],
                "too noisy": found["unclear"],
                "median speed-up": texts.times(middle),
                "lowest speed-up": f"{lowest} at {points.shape(worst)} ({worst_other})",
                "fastest other, shapes": listed,
            }
        )
    if not lines:
        return []
    text = (
        f"Each shape of {escaped(str(results.subject))} is compared with the fastest other provider on that shape. "
        f"{LEVEL_TEXT}"
    )
    return ["### Against the fastest alternative", text, _table(lines)]


def _standing(row: Measurement, other: str) -> Standing:
    """The same rule as that of the page."""
    return standing_of(row.speedups[other], row.time.n if row.time else 0)


def _intensity(measured: dict[Group, list[Measurement]]) -> list[str]:
    lines = []
    for group, rows in measured.items():
        ends = [row.record.case for row in _ends(rows)]
        elements = [case.rows * case.cols for case in ends]
        flops = [case.flops / n for case, n in zip(ends, elements, strict=True)]
        moved = [case.compulsory_bytes / n for case, n in zip(ends, elements, strict=True)]
        lines.append(
            (
                group,
                _from_to([points.shape(row) for row in _ends(rows)]),
                _from_to([f"{value:.3g}" for value in flops]),
                _from_to([f"{value:.3g}" for value in moved]),
                _from_to([f"{case.intensity:.3g}" for case in ends]),
            )
        )
    heads = ("case", "smallest and largest shape", "flop/element", "bytes/element", "flop/byte")
    return [
        "### 1. What is the arithmetic intensity?",
        "Intensity is floating-point operations over bytes moved. The operations are those of the formulas; a "
        "multiply-add counts as two. The bytes are the compulsory ones: inputs read once, outputs written once, weight "
        "and bias once; the statistics of a row are left out. With few rows the parameters are a large part of the "
        "bytes, and the intensity is lower.",
        markdown(heads, lines),
    ]


def _bound(results: Results, measured: dict[Group, list[Measurement]], bounds: Bounds) -> list[str]:
    heading = "### 2. Is it bound by memory, by the launch, by latency, or by compute?"
    found_at_all = [row for rows in measured.values() for row in rows]
    # A time that is not trusted has no cause.
    measured = {
        group: trusted
        for group, rows in measured.items()
        if (trusted := [row for row in rows if not row.record.suspect])
    }
    every = [row for rows in measured.values() for row in rows]
    suspect = len(found_at_all) - len(every)
    if not every:
        return [heading, "All measurements are suspect, so no cause is drawn from them."]
    left_out = f" {texts.count(suspect, 'suspect case')} left out." if suspect else ""
    counts = {limit: len(rows) for limit, rows in by_limit(bounds, every).items()}
    summary = texts.listed([f"{limit} in {number}" for limit, number in counts.items()])
    lines = []
    for group, rows in measured.items():
        for limit, found in by_limit(bounds, rows).items():
            shapes = _from_to([points.shape(row) for row in (found[0], found[-1])])
            lines.append((group, limit, len(found), shapes, bounds.of(found[-1]).why))
    heads = ("case", "limit", "shapes", "from the fewest bytes to the most", "figures of the last")
    return [
        heading,
        f"**The limit is: {summary}**, of {texts.count(len(every), 'case')}.{left_out}",
        _ridge_text(results, bounds, every),
        _parts_text(results),
        markdown(heads, lines),
    ]


def _parts_text(results: Results) -> str:
    """What the parts of a time are. A CPU launches nothing."""
    moving = f"Moving: its bytes at {_best_ceiling_text(results)}."
    memory = (
        f"The limit is memory if moving takes at least {texts.percent(MEMORY)} of the time, and mostly memory from "
        f"{texts.percent(MOSTLY_MEMORY)}."
    )
    if results.kind == "cpu":
        return (
            f"The time of a case has two parts. {moving} Overhead: the rest, for calls, threads and arithmetic. "
            f"{memory} Otherwise it is overhead."
        )
    return (
        f"The time of a case has three parts. {moving} Launch: the time of "
        "the ceiling on the same bytes, less moving. Latency: the time beyond the ceiling on the same bytes, for "
        f"dependent steps, synchronization or too few programs. {memory} Otherwise it is "
        "the larger of the other two parts. Without a ceiling on the same bytes these two cannot be told apart."
    )


def _ridge_text(results: Results, bounds: Bounds, rows: Sequence[Measurement]) -> str:
    flops, bandwidth = peak_flops(results), results.peak or results.ceiling
    if not flops or not bandwidth or not bounds.ridge:
        return (
            "The device's peak compute or peak bandwidth is not known, so there is no ridge point."
        )
    highest = max(row.record.case.intensity for row in rows)
    below = (
        f"All cases are below it, the nearest at {highest:.3g}, so compute is not the limit."
        if highest < bounds.ridge
        else "Above it compute is the limit."
    )
    return (
        f"The ridge point is {flops / 1e12:.3g} TFLOP/s (fp32) over {texts.gigabytes_per_second(bandwidth)} = "
        f"**{bounds.ridge:.3g} flop/byte**. {below}"
    )


def _best_ceiling_text(results: Results) -> str:
    """The bandwidth that moving is computed with."""
    least = f"{texts.percent(LEAST_OF_PEAK)} of the peak"
    if not results.ceiling:
        return (
            f"{least}, because the ceiling was not measured" if results.peak else "the best ceiling"
        )
    best = f"the best ceiling of this size or larger, up to {texts.gigabytes_per_second(results.ceiling)}"
    return f"{best}, and at least {least}" if results.peak else best


def _share_of_peak(results: Results, measured: dict[Group, list[Measurement]]) -> list[str]:
    lines = []
    for group, rows in measured.items():
        best = headline.best_bandwidth(rows)
        if best is None:
            continue
        lines.append(
            {
                "case": group,
                "best shape": points.shape(best),
                "bandwidth": points.bandwidth_text(best),
                "of peak": _percent(best.of_peak),
                "of ceiling": _percent(best.of_ceiling),
                "median of peak": _percent(typical(row.of_peak for row in rows)),
                "median of ceiling": _percent(typical(row.of_ceiling for row in rows)),
            }
        )
    text = "The device's peak bandwidth is not known, so only the share of the measured ceiling can be given."
    if results.peak:
        sources = sorted({e.peak_source for e in results.environments if e.peak_source})
        said = f" ({escaped('; '.join(sources))})" if sources else ""
        text = f"The peak is {texts.gigabytes_per_second(results.peak)}{said}."
    if results.ceiling:
        text += (
            " The ceiling is an elementwise kernel of PyTorch over as many bytes as the case; its best was "
            f"{texts.gigabytes_per_second(results.ceiling)}. A share above 100% means that the case was faster than "
            "the elementwise kernel."
        )
    else:
        text += " The ceiling was not measured: `rownorm bench` with the provider `ceiling` measures it."
    return ["### 3. What percentage of peak bandwidth does it reach?", text, _table(lines)]


def _scaling(measured: dict[Group, list[Measurement]], bounds: Bounds) -> list[str]:
    heading = "### 4. How does it scale with the batch?"
    parts, without = [], []
    for group, rows in measured.items():
        tall = scaling.by_rows(rows)
        if len(tall) < 2:
            without.append(rows[0].record.case)
            continue
        cols = tall[0].record.case.cols
        lines = [
            (
                f"{row.record.case.rows:,}",
                points.time_text(row.time) if row.time else "",
                points.bandwidth_text(row),
                _percent(row.of_ceiling),
            )
            for row in tall
        ]
        at_limit = bounds.of(tall[-1]).limit == "memory"
        parts += [
            f"**{escaped(str(group))}, {cols} columns.** {scaling.launch_text(tall)} "
            f"{scaling.saturation_text(tall, at_limit)}",
            markdown(("rows", "time", "bandwidth", "of ceiling"), lines),
        ]
    if without:
        parts.append(
            f"Not measured for {texts.count(len(without), 'kind')} of case with a single row count at each width. "
            f"For {escaped(without[0].kind)}, `{scaling.command(without[0])}` measures it."
        )
    return [heading, *parts]


def _table_of_results(results: Results) -> list[str]:
    lines = []
    for row in results.measured:
        other = fastest_other(row)
        speedup = f"{points.speedup_text(row.speedups[other])}, {other}" if other else ""
        lines.append(
            {
                "case": row.group,
                "shape": points.shape(row),
                "provider": row.provider + (" (suspect)" if row.record.suspect else ""),
                "time": points.time_text(row.time) if row.time else "",
                "memory": texts.if_known(row.record.peak_bytes, texts.memory),
                "bandwidth": points.bandwidth_text(row),
                "of ceiling": _percent(row.of_ceiling),
                "of peak": _percent(row.of_peak),
                "speed-up over the fastest other": speedup,
            }
        )
    text = (
        "Times are medians with the 20th and 80th percentiles; speed-ups have their 95% interval; memory is the most "
        "that is allocated during one call, beyond its inputs."
    )
    return ["### Results", text, _table(lines)]


def _table(lines: Sequence[Mapping[str, object]]) -> str:
    """Lines of cells by their headings."""
    return markdown(list(lines[0]), [list(line.values()) for line in lines])


def _not_measured(results: Results) -> list[str]:
    found = failures_of(results)
    if not found:
        return []
    lines = [(one.provider, one.kind, one.why, _cases(one.rows)) for one in found]
    heads = ("provider", "what", "why", "cases")
    return ["### Not measured or suspect", markdown(heads, lines)]


def _cases(rows: list[Measurement]) -> str:
    named = f"{rows[0].group} {points.shape(rows[0])}"
    return named if len(rows) == 1 else f"{named} and {len(rows) - 1} more"


def _ends(rows: list[Measurement]) -> list[Measurement]:
    """The rows with the fewest and the most elements."""
    ordered = sorted(rows, key=lambda row: row.record.case.rows * row.record.case.cols)
    return ordered[:1] if len(ordered) == 1 else [ordered[0], ordered[-1]]


def _from_to(ends: Sequence[str]) -> str:
    """``a to b``, or ``a`` if both are the same."""
    return " to ".join(dict.fromkeys(ends))


def _percent(share: float | None) -> str:
    return "not known" if share is None else texts.percent(share)
