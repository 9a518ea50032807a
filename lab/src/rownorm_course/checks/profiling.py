"""Exercise 7: figures of a profile, what limits each call, and the bottleneck mended."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rownorm_lab.data.profiles import NEAR_PEAK
from rownorm_lab.profilers.request import TOOLS

from ..catalog import exercises
from ..grade import Task
from ..grades import Failure
from ..judge import TriedCase
from ..learner import Learner
from ..profiles import COUNTERS, NAMES, SCOPES, TRACE, Figures, varied
from .norms import Norm, accesses_of_rows, no_spills, norm_case, share_of_limit
from .questions import Question, judge, letter_of, questions

ANALYSIS, ANSWERS = "analysis.py", "answers.toml"
NORM = Norm("kernel.py")
SHIPPED, OWN = "profile", "my_profile"  # folders
SHAPES = {"large": (16384, 4096), "tiny": (8, 256)}  # of workload.py
SHAPED = ("bandwidth", "peak_share")  # functions of the analysis that get the shape too
ELEMENT_BYTES = 2
SECTOR_BYTES = 32
EXACT, COUNTED = 2e-3, 0.05  # relative tolerances: of times, and of means over launches
LARGE = norm_case(*SHAPES["large"], "bf16")
PREDICTED, MEASURED = 0.9, 0.8  # shares of the ceiling
CHOICES = {
    "large_evidence": Question(
        "b",
        "compare occupancy with the share of the peak: one of them is high, the other low",
        "Almost all warps are there, and the memory does a third of what it can: each warp asks for 64 bytes "
        "at a time, too few.",
    ),
    "tiny_evidence": Question(
        "c",
        "ask what the GPU does while the host prepares the next call",
        "The host needs many times as long as the kernel, so the GPU waits. Bandwidth and occupancy of a kernel of "
        "some microseconds say nothing about that.",
    ),
    "sectors": Question(
        "a",
        "32 threads with 2 bytes each are 64 bytes; with 16 bytes each they would be 512",
        "Two sectors are 64 bytes, and the warp uses all of them: coalesced. 16 bytes for each thread would be 16 "
        "sectors with one instruction. Few sectors are no fault; sectors without use are.",
    ),
    "large_next": Question(
        "d",
        "the occupancy has no room left; what one load asks for has",
        "Wider loads, and more of them before a result is needed, put more bytes on their way at once.",
    ),
    "tiny_next": Question(
        "b",
        "its kernels are not what takes the time",
        "A CUDA graph launches many kernels with one call of the host; fusing them has the same effect.",
    ),
    "summary": Question(
        "a",
        "look at the trace before the first large call",
        "Most of the script is compilation, during which the GPU waits.",
    ),
}
LIMITS = {
    "a": "at least 75% of the peak is reached",
    "b": "the host needs longer for a call than its kernels",
    "c": "neither bandwidth nor the host",
}


def _shipped(learner: Learner) -> Path:
    return exercises()[learner.number].path / "starter" / SHIPPED


@contextmanager
def _profiles(learner: Learner) -> Iterator[list[tuple[str, Path]]]:
    """(what it is, folder): the shipped profile, one with other figures, and the learner's own if there is one."""
    shipped = _shipped(learner)
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


def _function(learner: Learner, function: str) -> Callable[[Path, str], Any]:
    """A function of the analysis, for a folder and the name of a call."""
    mine = learner.function(ANALYSIS, function)
    return lambda folder, name: mine(folder, name, *(SHAPES[name] if function in SHAPED else ()))


def _calls(
    learner: Learner, file: str, *functions: str
) -> Iterator[tuple[str, Callable[[], Any], Figures]]:
    """(a call in words, the call, the right figures): of functions of the analysis, on every profile with the file."""
    with _profiles(learner) as profiles:
        for function in functions:
            mine = _function(learner, function)
            for what, folder in profiles:
                if not (folder / file).exists():
                    continue  # a tool that is missing where the learner profiled
                for name in NAMES:
                    try:
                        right = Figures(folder, name)
                    except ValueError as error:
                        raise Failure(f"{error}: profile workload.py again") from None
                    yield f"{function}({what}, {name!r})", partial(mine, folder, name), right


def times(learner: Learner) -> None:
    """kernel_time and host_time."""
    for called, call, right in _calls(learner, TRACE, "kernel_time", "host_time"):
        value, mistakes = right.kernel_time, right.mistaken_times
        if called.startswith("host_time"):
            value = right.host_time
            del mistakes["host-for-kernel"]
            mistakes["kernel-for-host"] = right.kernel_time
        _compare(called, call(), value, mistakes=mistakes, habit="correlation")


def idle(learner: Learner) -> None:
    """idle_share."""
    for called, call, right in _calls(learner, TRACE, "idle_share"):
        share = right.idle_share
        mistakes = {"idle": 1 - right.kernel_time / right.host_time, "busy": 1 - share}
        _compare(called, call(), share, mistakes=mistakes, habit="idle")


