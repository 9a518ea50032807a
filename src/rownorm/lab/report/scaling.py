"""How time and bandwidth change with the number of rows, at one width."""

from __future__ import annotations

from collections.abc import Sequence

from .. import texts
from ..cases import Case
from ..results import Row

MOST_ROWS = 32768  # that are worth measuring
SATURATED = 0.9  # of the best bandwidth
STILL_STARTING = 1.25  # times the time of the fewest rows


def by_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of the width with the most row counts, from the fewest rows to the most."""
    return sorted((row for row in rows if row.scaling), key=lambda row: row.record.case.rows)


def saturation(tall: Sequence[Row]) -> int | None:
    """The first row count that reaches 90 % of the best bandwidth; None when bandwidth still rises at the end.

    It still rises when the most rows are the first to reach that share: then nobody has seen where it ends.
    """
    best = max(row.bandwidth or 0.0 for row in tall)
    reached = [row.record.case.rows for row in tall if (row.bandwidth or 0.0) >= SATURATED * best]
    return reached[0] if reached[0] < tall[-1].record.case.rows else None


def extrapolated(tall: Sequence[Row]) -> int | None:
    """Where bandwidth would reach 90 % of its limit if the last two times are ``start + bytes / limit``."""
    before, last = tall[-2:]
    if before.time is None or last.time is None or last.time.median <= before.time.median:
        return None
    moved = last.record.case.compulsory_bytes
    more = moved - before.record.case.compulsory_bytes
    limit = more / (last.time.median - before.time.median)
    start = last.time.median - moved / limit
    needed = (
        SATURATED / (1 - SATURATED) * start * limit
    )  # bytes over (start + bytes / limit) is 90 % of limit
    rows = needed / (moved / last.record.case.rows)
    return int(float(f"{rows:.1g}")) if rows > last.record.case.rows else None


def start_up(rows: Sequence[Row]) -> int | None:
    """The most rows that take hardly longer than the fewest: up to there, starting up takes the time.

    None when that is less than twice the fewest.
    """
    tall = by_rows(rows)
    if len(tall) < 2 or tall[0].time is None:
        return None
    limit = STILL_STARTING * tall[0].time.median
    flat = tall[0].record.case.rows
    for row in tall[1:]:
        if row.time is None or row.time.median > limit:
            break
        flat = row.record.case.rows
    return flat if flat >= 2 * tall[0].record.case.rows else None


def command(case: Case) -> str:
    """What measures this case with few rows and many."""
    options = [f"--residual-dtype {case.residual_dtype}"] if case.residual_dtype else []
    options += ["--pre-bias"] if case.pre_bias else []
    options += [f"--activation {case.activation}"] if case.activation else []
    if case.bias is not None:
        options.append("--bias" if case.bias else "--no-bias")
    kind = f"--op {case.operation} --pass {case.direction} --dtype {case.dtype}"
    return " ".join(["rownorm bench", kind, *options, f"--shape 1..{MOST_ROWS}x{case.cols}"])


def start_up_words(rows: Sequence[Row]) -> str:
    tall = by_rows(rows)
    if len(tall) < 2:
        return f"not measured: `{command(rows[0].record.case)}`"
    flat = start_up(rows)
    if flat is None:
        return "time grows from the fewest rows on"
    return f"starting up: up to {flat} rows take at most {STILL_STARTING}x the time of {tall[0].record.case.rows}"


def saturation_words(tall: Sequence[Row]) -> str:
    """From the fewest rows to the most, and where bandwidth stops growing."""
    first, last = tall[0], tall[-1]
    if first.time is None or last.time is None:
        return ""
    more = last.record.case.rows / first.record.case.rows
    longer = last.time.median / first.time.median
    grows = f"{more:,.4g} times the rows take {texts.significant(longer)} times the time."
    found = saturation(tall)
    if found is None:
        estimate = extrapolated(tall)
        near = (
            f" A start-up time plus a steady bandwidth would put it near {estimate:,} rows."
            if estimate
            else ""
        )
        return (
            f"{grows} Bandwidth still rises at {last.record.case.rows} rows, the most that were measured, so where it "
            f"saturates was not seen.{near} `{command(last.record.case)}` measures up to {MOST_ROWS} rows."
        )
    share = texts.percent(SATURATED)
    return (
        f"{grows} Bandwidth saturates at **{found} rows**: the first to reach {share} of its best."
    )
