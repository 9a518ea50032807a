"""Exercise 7: figures of a profile, what limits each call, and the bottleneck mended."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rownorm_lab.data.case import Case, Dtype
from rownorm_lab.data.profiles import NEAR_PEAK
from rownorm_lab.profilers.request import TOOLS

from ..alternatives import RMS_NORM
from ..calls import Call, compile_call, share_of_ceiling
from ..catalog import exercises
from ..grade import Task
from ..grades import Failure
from ..judge import TriedCase, try_all
from ..learner import Learner
from ..profiles import COUNTERS, NAMES, SCOPES, TRACE, Figures, varied
from .addresses import no_spills
from .questions import Question, all_of, judge, letter_of

ANALYSIS, ANSWERS, KERNEL = "analysis.py", "answers.toml", "kernel.py"
SHIPPED, OWN = "profile", "my_profile"  # folders
SHAPES = {"large": (16384, 4096), "tiny": (8, 256)}  # of workload.py
ELEMENT_BYTES = 2
SECTOR_BYTES = 32
EXACT, COUNTED = 2e-3, 0.05  # relative tolerances: of times, and of means over launches
LEAST = {"predicted": 0.9, "measured": 0.8}  # shares of the ceiling
CHOICES = all_of(
    {
        "large_evidence": (
            "b",
            "compare occupancy with the share of the peak: one of them is high, the other low",
            "Almost all warps are there, and the memory does a third of what it can: each warp asks for 64 bytes "
            "at a time, too few.",
        ),
        "tiny_evidence": (
            "c",
            "ask what the GPU does while the host prepares the next call",
            "The host needs many times as long as the kernel, so the GPU waits. Bandwidth and occupancy of a kernel of "
            "some microseconds say nothing about that.",
        ),
        "sectors": (
            "a",
            "32 threads with 2 bytes each are 64 bytes; with 16 bytes each they would be 512",
            "Two sectors are 64 bytes, and the warp uses all of them: coalesced. 16 bytes for each thread would be 16 "
            "sectors with one instruction. Few sectors are no fault; sectors without use are.",
        ),
        "large_next": (
            "d",
            "the occupancy has no room left; what one load asks for has",
            "Wider loads, and more of them before a result is needed, put more bytes on their way at once.",
        ),
        "tiny_next": (
            "b",
            "its kernels are not what takes the time",
            "A CUDA graph launches many kernels with one call of the host; fusing them has the same effect.",
        ),
        "summary": (
            "a",
            "look at the trace before the first large call",
            "Most of the script is compilation, during which the GPU waits.",
        ),
    }
)
LIMITS = {
    "a": "at least 75% of the peak is reached",
    "b": "the host needs longer for a call than its kernels",
    "c": "neither bandwidth nor the host",
}


@contextmanager
def _profiles(learner: Learner) -> Iterator[list[tuple[str, Path]]]:
    """(what it is, folder): the shipped profile, one with other figures, and the learner's own if there is one."""
    shipped = exercises()[learner.number].path / "starter" / SHIPPED
    if not (shipped / TRACE).exists():
        raise Failure(f"{shipped} is missing: the package is not complete, install it again")
    with tempfile.TemporaryDirectory() as temporary:
        hidden = varied(shipped, Path(temporary) / "hidden", learner.seed)
        found = [(SHIPPED, shipped), ("another profile, with other times and counts", hidden)]
        if (learner.folder / OWN / TRACE).exists():
            found.append((OWN, learner.folder / OWN))
        yield found


def _compare(
    called: str,
    got: Any,
    right: float,
    tolerance: float = EXACT,
    mistakes: Mapping[str, float] | None = None,
    habit: str = "wrong-figure",
) -> None:
    """Failure unless ``got`` is the right figure. mistakes: what they give, by habit."""
    if not isinstance(got, int | float) or isinstance(got, bool):
        raise Failure(f"{called} returned {got!r}, expected a number: {right:.4g}", "no-answer")
    if math.isclose(got, right, rel_tol=tolerance, abs_tol=tolerance * 1e-3):
        return
    known = {"microseconds": right * 1e6, "percent": right * 100, **(mistakes or {})}
    named = [one for one, value in known.items() if math.isclose(got, value, rel_tol=EXACT)]
    nearest = min(named, key=lambda one: abs(got - known[one]), default=habit)
    raise Failure(f"{called} is {got:.4g}, expected {right:.4g}", nearest)


