"""From the files of a folder to a ``Profile``. A file that cannot be read makes its tool a failed one, and no more."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from ...data.profiles import Figure, Profile, ScopeTime, ScriptNorm, SourceLine, ToolResult
from ...data.records import Environment
from ...data.studies import KernelTime
from ...profilers import chrome, ncu, ncu_csv, ncu_source, proton, rocprof
from ...profilers.chrome import Event
from ...profilers.norms import found_norms
from ...profilers.request import HOST, ProfileRequest, Times, repeats
from ...profilers.trace import read_trace
from . import advice, figures
from .script import read_outcome

Found = TypeVar("Found")
OnStep = Callable[[str], None]


def summarize(
    request: ProfileRequest,
    folder: Path,
    tools: Sequence[ToolResult],
    here: Environment,
    on_step: OnStep = lambda _: None,
) -> Profile:
    """The profile of a folder. tools: what ``collect`` returned. here: where they ran."""
    reading = _Reading(request, folder, here, {one.tool: one for one in tools})
    reading.traces()
    reading.proton()
    reading.ncu()
    reading.rocprof()
    reading.predictions(on_step)
    reading.figures += figures.speed_up(request, reading.figures)
    norms = reading.norms
    if norms:
        from .saving import with_rownorm

        norms = with_rownorm(norms, on_step)
        reading.figures += figures.of_saving(norms, reading.kernels["script"])
    on_gpu = here.kind != "cpu"
    bottleneck, next_steps = advice.bottleneck_of(
        request, reading.figures, reading.kernels, norms, on_gpu
    )
    return Profile(
        title=request.title,
        date=datetime.now(UTC).date().isoformat(),
        environment=here,
        tools=list(reading.tools.values()),
        figures=reading.figures,
        kernels=reading.kernels,
        norms=norms,
        bottleneck=bottleneck,
        advice=[*next_steps, *advice.of_lines(reading.lines)],
        scopes=reading.scopes,
        lines=reading.lines,
    )


class _Reading:
    """What has been read so far."""

    def __init__(
        self, request: ProfileRequest, folder: Path, here: Environment, tools: dict[str, ToolResult]
    ) -> None:
        self.request, self.folder, self.here, self.tools = request, folder, here, tools
        # As many calls or steps with Proton.
        self.repeats = (
            max(1, read_outcome(folder).steps) if request.script else repeats(request, "chrome")
        )
        self.figures: list[Figure] = []
        self.kernels: dict[str, list[KernelTime]] = {}
        self.norms: list[ScriptNorm] = []
        self.scopes: dict[str, list[ScopeTime]] = {}
        self.lines: list[SourceLine] = []

    def traces(self) -> None:
        """Chrome traces, and the times that were taken beside them."""
        on_gpu = self.here.kind != "cpu"
        times = self._host_times()
        for subject in self.request.subjects:
            found = self._read("chrome", chrome.FILES[subject], chrome.parse)
            if found is not None:
                timed = chrome.after_restart(found)
                kernels = self.kernels[subject] = self._kernels(timed)
                self.figures += figures.of_trace(self.request, subject, timed, kernels, self.here)
            self.figures += figures.of_host(self.request, subject, times.get(subject, {}), on_gpu)
            of_subject = self.kernels.get(subject, [])
            self.figures += figures.of_norms(self.request, subject, of_subject, on_gpu)

    def _kernels(self, timed: Sequence[Event]) -> list[KernelTime]:
        """Of one call or step; the norms of a script are kept."""
        if self.request.script:
            found = found_norms(timed, self.repeats)
            self.norms = found.norms
            return found.kernels
        kernels = read_trace(timed, self.repeats, 0).kernels
        if self.request.case:  # nothing else runs
            return [msgspec.structs.replace(one, is_norm=True) for one in kernels]
        return kernels

    def _host_times(self) -> Times:
        try:
            return msgspec.json.decode((self.folder / HOST).read_bytes(), type=Times)
        except (OSError, msgspec.DecodeError):  # of a script, or of a process that was killed
            return {}

    def proton(self) -> None:
        """Kernel times of Proton."""
        for subject in self.request.subjects:
            kernels = self._read("proton", proton.FILES[subject], proton.parse)
            if kernels:
                self.figures += figures.of_proton(self.request, subject, kernels, self.repeats)
                if tree := proton.scopes(self.folder / proton.FILES[subject], self.repeats):
                    self.scopes[subject] = tree

    def ncu(self) -> None:
        """Counters of NVIDIA, of kernels and of source lines."""
        records = self._read("ncu", ncu.FILE, _text(ncu_csv.parse))
        if records:
            others = "script" if self.request.script else "torch"
            subject_of = {
                one.kernel: "rownorm" if re.match(ncu.OURS, one.kernel) else others
                for one in records
            }
            self.figures += figures.of_ncu(records, subject_of)
        script = self.request.script
        home = str(Path(script.path).absolute().parent) if script else ""
        self.lines = [
            msgspec.structs.replace(one, file=ncu_source.short_path(one.file, home))
            for one in self._read("ncu", ncu.LINES, _text(ncu_source.parse)) or []
        ]

    def rocprof(self) -> None:
        """Times and counters of AMD, of rownorm's kernels."""

        def read(kind: str, parse: Callable[[str], list[Found]]) -> list[Found]:
            files = sorted((self.folder / rocprof.SUBFOLDER).rglob(f"*_{kind}.csv"))
            names = [str(file.relative_to(self.folder)) for file in files]
            found = [self._read(rocprof.PROGRAM, name, _text(parse)) or [] for name in names]
            return [one for of_file in found for one in of_file]

        launches = read("kernel_trace", rocprof.parse_trace)
        counted = read("counter_collection", rocprof.parse_counters)
        stats = read("kernel_stats", rocprof.parse_stats) or rocprof.stats_of(launches)
        ours = [one for one in stats if re.match(ncu.OURS, one.kernel)]
        self.figures += figures.of_rocprof(ours, counted, self.here)

    def predictions(self, on_step: OnStep) -> None:
        """Occupancy and sectors of a norm, if no tool counted them on this GPU."""
        counted = any(one.name == figures.OCCUPANCY for one in self.figures)
        if self.request.case is None or self.here.kind == "cpu" or counted:
            return
        on_step("no counters: predicting occupancy and sectors")
        try:
            self.figures += figures.predicted(self.request.case)
        except Exception as error:  # of the compiler, whatever its type
            on_step(f"cannot predict: {error}")

    def _read(self, tool: str, name: str, parse: Callable[[Path], Found]) -> Found | None:
        """What ``parse`` makes of a file; None without it. A file that cannot be used is a failure of its tool."""
        file = self.folder / name
        if not file.exists():
            return None
        try:
            return parse(file)
        except PermissionError as error:
            self.tools[tool] = ToolResult(tool, "denied", str(error), [name])
        except (ValueError, KeyError, TypeError) as error:
            before = self.tools.get(tool, ToolResult(tool, "ok"))
            why = "; ".join(filter(None, (before.why, f"{name} cannot be used: {error}")))
            self.tools[tool] = ToolResult(tool, "failed", why, before.files)
        return None


def _text(parse: Callable[[str], Found]) -> Callable[[Path], Found]:
    return lambda file: parse(file.read_text(errors="replace"))
