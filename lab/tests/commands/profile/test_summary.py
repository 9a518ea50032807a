"""The summary of a folder of a GPU. Its files are synthetic: written by hand to the tools' layouts, made-up figures."""

import json

import pytest

from rownorm_lab.commands.profile.publish import page
from rownorm_lab.commands.profile.summary import summarize
from rownorm_lab.data.case import Case
from rownorm_lab.data.profile_tables import (
    counter_table,
    figure_table,
    short_name,
    source_table,
    value_of,
)
from rownorm_lab.data.profiles import ToolResult, read_profile, write_profile
from rownorm_lab.data.records import Environment
from rownorm_lab.profilers.request import CALLS, ModelStep, ProfileRequest

H200 = Environment(
    device="NVIDIA H200", kind="cuda", peak_bytes_per_second=4.8e12, peak_source="datasheet"
)
CASE = Case(operation="rms_norm", rows=8192, cols=4096)
NCU = """==PROF== Connected to process 12 (/usr/bin/python3)
"ID","Process ID","Kernel Name","gpu__time_duration.sum","dram__bytes_read.sum","dram__bytes_write.sum",\
"sm__warps_active.avg.pct_of_peak_sustained_active","l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",\
"l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
"","","","ns","byte","byte","%","sector",""
"0","12","forward_resident","32000","67,000,000","61,000,000","67.6","160","10"
"1","12","vectorized_layer_norm_kernel","40000","67,000,000","61,000,000","20","160","20"
"""
STATS = '"Name","Calls","TotalDurationNs"\n"forward_resident",2,100000\n"fill",1,9\n'
COUNTERS = """"Dispatch_Id","Kernel_Name","Counter_Name","Counter_Value"
1,"forward_resident","FETCH_SIZE",65536
1,"forward_resident","WRITE_SIZE",65536
2,"forward_resident","OccupancyPercent",50
"""