def _on_profiles(
    learner: Learner,
    names: tuple[str, ...],
    file: str,
    compare: Callable[[str, Callable[..., Any], Path, Figures, str], None],
) -> None:
    """Call functions of the analysis on every profile that has the file. compare: fails for a wrong figure."""
    with _profiles(learner) as profiles:
        for function in names:
            mine = learner.function(ANALYSIS, function)
            for what, folder in profiles:
                if not (folder / file).exists():
                    continue  # a tool that is missing where the learner profiled
                for name in NAMES:
                    try:
                        right = Figures(folder, name)
                    except ValueError as error:
                        raise Failure(f"{error}: profile workload.py again") from None
                    compare(f"{function}({what}, {name!r})", mine, folder, right, name)


def _compare_time(called: str, mine: Any, folder: Path, right: Figures, name: str) -> None:
    is_kernel = called.startswith("kernel_time")
    mistakes = right.mistaken_times
    value = right.kernel_time if is_kernel else right.host_time
    if not is_kernel:
        del mistakes["host-for-kernel"]
        mistakes["kernel-for-host"] = right.kernel_time
    _compare(called, mine(folder, name), value, mistakes=mistakes, habit="correlation")


def times(learner: Learner) -> None:
    """kernel_time and host_time."""
    _on_profiles(learner, ("kernel_time", "host_time"), TRACE, _compare_time)


def idle(learner: Learner) -> None:
    """idle_share."""

    def compare(called: str, mine: Any, folder: Path, right: Figures, name: str) -> None:
        share = right.idle_share
        host = 1 - right.kernel_time / right.host_time
        _compare(
            called,
            mine(folder, name),
            share,
            mistakes={"idle": host, "busy": 1 - share},
            habit="idle",
        )

    _on_profiles(learner, ("idle_share",), TRACE, compare)


def second_profiler(learner: Learner) -> None:
    """proton_time."""

    def compare(called: str, mine: Any, folder: Path, right: Figures, name: str) -> None:
        value = right.proton_time
        mistakes = {"nanoseconds": value * 1e9}
        _compare(called, mine(folder, name), value, mistakes=mistakes, habit="scope")

    _on_profiles(learner, ("proton_time",), SCOPES, compare)


def count_bytes(learner: Learner) -> None:
    """bytes_moved, with or without the weight."""
    function = learner.function(ANALYSIS, "bytes_moved")
    chance = random.Random(learner.seed)
    rows, cols = chance.randint(100, 5000), chance.randint(100, 5000)
    for size in (2, 4):
        got, without = function(rows, cols, size), 2 * rows * cols * size
        if got not in (without, without + cols * size):
            raise Failure(
                f"bytes_moved({rows}, {cols}, {size}) is {got}, expected {without} (x in, y out), or "
                f"{without + cols * size} with the weight",
                "intensity",
            )


def rates(learner: Learner) -> None:
    """bandwidth and peak_share."""
    count = learner.function(ANALYSIS, "bytes_moved")

    def compare(called: str, mine: Any, folder: Path, right: Figures, name: str) -> None:
        moved = count(*SHAPES[name], ELEMENT_BYTES)
        value = moved / right.kernel_time
        by_host = moved / right.host_time
        if called.startswith("peak_share"):
            value, by_host = value / right.peak, by_host / right.peak
        got = mine(folder, name, *SHAPES[name])
        _compare(called, got, value, mistakes={"host-for-kernel": by_host}, habit="rate")

    _on_profiles(learner, ("bandwidth", "peak_share"), TOOLS, compare)


