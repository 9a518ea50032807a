"""The profile folders of exercise 7: their figures, and copies with other times and counts."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from rownorm_lab.data.files import write_whole
from rownorm_lab.profilers import chrome, ncu, ncu_csv, proton
from rownorm_lab.profilers.chrome import Event
from rownorm_lab.profilers.process import read_json
from rownorm_lab.profilers.request import TOOLS

NAMES = ("large", "tiny")  # of the calls; see workload.py of the exercise
WARM_UP = "warm-up"
TRACE, SCOPES, COUNTERS = chrome.FILES["script"], proton.FILES["script"], ncu.FILE
PEAK = "peak_bytes_per_second"
_HOST = ("cuda_runtime", "cuda_driver")
_GRID = "Grid Size"


class ProfiledCall(NamedTuple):
    """One call in the trace: the range on the host, what it launched there, and the kernels."""

    span: Event
    launches: list[Event]
    kernels: list[Event]

    @property
    def kernel_seconds(self) -> float:
        return sum(one["dur"] for one in self.kernels) * chrome.MICROSECOND


def calls_of(timed: Sequence[Event], name: str) -> list[ProfiledCall]:
    """The calls with a name, the first one first. A kernel belongs to the range in which it was launched."""
    kernels = {_correlation(one): one for one in timed if one.get("cat") == "kernel"}
    host = [one for one in timed if one.get("cat") in _HOST and _correlation(one) is not None]
    spans = [one for one in timed if one.get("cat") == "user_annotation" and one["name"] == name]
    found = []
    for span in sorted(spans, key=lambda one: float(one["ts"])):
        end = span["ts"] + span["dur"]
        inside = [
            one for one in host if one["tid"] == span["tid"] and span["ts"] <= one["ts"] <= end
        ]
        numbers = map(_correlation, inside)
        found.append(
            ProfiledCall(span, inside, [kernels[one] for one in numbers if one in kernels])
        )
    return found


def _correlation(event: Event) -> Any:
    return event.get("args", {}).get("correlation")


class Figures:
    """The figures of the calls with one name."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.timed = chrome.parse(folder / TRACE)
        self.calls = calls_of(self.timed, name)
        if not self.calls or not all(call.kernels for call in self.calls):
            raise ValueError(f"{folder.name}/{TRACE} has no calls named {name} with kernels")

    @property
    def kernel_time(self) -> float:
        return median(call.kernel_seconds for call in self.calls)

    @property
    def host_time(self) -> float:
        return float(median(call.span["dur"] for call in self.calls)) * chrome.MICROSECOND

    @property
    def idle_share(self) -> float:
        times = chrome.device_times([one for call in self.calls for one in call.kernels])
        assert times is not None
        return 1 - times.busy / times.span

    @property
    def proton_time(self) -> float:
        """Seconds of a kernel in the scope with the name."""
        count, nanoseconds = 0.0, 0.0
        for node in _leaves(read_json(self.folder / SCOPES)[0], self.name):
            count += node["metrics"][proton.COUNT]
            nanoseconds += node["metrics"][proton.TIME]
        if not count:
            raise ValueError(f"{self.folder.name}/{SCOPES} has no scope named {self.name}")
        return nanoseconds * proton.NANOSECOND / count

    @property
    def peak(self) -> float:
        return float(read_json(self.folder / TOOLS)["environment"][PEAK])

    @property
    def occupancy(self) -> tuple[float, float]:
        """(achieved, theoretical)."""
        achieved, theoretical = (
            mean(one.metrics[name] for one in self._counted())
            for name in (ncu.OCCUPANCY, ncu.THEORETICAL)
        )
        return achieved / 100, theoretical / 100

    @property
    def sectors_per_request(self) -> float:
        sectors, requests = (
            sum(one.metrics[name.format("ld")] for one in self._counted())
            for name in (ncu_csv.SECTORS, ncu_csv.REQUESTS)
        )
        return sectors / requests

    def _counted(self) -> list[ncu_csv.KernelRecord]:
        """The launches with a grid of these calls."""
        grids = {one["args"]["grid"][0] for call in self.calls for one in call.kernels}
        records = ncu_csv.parse((self.folder / COUNTERS).read_text(errors="replace"))
        found = [one for one in records if one.metrics.get("launch__grid_dim_x") in grids]
        if not found:
            raise ValueError(f"{self.folder.name}/{COUNTERS} has no launch of a {self.name} call")
        return found

    @property
    def mistaken_times(self) -> dict[str, float]:
        """What mistakes give in place of the kernel time, by habit."""
        others = [one for name in (*NAMES, WARM_UP) for one in calls_of(self.timed, name)]
        grids = {one["args"]["grid"][0] for call in self.calls for one in call.kernels}
        same = [
            call for call in others if {one["args"]["grid"][0] for one in call.kernels} <= grids
        ]
        launches = [
            one["dur"] for call in self.calls for one in call.launches if "Launch" in one["name"]
        ]
        device = [
            one["dur"]
            for one in self.timed
            if one.get("cat") == "gpu_user_annotation" and one["name"] == self.name
        ]
        found = {
            "warm-up": median(call.kernel_seconds for call in same),
            "both-calls": median(call.kernel_seconds for call in others),
            "host-for-kernel": self.host_time,
        }
        if launches:
            found["launch-for-kernel"] = median(launches) * chrome.MICROSECOND
        if device:
            found["device-range"] = median(device) * chrome.MICROSECOND
        return found


