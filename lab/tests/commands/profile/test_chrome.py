"""Chrome traces: recorded on this machine, and events of a GPU that are synthetic, written by hand."""

import json

import pytest
import torch
import torch.nn.functional as F

from rownorm_lab.commands.profile.sessions import Chrome
from rownorm_lab.profilers import chrome


def event(cat, name, ts, dur, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


@pytest.fixture
def recorded(tmp_path):
    file = tmp_path / "trace.json"
    x = torch.randn(8, 64)
    with Chrome(file):
        F.layer_norm(x, (64,))
    return file


def test_a_recorded_trace(recorded):
    timed = chrome.parse(recorded)
    [norm] = [one for one in timed if one["name"] == "aten::layer_norm"]
    assert norm["args"]["Input Dims"][0] == [8, 64]
    assert torch.cuda.is_available() or chrome.device_times(timed) is None
    assert [one.name for one in recorded.parent.iterdir()] == ["trace.json"]


def test_a_trace_is_written_though_the_work_fails(tmp_path):
    def work():
        with Chrome(tmp_path / "trace.json"):
            torch.ones(3).sum()
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        work()
    assert "aten::sum" in {one["name"] for one in chrome.parse(tmp_path / "trace.json")}


def test_the_name_of_a_large_trace_is_changed_at_its_end(tmp_path):
    file = tmp_path / ".trace.part"
    events = " " * (2 * chrome.TAIL)
    file.write_text(f'{{"traceEvents": [{events}],"traceName": "{file}" }}')
    chrome.rename(file, "trace.json")
    assert file.read_text() == f'{{"traceEvents": [{events}],"traceName": "trace.json" }}'


def test_a_trace_that_is_cut_off(recorded):
    recorded.write_text(recorded.read_text()[:-300])
    with pytest.raises(ValueError, match=r"cut off, or no JSON.*at character"):
        chrome.parse(recorded)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1}', "no Chrome trace"),
        ("3", "no Chrome trace"),
        ('{"traceEvents": [1]}', "no Chrome trace"),
        ('{"traceEvents": [{"ph": "M"}]}', "nothing was recorded"),
        ('{"traceEvents": [{"ph": "X", "name": "a"}]}', "without name, ts, dur or tid"),
    ],
)
def test_a_foreign_file(tmp_path, text, reason):
    file = tmp_path / "trace.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=reason):
        chrome.parse(file)


def test_a_list_of_events_is_a_trace_too(tmp_path):
    file = tmp_path / "trace.json"
    file.write_text(json.dumps([event("kernel", "a", 0, 1)]))
    assert len(chrome.parse(file)) == 1


def test_busy_time_counts_overlapping_kernels_once():
    timed = [
        event("kernel", "a", 100, 10),
        event("kernel", "b", 105, 10, tid=2),  # overlaps
        event("kernel", "c", 106, 2, tid=3),  # inside
        event("kernel", "d", 135, 5),
        event("cpu_op", "aten::mm", 0, 500),
    ]
    found = chrome.device_times(timed)
    assert found.busy == pytest.approx(20e-6)
    assert found.span == pytest.approx(40e-6)


def test_launches_of_cuda_and_hip():
    timed = [
        event("cuda_runtime", "cudaLaunchKernel", 0, 4),
        event("cuda_driver", "cuLaunchKernelEx", 10, 2),
        event("cuda_runtime", "hipModuleLaunchKernel", 20, 3),
        event("cuda_runtime", "cudaMemcpyAsync", 30, 9),
        event("cpu_op", "LaunchKernel", 40, 9),
    ]
    assert chrome.launches(timed) == (3, pytest.approx(9e-6))


def test_what_is_before_a_restart_is_left_out():
    """A kernel counts by its launch: the first runs after the mark, and was launched before it."""
    timed = [
        event("cuda_runtime", "cudaLaunchKernel", 0, 1, correlation=1),
        event("cpu_op", "aten::mm", 0, 1),
        event("user_annotation", chrome.RESTART, 5, 1),
        event("kernel", "early", 9, 1, "stream 7", correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 10, 1, correlation=2),
        event("cpu_op", "aten::add", 10, 1),
        event("kernel", "late", 20, 1, "stream 7", correlation=2),
    ]
    names = [one["name"] for one in chrome.after_restart(timed)]
    assert names == ["cudaLaunchKernel", "aten::add", "late"]
    assert chrome.after_restart(timed[:2]) == timed[:2]