def trace_of(microseconds, gap=0.0):
    """A call launches one kernel, and the next begins after a gap."""
    events = []
    for number in range(CALLS):
        start = number * (microseconds + gap)
        launch = {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernelEx", "tid": 1, "dur": 2}
        kernel = {
            "ph": "X",
            "cat": "kernel",
            "name": "forward_resident",
            "tid": "7",
            "dur": microseconds,
        }
        events.append(launch | {"ts": start, "args": {"correlation": number}})
        events.append(kernel | {"ts": 1e4 + start, "args": {"correlation": number}})
    return json.dumps({"traceEvents": events})


@pytest.fixture
def folder(tmp_path):
    """A norm that reaches 87% of the peak."""
    (tmp_path / "triton_profile.json").write_text(trace_of(32.0, gap=8.0))
    (tmp_path / "pytorch_profile.json").write_text(trace_of(64.0))
    (tmp_path / "host.json").write_text('{"rownorm": {"host": 5e-6}, "torch": {"host": 6e-6}}')
    (tmp_path / "ncu.csv").write_text(NCU)
    return tmp_path


def of(folder, request=None, **others):
    tools = [ToolResult(name, "ok") for name in ("chrome", "ncu")]
    return summarize(request or ProfileRequest(CASE), folder, tools, others.get("here", H200))


def value(profile, name, subject="rownorm"):
    return profile.figure(name, subject).value


def test_every_figure_with_its_source(folder):
    profile = of(folder)
    kernel = "rownorm: forward_resident"
    assert value(profile, "kernel time of a call") == pytest.approx(32e-6)
    assert value(profile, "kernel time of a call", "torch") == pytest.approx(64e-6)
    assert value(profile, "speed beside torch") == pytest.approx(2)
    assert value(profile, "launch overhead: host time of a call") == 5e-6
    assert value(profile, "host time of one launch") == pytest.approx(2e-6)
    assert value(profile, "GPU idle") == pytest.approx(72 / 392)
    assert value(profile, "achieved bandwidth") == pytest.approx(CASE.compulsory_bytes / 32e-6)
    assert value(profile, "share of peak bandwidth") == pytest.approx(
        CASE.compulsory_bytes / 32e-6 / 4.8e12
    )
    assert value(profile, "achieved occupancy", kernel) == pytest.approx(0.676)
    assert value(profile, "sectors per load request", kernel) == 16
    assert value(profile, "memory traffic", kernel) == pytest.approx(128e6 / 32e-6)
    assert value(profile, "sectors per load request", "torch: vectorized_layer_norm_kernel") == 8
    assert all(one.source for one in profile.figures)
    assert "ncu.csv: sm__warps_active" in profile.figure("achieved occupancy", kernel).source
    assert [one.status for one in profile.tools] == ["ok", "ok"]


def test_bandwidth_is_the_bottleneck(folder):
    profile = of(folder)
    assert profile.bottleneck == "memory bandwidth: 87% of the peak"
    assert "Move fewer bytes" in profile.advice[0]


def test_the_launch_is_the_bottleneck(folder):
    (folder / "host.json").write_text('{"rownorm": {"host": 5e-5}}')
    assert of(folder).bottleneck.startswith("launch overhead: the host needs 50.0 µs")


def test_latency_is_the_bottleneck(folder):
    (folder / "triton_profile.json").write_text(trace_of(64.0))
    (folder / "ncu.csv").write_text(NCU.replace('"67.6"', '"10"'))
    profile = of(folder)
    assert profile.bottleneck.startswith("latency: 44% of the peak, with 10% of the warps active")
    assert "rownorm analyze rms_norm --cols 4096 --rows 8192 --dtype bf16" in profile.advice[0]
    assert "rownorm tune" in profile.advice[1]


def test_an_unknown_peak(folder):
    here = Environment(device="a GPU", kind="cuda")
    assert of(folder, here=here).bottleneck.startswith("unknown: the peak bandwidth")


@pytest.mark.parametrize(
    ("name", "content", "tool", "status", "reason"),
    [
        (
            "ncu.csv",
            NCU[:-20],
            "ncu",
            "failed",
            "ncu.csv cannot be used: the table of ncu is cut off",
        ),
        ("ncu.csv", "==ERROR== ERR_NVGPUCTRPERM", "ncu", "denied", "Run ncu as root"),
        (
            "triton_profile.json",
            "{",
            "chrome",
            "failed",
            "triton_profile.json cannot be used: it is cut off",
        ),
        ("proton-rownorm.hatchet", "{}", "proton", "failed", "no hatchet file"),
        ("rocprof/trace_kernel_stats.csv", "a,b\n", "rocprofv3", "failed", "has no column Name"),
    ],
)
def test_one_file_that_cannot_be_used_loses_no_other(folder, name, content, tool, status, reason):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(content)
    profile = of(folder)
    [found] = [one for one in profile.tools if one.tool == tool]
    assert found.status == status
    assert reason in found.why
    assert value(profile, "kernel time of a call", "torch") == pytest.approx(64e-6)
    assert sum(one.status == "ok" for one in profile.tools) >= 1


def test_rocprofv3(tmp_path):
    where = tmp_path / "rocprof"
    where.mkdir()
    (where / "trace_kernel_stats.csv").write_text(STATS)
    (where / "traffic_counter_collection.csv").write_text(COUNTERS)
    here = Environment(
        device="MI300X", kind="hip", peak_bytes_per_second=5.3e12, peak_source="table"
    )
    profile = of(tmp_path, here=here)
    kernel = "rownorm: forward_resident"
    assert {one.subject for one in profile.figures} == {kernel}
    assert value(profile, "time", kernel) == pytest.approx(50e-6)
    rate = 2 * 65536 * 1024 / 50e-6
    assert value(profile, "memory traffic", kernel) == pytest.approx(rate)
    assert value(profile, "share of peak bandwidth", kernel) == pytest.approx(rate / 5.3e12)
    assert value(profile, "achieved occupancy", kernel) == pytest.approx(0.5)


def test_a_step_of_a_model(folder):
    """The first kernel takes all of the time, and the GPU waits a fifth of it; then most of it."""
    request = ProfileRequest(model=ModelStep("llama", "tiny", "fused"))
    profile = of(folder, request)
    assert (
        profile.bottleneck == "other kernels than norms: forward_resident takes 100% of kernel time"
    )
    (folder / "triton_profile.json").write_text(trace_of(32.0, gap=100.0))
    assert of(folder, request).bottleneck.startswith("the host: the GPU is idle for 7")


def test_json_and_markdown(folder):
    profile = of(folder)
    write_profile(folder, profile)
    assert read_profile(folder) == profile
    text = page(profile)
    for table in (figure_table(profile), counter_table(profile), source_table(profile)):
        assert table.lines
        for line in table.lines:
            assert all(cell in text for cell in line)
    assert all(value_of(one) in text for one in profile.figures)
    assert "**Primary bottleneck:** memory bandwidth" in text
    assert "NVIDIA H200" in text


def test_a_summary_that_cannot_be_read(tmp_path):
    (tmp_path / "summary.json").write_text('{"schema": 99}')
    with pytest.raises(ValueError, match="cannot be read as a profile"):
        read_profile(tmp_path)


def test_one_line_for_a_figure_and_one_for_a_kernel(folder):
    profile = of(folder)
    figures, kernels = figure_table(profile), counter_table(profile)
    assert figures.header == ["figure", "rownorm", "torch", "source"]
    [line] = [one for one in figures.lines if one[0] == "kernel time of a call"]
    expected = [
        value_of(profile.figure("kernel time of a call", one)) for one in ("rownorm", "torch")
    ]
    assert line[1:] == [*expected, "Chrome trace: sum of kernels"]
    assert len(kernels.lines) == len({one.subject for one in profile.figures if ":" in one.subject})


@pytest.mark.parametrize(
    ("kernel", "short"),
    [
        ("forward_resident", "forward_resident"),
        ("void at::native::(anonymous namespace)::rows<c10::BFloat16, float>(int, T1 *)", "rows"),
        ("void at::<unnamed>::rows<float, 1>(int)", "rows"),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT",) * 2,
        ("(anonymous namespace)::", "(anonymous namespace)::"),
    ],
)
def test_short_names_of_kernels(kernel, short):
    assert short_name(kernel) == short