def occupancies(learner: Learner) -> None:
    """occupancy: (achieved, theoretical)."""

    def compare(called: str, mine: Any, folder: Path, right: Figures, name: str) -> None:
        got, (achieved, theoretical) = mine(folder, name), right.occupancy
        if not isinstance(got, tuple | list) or len(got) != 2:
            raise Failure(
                f"{called} returned {got!r}, expected (achieved, theoretical)", "no-answer"
            )
        mistakes = {"theoretical": theoretical}
        _compare(f"{called}[0], achieved,", got[0], achieved, COUNTED, mistakes, "both-calls")
        _compare(f"{called}[1], theoretical,", got[1], theoretical, COUNTED, habit="both-calls")

    _on_profiles(learner, ("occupancy",), COUNTERS, compare)


def sectors(learner: Learner) -> None:
    """sectors_per_request."""

    def compare(called: str, mine: Any, folder: Path, right: Figures, name: str) -> None:
        value = right.sectors_per_request
        mistakes = {"bytes-for-sectors": value * SECTOR_BYTES}
        _compare(called, mine(folder, name), value, COUNTED, mistakes, "both-calls")

    _on_profiles(learner, ("sectors_per_request",), COUNTERS, compare)


def own_figures(learner: Learner) -> None:
    """The figures of the answers, from the learner's own functions."""
    given = learner.answers(ANSWERS).get("figures", {})
    for name, value in _figures(learner).items():
        number = given.get(name)
        if isinstance(number, str) and number.strip():
            raise Failure(f"[figures] {name} is {number!r}, a text, not a number", "toml")
        if not isinstance(number, int | float) or number == 0:
            raise Failure(f"[figures] {name} has no number", "no-answer")
        if not math.isclose(number, value, rel_tol=0.02):
            raise Failure(
                f"[figures] {name} = {number:g}; your functions give {value:.4g} for {SHIPPED}",
                "percent"
                if math.isclose(100 * number, value, rel_tol=0.02)
                else "not-your-figures",
            )


def _figures(learner: Learner) -> dict[str, float]:
    shipped = exercises()[learner.number].path / "starter" / SHIPPED

    def of(function: str, name: str, *more: int) -> Any:
        return learner.function(ANALYSIS, function)(shipped, name, *more)

    share = of("peak_share", "large", *SHAPES["large"])
    return {
        "large_percent_of_peak": 100 * share,
        "large_speedup_at_peak": 1 / share,
        "large_occupancy_percent": 100 * of("occupancy", "large")[0],
        "large_bytes_per_request": SECTOR_BYTES * of("sectors_per_request", "large"),
        "tiny_host_over_kernel": of("host_time", "tiny") / of("kernel_time", "tiny"),
        "tiny_idle_percent": 100 * of("idle_share", "tiny"),
    }


def _limit_question(name: str) -> Task:
    """What limits a call follows from the learner's own functions."""

    def check(learner: Learner) -> str:
        letter_of(learner, f"{name}_limit")  # before the functions run
        right, figures = _limit(learner, name)
        question = Question(right, figures, f"{figures[:1].upper()}{figures[1:]}; {LIMITS[right]}.")
        return judge(learner, f"{name}_limit", question, "limit")

    return Task("answers", f"{name}_limit", check, ("interpret",))


def _question(name: str) -> Task:
    """One multiple-choice question."""
    return Task(
        "answers",
        name,
        lambda learner: judge(learner, name, CHOICES[name], "wrong-counter"),
        ("interpret",),
    )


def _limit(learner: Learner, name: str) -> tuple[str, str]:
    """(the letter, the figures behind it), by the rule of ``rownorm profile``."""
    shipped = exercises()[learner.number].path / "starter" / SHIPPED
    kernel, host = (
        learner.function(ANALYSIS, one)(shipped, name) for one in ("kernel_time", "host_time")
    )
    share = learner.function(ANALYSIS, "peak_share")(shipped, name, *SHAPES[name])
    said = (
        f"your functions say {host * 1e6:.3g} µs of the host, {kernel * 1e6:.3g} µs of kernels, "
        f"{share:.0%} of the peak"
    )
    if host > kernel:
        return "b", said
    return ("a" if share >= NEAR_PEAK else "c"), said


