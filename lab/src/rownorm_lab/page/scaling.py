"""How time and bandwidth change with the number of rows, at one width."""

from __future__ import annotations

from collections.abc import Sequence

from ..data import texts
from ..data.case import Case
from ..data.measurements import Measurement

MOST_ROWS = 32768  # of the command that is suggested
SATURATED = 0.9  # share of the best bandwidth
LAUNCH_BOUND = 1.25  # times the time of the fewest rows


def by_rows(rows: Sequence[Measurement]) -> list[Measurement]:
    """The rows of the width with the most row counts, from the fewest rows to the most."""
    return sorted((row for row in rows if row.scaling), key=lambda row: row.record.case.rows)


def saturation(tall: Sequence[Measurement]) -> int | None:
    """The first row count that reaches 90% of the best bandwidth; None if bandwidth still rises at the end.

    It still rises if the largest row count is the first to reach that share.
    """
    best = max(row.bandwidth or 0.0 for row in tall)
    reached = [row.record.case.rows for row in tall if (row.bandwidth or 0.0) >= SATURATED * best]
    return reached[0] if reached[0] < tall[-1].record.case.rows else None


def extrapolated(tall: Sequence[Measurement]) -> int | None:
    """The row count at 90% of the bandwidth limit, if the last two times are ``start + bytes / limit``."""
    before, last = tall[-2:]
    if before.time is None or last.time is None or last.time.median <= before.time.median:
        return None
    moved = last.record.case.compulsory_bytes
    more = moved - before.record.case.compulsory_bytes
    limit = more / (last.time.median - before.time.median)
    start = last.time.median - moved / limit
    # bytes / (start + bytes / limit) is 90% of limit for this many bytes:
    needed = SATURATED / (1 - SATURATED) * start * limit
    rows = needed / (moved / last.record.case.rows)
    return int(float(f"{rows:.1g}")) if rows > last.record.case.rows else None


def launch_bound_rows(rows: Sequence[Measurement]) -> int | None:
    """The most rows that take at most LAUNCH_BOUND times as long as the fewest: up to there launch overhead dominates.

    None if that is less than twice the fewest.
    """
    tall = by_rows(rows)
    if len(tall) < 2 or tall[0].time is None:
        return None
    limit = LAUNCH_BOUND * tall[0].time.median
    flat = tall[0].record.case.rows
    for row in tall[1:]:
        if row.time is None or row.time.median > limit:
            break
        flat = row.record.case.rows
    return flat if flat >= 2 * tall[0].record.case.rows else None


def command(case: Case) -> str:
    """The command that measures this case from one row to MOST_ROWS."""
    options = [f"--residual-dtype {case.residual_dtype}"] if case.residual_dtype else []
    options += [] if case.weight else ["--no-weight"]
    options += ["--pre-bias"] if case.pre_bias else []
    # A sample is one row, the only number that divides every number of rows.
    options += ["--sample-rows 1"] if case.sample_rows else []
    options += ["--residual-gate"] if case.residual_gate else []
    options += [f"--gate-activation {case.gate_activation}"] if case.gate_activation else []
    options += ["--gate-first"] if case.gate_first else []
    options += [f"--activation {case.activation}"] if case.activation else []
    if case.bias is not None:
        options.append("--bias" if case.bias else "--no-bias")
    kind = f"--op {case.operation} --pass {case.direction} --dtype {case.dtype}"
    return " ".join(["rownorm bench", kind, *options, f"--shape 1..{MOST_ROWS}x{case.cols}"])


def launch_text(tall: Sequence[Measurement]) -> str:
    """Up to how many rows a fixed cost dominates. tall: ``by_rows`` of a group, two or more."""
    first, flat = tall[0].record.case.rows, launch_bound_rows(tall)
    if flat is None:
        return f"The time grows from {texts.count(first, 'row')} on."
    return (
        f"Up to {texts.count(flat, 'row')} the time is at most {LAUNCH_BOUND} times that of "
        f"{texts.count(first, 'row')}: a fixed cost dominates."
    )


def saturation_text(tall: Sequence[Measurement], at_limit: bool) -> str:
    """How time grows from the fewest rows to the most, and where bandwidth saturates.

    at_limit: whether memory bandwidth limits the most rows, so that it is saturated there.
    """
    first, last = tall[0], tall[-1]
    if first.time is None or last.time is None:
        return ""
    more = last.record.case.rows / first.record.case.rows
    longer = last.time.median / first.time.median
    grows = f"{more:,.{0 if more >= 10 else 1}f} times the rows take {texts.significant(longer)} times the time."
    return f"{grows} {_saturation(tall, at_limit)}"


def _saturation(tall: Sequence[Measurement], at_limit: bool) -> str:
    first, before, last = (row.record.case for row in (tall[0], tall[-2], tall[-1]))
    found, share = saturation(tall), texts.percent(SATURATED)
    if found == first.rows:
        return (
            f"Bandwidth is already saturated at {texts.count(found, 'row')}, the fewest measured."
        )
    if found is not None:
        return f"Bandwidth saturates at **{found:,} rows**, the first to reach {share} of the best."
    if at_limit:
        return f"Bandwidth saturates between {before.rows:,} and {last.rows:,} rows."
    estimate = extrapolated(tall)
    near = (
        f" A constant launch time plus a constant bandwidth would put it near {estimate:,} rows."
        if estimate
        else ""
    )
    measure = f" `{command(last)}` measures more." if last.rows < MOST_ROWS else ""
    return (
        f"Bandwidth still rises at {last.rows:,} rows, the most that were measured, so the point of saturation is "
        f"not known.{near}{measure}"
    )