def second_profiler(learner: Learner) -> None:
    """proton_time."""
    for called, call, right in _calls(learner, SCOPES, "proton_time"):
        value = right.proton_time
        _compare(called, call(), value, mistakes={"nanoseconds": value * 1e9}, habit="scope")


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
    for called, call, right in _calls(learner, TOOLS, *SHAPED):
        moved = count(*SHAPES[right.name], ELEMENT_BYTES)
        whole = right.peak if called.startswith("peak_share") else 1.0
        value, by_host = (moved / one / whole for one in (right.kernel_time, right.host_time))
        _compare(called, call(), value, mistakes={"host-for-kernel": by_host}, habit="rate")


def occupancies(learner: Learner) -> None:
    """occupancy: (achieved, theoretical)."""
    for called, call, right in _calls(learner, COUNTERS, "occupancy"):
        got, (achieved, theoretical) = call(), right.occupancy
        if not isinstance(got, tuple | list) or len(got) != 2:
            raise Failure(
                f"{called} returned {got!r}, expected (achieved, theoretical)", "no-answer"
            )
        mistakes = {"theoretical": theoretical}
        _compare(f"{called}[0], achieved,", got[0], achieved, COUNTED, mistakes, "both-calls")
        _compare(f"{called}[1], theoretical,", got[1], theoretical, COUNTED, habit="both-calls")


def sectors(learner: Learner) -> None:
    """sectors_per_request."""
    for called, call, right in _calls(learner, COUNTERS, "sectors_per_request"):
        value = right.sectors_per_request
        mistakes = {"bytes-for-sectors": value * SECTOR_BYTES}
        _compare(called, call(), value, COUNTED, mistakes, "both-calls")


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
    def of(function: str, name: str) -> Any:
        return _function(learner, function)(_shipped(learner), name)

    share = of("peak_share", "large")
    return {
        "large_percent_of_peak": 100 * share,
        "large_speedup_at_peak": 1 / share,
        "large_occupancy_percent": 100 * of("occupancy", "large")[0],
        "large_bytes_per_request": SECTOR_BYTES * of("sectors_per_request", "large"),
        "tiny_host_over_kernel": of("host_time", "tiny") / of("kernel_time", "tiny"),
        "tiny_idle_percent": 100 * of("idle_share", "tiny"),
    }


def _limit_question(name: str) -> Task:
    """What limits a call follows from the learner's own functions, by the rule of ``rownorm profile``."""

    def check(learner: Learner) -> str:
        letter_of(learner, f"{name}_limit")  # before the functions run
        kernel, host, share = (
            _function(learner, one)(_shipped(learner), name)
            for one in ("kernel_time", "host_time", "peak_share")
        )
        right = "b" if host > kernel else "a" if share >= NEAR_PEAK else "c"
        figures = (
            f"your functions say {host * 1e6:.3g} µs of the host, {kernel * 1e6:.3g} µs of kernels, "
            f"{share:.0%} of the peak"
        )
        question = Question(right, figures, f"Y{figures[1:]}; {LIMITS[right]}.")
        return judge(learner, f"{name}_limit", question, "limit")

    return Task("answers", f"{name}_limit", check, ("interpret",))


def every_byte(learner: Learner) -> None:
    """16 bytes for each thread, every byte of a sector used, no spills."""
    found = NORM.compiled(learner, LARGE)
    no_spills(found.kernels)
    for kernel, access in accesses_of_rows(found):
        if access.bytes_per_thread < 16:
            raise Failure(
                f"{kernel}: a thread accesses {access.bytes_per_thread} bytes of {access.tensor} at once, "
                f"{access.sectors / access.requests:.2g} sectors for each request; expected 16 bytes",
                "narrow",
            )
        if access.sector_use < 0.95:
            raise Failure(
                f"{kernel}: {access.sector_use:.0%} of the bytes of the sectors of {access.tensor} are used, "
                "expected all of them",
                "more-threads-than-work",
            )


def predicted(learner: Learner) -> None:
    """The predicted share of the limit in the large call."""
    found = NORM.compiled(learner, LARGE)
    share = share_of_limit(found, LARGE)
    if share < PREDICTED:
        shown = "; ".join(
            f"{one.kernel}: {one.in_flight_bytes * one.programs_per_sm / 1024:.3g} KiB in flight on a multiprocessor, "
            f"{one.passes:.2g} passes over the rows"
            for one in found.analyses
        )
        raise Failure(
            f"{LARGE.title} would run at {share:.0%} of the limit of an H200, expected {PREDICTED:.0%}. {shown}",
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
    *questions("answers", CHOICES, "wrong-counter"),
    Task(
        "kernel",
        "values",
        NORM.trying(
            TriedCase(norm_case(3, 256)),
            TriedCase(norm_case(3, 77)),
            TriedCase(norm_case(2, 20_000)),
            TriedCase(norm_case(2, 300, "fp16"), scale=300.0, habit="low-precision"),
            TriedCase(norm_case(3, 256, "bf16"), layout="strided"),
        ),
    ),
    Task("kernel", "16 bytes at once", every_byte, ("compile",)),
    Task("kernel", "bytes in flight", predicted, ("compile",)),
    NORM.fast({LARGE: MEASURED}, "bytes-in-flight"),
]