def _case(rows: int, cols: int, dtype: Dtype = "bf16", eps: float = 1e-6) -> Case:
    return Case(operation="rms_norm", rows=rows, cols=cols, dtype=dtype, eps=eps)


def _call(learner: Learner) -> Call:
    function = learner.function(KERNEL, "rms_norm")
    return lambda case, t: function(t.x, t.weight, case.eps)


def values(learner: Learner) -> None:
    """Widths that fill no block, wide rows, 16-bit rows, rows of a wider tensor."""
    try_all(
        learner,
        _call(learner),
        (
            TriedCase(_case(3, 256, "fp32")),
            TriedCase(_case(3, 77, "fp32")),
            TriedCase(_case(2, 20_000, "fp32")),
            TriedCase(_case(2, 300, "fp16"), scale=300.0, habit="low-precision"),
            TriedCase(_case(3, 256), layout="strided"),
        ),
        RMS_NORM,
    )


def wide_accesses(learner: Learner) -> None:
    """16 bytes for each thread, every byte of a sector used, no spills."""
    found = compile_call(learner, _call(learner), _case(*SHAPES["large"]))
    no_spills(found.kernels)
    for one in found.analyses:
        for access in one.tensors:
            if access.tensor not in ("x", "y"):
                continue
            if access.bytes_per_thread < 16:
                raise Failure(
                    f"{one.kernel}: a thread accesses {access.bytes_per_thread} bytes of {access.tensor} at once, "
                    f"{access.sectors / access.requests:.2g} sectors for each request; expected 16 bytes",
                    "narrow",
                )
            if access.sector_use < 0.95:
                raise Failure(
                    f"{one.kernel}: {access.sector_use:.0%} of the bytes of the sectors of {access.tensor} are used, "
                    "expected all of them",
                    "more-threads-than-work",
                )


def predicted(learner: Learner) -> None:
    """The predicted share of the limit in the large call."""
    from rownorm.inside import TARGETS
    from rownorm_lab.compiled.roofline import ceiling_of, limits_of

    case = _case(*SHAPES["large"])
    found = compile_call(learner, _call(learner), case)
    ceiling = ceiling_of(limits_of(TARGETS["sm_90"]), case).bytes_per_second
    share = case.compulsory_bytes / ceiling / found.predicted_seconds
    if share < LEAST["predicted"]:
        shown = "; ".join(
            f"{one.kernel}: {one.in_flight_bytes * one.programs_per_sm / 1024:.3g} KiB in flight on a multiprocessor, "
            f"{one.passes:.2g} passes over the rows"
            for one in found.analyses
        )
        raise Failure(
            f"{case.title} would run at {share:.0%} of the limit of an H200, expected "
            f"{LEAST['predicted']:.0%}. {shown}",
            "bytes-in-flight",
        )


def measured(learner: Learner) -> None:
    """The share of the measured ceiling in the large call."""
    rows, cols = SHAPES["large"]
    share, least = share_of_ceiling(learner, _call(learner), _case(rows, cols)), LEAST["measured"]
    if share < least:
        raise Failure(
            f"{rows}x{cols} bf16 runs at {share:.0%} of the ceiling, expected {least:.0%}",
            "bytes-in-flight",
        )


TASKS = [
    Task("times", "kernel time and host time", times, ("interpret",)),
    Task("times", "idle share", idle, ("interpret",)),
    Task("times", "Proton", second_profiler, ("interpret",)),
    Task("bandwidth", "bytes", count_bytes, ("interpret",)),
    Task("bandwidth", "bandwidth and share of the peak", rates, ("interpret",)),
    Task("counters", "occupancy", occupancies, ("interpret",)),
    Task("counters", "sectors per request", sectors, ("interpret",)),
    Task("answers", "figures", own_figures, ("interpret",)),
    *map(_limit_question, NAMES),
    *map(_question, CHOICES),
    Task("kernel", "values", values),
    Task("kernel", "16 bytes at once", wide_accesses, ("compile",)),
    Task("kernel", "bytes in flight", predicted, ("compile",)),
    Task("speed", "share of the ceiling", measured, ("gpu",)),
]