def _leaves(node: Any, name: str, inside: bool = False) -> list[Any]:
    """The kernels below the scopes with a name."""
    inside = inside or node["frame"]["name"] == name
    children = node.get("children", [])
    if not children:
        return [node] if inside else []
    return [leaf for child in children for leaf in _leaves(child, name, inside)]


def varied(source: Path, target: Path, seed: int) -> Path:
    """A copy of a profile with other times, counts, grids and numbers, and with its events in another order."""
    chance = random.Random(seed)
    grids = {one: chance.randrange(9, 4000) * 10 + place for place, one in enumerate(NAMES)}
    before = {name: Figures(source, name).calls[0].kernels[0]["args"]["grid"][0] for name in NAMES}
    grid_of = {before[name]: grids[name] for name in NAMES}
    document = read_json(source / TRACE)
    document["traceEvents"] = _varied_events(document["traceEvents"], grid_of, chance)
    write_whole(target / TRACE, json.dumps(document))
    tree = read_json(source / SCOPES)
    for name in (*NAMES, WARM_UP):
        factor = chance.uniform(0.3, 3.0)
        for leaf in _leaves(tree[0], name):
            leaf["metrics"][proton.TIME] = round(leaf["metrics"][proton.TIME] * factor)
    write_whole(target / SCOPES, json.dumps(tree))
    write_whole(target / COUNTERS, _varied_counters(source / COUNTERS, grid_of, chance))
    tools = read_json(source / TOOLS)
    tools["environment"][PEAK] *= chance.uniform(0.4, 0.9)
    write_whole(target / TOOLS, json.dumps(tools))
    return target


def _varied_events(
    events: list[Event], grid_of: dict[int, int], chance: random.Random
) -> list[Event]:
    timed = [event for event in events if event.get("ph") == "X"]
    by_name = {name: calls_of(timed, name) for name in (*NAMES, WARM_UP)}
    left_out = set[int]()
    for call in chance.sample(by_name["tiny"], len(by_name["tiny"]) // 3):
        left_out |= {id(one) for one in (call.span, *call.launches, *call.kernels)}
    # Large kernels become shorter, so that they do not overlap; those of the first calls most of all. Tiny ones become
    # longer, which changes the idle share most; they stay far shorter than the time between them.
    factors = {WARM_UP: 0.2, "large": chance.uniform(0.4, 0.7), "tiny": chance.uniform(3.0, 6.0)}
    for name, calls in by_name.items():
        factor = factors[name]
        for call in calls:
            for kernel in call.kernels:
                kernel["dur"] *= factor * chance.uniform(0.8, 1.2)
            _end_earlier(call, chance)
    stretch = chance.uniform(1.2, 3.0)
    first = min(event["ts"] for event in timed)
    numbers = {_correlation(event) for event in timed} - {None}
    renumbered = dict(
        zip(sorted(numbers), chance.sample(range(10_000, 99_999), len(numbers)), strict=True)
    )
    for event in timed:
        event["ts"] = first + (event["ts"] - first) * stretch
        event["dur"] *= stretch
        if _correlation(event) is not None:
            event["args"]["correlation"] = renumbered[_correlation(event)]
        if event.get("cat") == "kernel":
            grid = event["args"]["grid"]
            event["args"]["grid"] = [grid_of.get(grid[0], grid[0]), *grid[1:]]
    kept = [event for event in events if id(event) not in left_out]
    chance.shuffle(kept)
    return kept


def _end_earlier(call: ProfiledCall, chance: random.Random) -> None:
    """Shorten a range; what was launched in it stays in it."""
    start = call.span["ts"]
    least = max([one["ts"] + one["dur"] - start for one in call.launches], default=0.0)
    rest = max(0.0, call.span["dur"] - least)
    call.span["dur"] = least + rest * chance.uniform(0.1, 1.0)


def _varied_counters(file: Path, grid_of: dict[int, int], chance: random.Random) -> str:
    lines = [one for one in file.read_text().splitlines() if one.strip() and one[:2] != "=="]
    header, units, *launches = csv.reader(lines)
    factors: dict[str, dict[str, float]] = {}
    changed: tuple[tuple[str, Callable[[], float]], ...] = (
        (ncu.OCCUPANCY, lambda: chance.uniform(0.3, 0.95)),
        (ncu.THEORETICAL, lambda: chance.uniform(0.96, 1.0)),
        (ncu_csv.SECTORS.format("ld"), lambda: chance.uniform(1.5, 5.0)),
        (ncu_csv.REQUESTS.format("ld"), lambda: chance.uniform(1.0, 1.4)),
    )
    for launch in launches:
        grid = launch[header.index(_GRID)]
        own = factors.setdefault(grid, {name: make() for name, make in changed})
        for name, factor in own.items():
            place = header.index(name)
            launch[place] = f"{float(launch[place].replace(',', '')) * factor:.6f}"
        first, _, others = grid.strip("()").partition(",")
        new = grid_of.get(int(first), int(first))
        launch[header.index(_GRID)] = f"({new},{others})"
        launch[header.index("launch__grid_dim_x")] = str(new)
    chance.shuffle(launches)
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([header, units, *launches])
    return text.getvalue()
