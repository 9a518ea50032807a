"""Records of a made-up H200 on which every bar holds, and run folders with them."""

import msgspec

from rownorm_lab.commands.bars import bars, figures
from rownorm_lab.commands.bars.figures import FirstCall
from rownorm_lab.commands.bars.judge import FIRST_CALL_FILE
from rownorm_lab.data.records import FILE, Environment, Method, Record

H200 = Environment(
    device="NVIDIA H200",
    kind="cuda",
    arch="sm_90",
    torch="2.11.0",
    triton="3.6.0",
    driver="580",
    versions={"torch": "2.11.0", "quack-kernels": "0.6.5"},
)
METHOD = Method(timer="cuda_graph", rotation=2, calls=2, rounds=3, cold=True)
BANDWIDTH = 4e12
SHARES = {"rownorm": 0.95, "torch": 0.2, "torch.compile": 0.7, "quack": 0.9, "ceiling": 1.0}


def record(case, provider, share=None, **changes):
    """A record of a provider that reaches a share of the memory bandwidth; ``changes`` replace fields."""
    seconds = case.compulsory_bytes / BANDWIDTH / (share or SHARES.get(provider, 0.7))
    good = {
        "method": METHOD,
        "seconds": [seconds * noise for noise in (1.01, 1.0, 0.99)],
        "host_seconds": [1e-5] * 3,
        "peak_bytes": figures.allowed_bytes(case),
    }
    if changes.get("status", "ok") != "ok":
        good = {}
    return Record(
        **{"case": case, "provider": provider, "environment": H200, "run": "one"}
        | {"time": "2026-11-15T12:00:00+00:00", **good, **changes},
    )


def good_records(*parts):
    """A good record for every job of these parts; default: all parts."""
    return [
        record(case, name) for case, names in bars.jobs_of(parts or bars.PARTS) for name in names
    ]


def good_first_calls():
    """First calls that compile what they may."""

    def compiled():
        once = {"forward": ["f"], "training forward": ["f"], "backward": ["b", "s"]}
        return {**once, "other rows": []}

    return [
        FirstCall(operation=operation, cols=cols, compiled=compiled())
        for operation, cols in bars.FIRST_CALL.calls
    ]


def write_run(folder, records, first_calls=None):
    """A run folder with these records and first calls; its name."""
    folder.mkdir()
    (folder / FILE).write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in records))
    first_calls = good_first_calls() if first_calls is None else first_calls
    (folder / FIRST_CALL_FILE).write_bytes(msgspec.json.encode(first_calls))
    return str(folder)


def only(monkeypatch, part, **changes):
    """Restrict the bars to one part, without first calls, for this test; return the part."""
    chosen = next(one for one in bars.PARTS if one.name == part)._replace(**changes)
    monkeypatch.setattr(bars, "PARTS", (chosen,))
    monkeypatch.setattr(bars, "FIRST_CALL", bars.FIRST_CALL._replace(operations=()))
    return chosen
