"""Figures of a profile: python analysis.py FOLDER

A folder of rownorm profile has script_profile.json (Chrome trace), proton-script.hatchet (Proton), ncu.csv (counters)
and tools.json (the machine). A call is named large or tiny, see workload.py.
"""

import csv
import json
import sys
from pathlib import Path
from statistics import mean, median

SHAPES = {"large": (16384, 4096), "tiny": (8, 256)}  # rows, columns, as in workload.py
ELEMENT_BYTES = 2  # of bf16
SECTOR_BYTES = 32


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


def ranges(folder, name):
    """The ranges on the host around the calls with this name, the first one first."""
    found = [
        event
        for event in events(folder)
        if event["cat"] == "user_annotation" and event["name"] == name
    ]
    return sorted(found, key=lambda event: event["ts"])


def kernels(folder, name):
    """For each call with this name, the first one first: the kernels that were launched inside its range."""
    every = events(folder)
    by_correlation = {
        event["args"]["correlation"]: event for event in every if event["cat"] == "kernel"
    }
    calls = []
    for span in ranges(folder, name):
        launched = [
            event["args"]["correlation"]
            for event in every
            if event["cat"] in ("cuda_runtime", "cuda_driver")
            and event["tid"] == span["tid"]
            and span["ts"] <= event["ts"] <= span["ts"] + span["dur"]
        ]
        calls.append([by_correlation[one] for one in launched if one in by_correlation])
    return calls


def kernel_time(folder, name):
    """Seconds: the median over the calls with this name of the time of the kernels of one call."""
    return median(sum(one["dur"] for one in call) for call in kernels(folder, name)) * 1e-6


def host_time(folder, name):
    """Seconds: the median over the calls with this name of the time that the host spends in one call."""
    return median(span["dur"] for span in ranges(folder, name)) * 1e-6


def idle_share(folder, name):
    """From 0 to 1: of the time from the start of the first kernel of these calls to the end of the last, no kernel ran."""
    spans = sorted(
        (one["ts"], one["ts"] + one["dur"]) for call in kernels(folder, name) for one in call
    )
    busy = sum(end - start for start, end in spans)
    return 1 - busy / (spans[-1][1] - spans[0][0])


def proton_time(folder, name):
    """Seconds: Proton's mean time of a kernel in the scope with this name."""
    count, nanoseconds = 0, 0

    def visit(node, inside):
        nonlocal count, nanoseconds
        inside = inside or node["frame"]["name"] == name
        if inside and not node["children"]:
            count += node["metrics"]["count"]
            nanoseconds += node["metrics"]["time (ns)"]
        for child in node["children"]:
            visit(child, inside)

    visit(proton(folder), False)
    return nanoseconds * 1e-9 / count


# ---- part 2: bandwidth ----


def bytes_moved(n_rows, n_cols, element_bytes):
    """The bytes that an RMSNorm must move: each tensor once."""
    return element_bytes * (2 * n_rows * n_cols + n_cols)


def bandwidth(folder, name, n_rows, n_cols):
    """Bytes per second of a call on bf16 rows, while its kernels run."""
    return bytes_moved(n_rows, n_cols, ELEMENT_BYTES) / kernel_time(folder, name)


def peak_share(folder, name, n_rows, n_cols):
    """The bandwidth of a call over the peak of the GPU, from 0 to 1."""
    return bandwidth(folder, name, n_rows, n_cols) / peak_bytes_per_second(folder)


# ---- part 3: counters ----


def counted(folder, name):
    """What ncu counted of the kernels of the calls with this name: those with the same grid."""
    grids = [one["args"]["grid"] for call in kernels(folder, name) for one in call]
    return [one for one in counters(folder) if one["Grid Size"] in grids]


def occupancy(folder, name):
    """(achieved, theoretical), both from 0 to 1: the mean over the launches of these calls."""
    some = counted(folder, name)
    achieved = mean(one["sm__warps_active.avg.pct_of_peak_sustained_active"] for one in some)
    theoretical = mean(one["sm__maximum_warps_per_active_cycle_pct"] for one in some)
    return achieved / 100, theoretical / 100


def sectors_per_request(folder, name):
    """Sectors of 32 bytes that one load instruction of a warp asks for, over the launches of these calls."""
    some = counted(folder, name)
    sectors = sum(one["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] for one in some)
    return sectors / sum(one["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"] for one in some)


# ---- part 4: the figures of answers.toml ----


def figures(folder):
    """The figures of answers.toml by name."""
    large = peak_share(folder, "large", *SHAPES["large"])
    return {
        "large_percent_of_peak": 100 * large,
        "large_speedup_at_peak": 1 / large,
        "large_occupancy_percent": 100 * occupancy(folder, "large")[0],
        "large_bytes_per_request": SECTOR_BYTES * sectors_per_request(folder, "large"),
        "tiny_host_over_kernel": host_time(folder, "tiny") / kernel_time(folder, "tiny"),
        "tiny_idle_percent": 100 * idle_share(folder, "tiny"),
    }


if __name__ == "__main__":
    print("[figures]")
    for figure, value in figures(sys.argv[1]).items():
        print(f"{figure} = {value:.4g}")
