"""Figures of a profile: python analysis.py FOLDER

A folder of rownorm profile has script_profile.json (Chrome trace), proton-script.hatchet (Proton), ncu.csv (counters)
and tools.json (the machine). A call is named large or tiny, see workload.py.
"""

import csv
import json
import sys
from pathlib import Path

SHAPES = {"large": (16384, 4096), "tiny": (8, 256)}  # rows, columns, as in workload.py
ELEMENT_BYTES = 2  # of bf16


def events(folder):
    """The events of the Chrome trace that have a duration, in no particular order.

    Each has name, cat, tid (the thread), ts (its start) and dur, both in microseconds, and args.
    """
    document = json.loads((Path(folder) / "script_profile.json").read_text())
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def proton(folder):
    """The root of Proton's tree. A node has frame["name"], children, and metrics: "count" and "time (ns)"."""
    return json.loads((Path(folder) / "proton-script.hatchet").read_text())[0]


def counters(folder):
    """What ncu counted: a dict for each launch. Metrics are numbers, "Grid Size" is a list such as [8, 1, 1]."""
    lines = (Path(folder) / "ncu.csv").read_text().splitlines()
    _units, *launches = csv.DictReader(line for line in lines if line.strip() and line[:2] != "==")
    return [{name: _value(name, text) for name, text in one.items()} for one in launches]


def _value(name, text):
    if name == "Grid Size":
        return json.loads(text.replace("(", "[").replace(")", "]"))
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return text


def peak_bytes_per_second(folder):
    """The specified memory bandwidth of the GPU."""
    return json.loads((Path(folder) / "tools.json").read_text())["environment"][
        "peak_bytes_per_second"
    ]


# ---- part 1: times ----


def kernel_time(folder, name):
    """Seconds: the median over the calls with this name of the time of the kernels of one call."""
    raise NotImplementedError("kernel_time: the median over the calls, in seconds")


def host_time(folder, name):
    """Seconds: the median over the calls with this name of the time that the host spends in one call."""
    raise NotImplementedError("host_time: the durations of the ranges")


def idle_share(folder, name):
    """From 0 to 1: of the time from the start of the first kernel of these calls to the end of the last, no kernel ran."""
    raise NotImplementedError("idle_share: kernels of these calls, gaps between them")


def proton_time(folder, name):
    """Seconds: Proton's mean time of a kernel in the scope with this name."""
    raise NotImplementedError("proton_time: walk through the tree")


# ---- part 2: bandwidth ----


def bytes_moved(n_rows, n_cols, element_bytes):
    """The bytes that an RMSNorm must move: each tensor once."""
    raise NotImplementedError("bytes_moved: count the tensors")


def bandwidth(folder, name, n_rows, n_cols):
    """Bytes per second of a call on bf16 rows, while its kernels run."""
    raise NotImplementedError("bandwidth: bytes over kernel time")


def peak_share(folder, name, n_rows, n_cols):
    """The bandwidth of a call over the peak of the GPU, from 0 to 1."""
    raise NotImplementedError("peak_share: bandwidth over the peak")


# ---- part 3: counters ----


def occupancy(folder, name):
    """(achieved, theoretical), both from 0 to 1: the mean over the launches of these calls."""
    raise NotImplementedError("occupancy: two counters")


def sectors_per_request(folder, name):
    """Sectors of 32 bytes that one load instruction of a warp asks for, over the launches of these calls."""
    raise NotImplementedError("sectors_per_request: two counters")


if __name__ == "__main__":
    for call, shape in SHAPES.items():
        print(f"{call}: {shape[0]} x {shape[1]}")
        for function in (
            kernel_time,
            host_time,
            idle_share,
            proton_time,
            occupancy,
            sectors_per_request,
        ):
            print(f"  {function.__name__}: {function(sys.argv[1], call)}")
        for function in (bandwidth, peak_share):
            print(f"  {function.__name__}: {function(sys.argv[1], call, *shape)}")
