"""The CSV files of rocprofv3.

Those of ``captured/rocprofv3`` are of a real run. The samples below are synthetic: written by hand to the documented
headers, made-up figures.
"""

import csv
import shutil
from pathlib import Path

import pytest

from lab_support.lab_commands import invoke
from rownorm_lab.commands.profile.rocprof_files import profile_of_files
from rownorm_lab.data.profiles import read_profile
from rownorm_lab.profilers import rocprof

STATS = """"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"
"forward_resident",4,8000,2000.0,80.0,1900,2100,70.7
"void at::native::fill<float>(float*, int)",2,2000,1000.0,20.0,900,1100,100.0
"""
TRACE = """"Kind","Agent_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp","Grid_Size_X"
"KERNEL_DISPATCH",1,"forward_resident",11,8819330200067564,8819330200069564,1024
"KERNEL_DISPATCH",1,"column_sums",12,8819330200070000,8819330200070500,64
"KERNEL_DISPATCH",1,"forward_resident",13,8819330200080000,8819330200081000,1024

"""
COUNTERS = """"Correlation_Id","Dispatch_Id","Kernel_Name","VGPR_Count","Counter_Name","Counter_Value"
1,1,"forward_resident",32,"FETCH_SIZE",65536
1,1,"forward_resident",32,"WRITE_SIZE",65000
2,2,"forward_resident",32,"FETCH_SIZE",65540
3,3,"column_sums",32,"FETCH_SIZE",100
3,3,"column_sums",32,"FETCH_SIZE",20
"""


def test_kernel_stats():
    first, second = rocprof.parse_stats(STATS)
    assert first == ("forward_resident", 4, pytest.approx(8e-6))
    assert second.kernel == "void at::native::fill<float>(float*, int)"


def test_headers_of_another_release():
    text = STATS.replace("TotalDurationNs", "Total_Duration_ns").replace('"Name"', '"NAME"')
    assert rocprof.parse_stats(text) == rocprof.parse_stats(STATS)


def test_kernel_trace_with_an_empty_last_line():
    launches = rocprof.parse_trace(TRACE)
    assert [one.kernel for one in launches] == [
        "forward_resident",
        "column_sums",
        "forward_resident",
    ]
    assert rocprof.stats_of(launches) == [
        ("forward_resident", 2, pytest.approx(3e-6)),
        ("column_sums", 1, pytest.approx(0.5e-6)),
    ]


def test_counters_of_a_launch():
    launches = rocprof.parse_counters(COUNTERS)
    assert len(launches) == 3
    assert launches[0].counters == {"FETCH_SIZE": 65536, "WRITE_SIZE": 65000}
    assert launches[2].counters == {"FETCH_SIZE": 120}
    assert rocprof.mean(launches, "forward_resident", "FETCH_SIZE") == 65538
    assert rocprof.mean(launches, "forward_resident", "WRITE_SIZE") == 65000
    assert rocprof.mean(launches, "column_sums", "WRITE_SIZE") is None


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (rocprof.parse_stats, STATS),
        (rocprof.parse_trace, TRACE.rstrip()),
        (rocprof.parse_counters, COUNTERS),
    ],
)
def test_files_that_are_cut_off_or_foreign(parse, text):
    last = text.rstrip().rindex(",")
    with pytest.raises(ValueError, match="cut off: line"):
        parse(text[:last])
    with pytest.raises(ValueError, match="has no column"):
        parse("a,b\n1,2\n")
    with pytest.raises(ValueError, match="has no column"):
        parse("")


REAL = Path(__file__).parent / "captured" / "rocprofv3"


def test_csvs_of_any_program_are_a_profile(tmp_path):
    folder = shutil.copytree(REAL, tmp_path / "run" / "host" / "1234").parents[1]
    ran = invoke("profile", "--read", folder)
    assert ran.exit_code == 0, ran.output
    profile = read_profile(folder)
    rows = list(csv.DictReader((REAL / "kernel_trace.csv").read_text().splitlines()))
    assert profile.figure("kernels launched", "program").value == len(rows) == 7
    first = min(int(row["Start_Timestamp"]) for row in rows)
    last = max(int(row["End_Timestamp"]) for row in rows)
    span = profile.figure("from the first kernel to the last", "program").value
    assert span == pytest.approx((last - first) * 1e-9)
    busy = {
        at for row in rows for at in range(int(row["Start_Timestamp"]), int(row["End_Timestamp"]))
    }
    share = profile.figure("utilisation of the GPU", "program").value
    assert share == pytest.approx(len(busy) / (last - first))
    assert {one.name for one in profile.kernels["program"]} == {row["Kernel_Name"] for row in rows}
    assert sum(one.calls for one in profile.kernels["program"]) == 7
    kernel = "program: subtract_kernel(float*, float const*, float const*, int, int)"
    assert profile.figure("SQ_WAVES", kernel).value == 16384
    assert "subtract_kernel  2         121 µs            16,384" in ran.output
    assert "kernels launched                   7  " in ran.output
    assert "FETCH_SIZE WRITE_SIZE" in profile.advice[-1]
    assert "torch ," not in ran.output
    assert (
        "a program under rocprofv3"
        in invoke("report", folder).output + (folder / "report" / "report.html").read_text()
    )


def test_counters_and_times_give_the_memory_traffic(tmp_path):
    (tmp_path / "x_kernel_stats.csv").write_text(STATS)
    (tmp_path / "x_counter_collection.csv").write_text(COUNTERS)
    profile = profile_of_files(tmp_path)
    traffic = profile.figure("memory traffic", "program: forward_resident").value
    assert traffic == pytest.approx((65538 + 65000) * 1024 / 2e-6)
    assert profile.figure("utilisation of the GPU", "program") is None
    assert "forward_resident, 80%" in profile.bottleneck


def test_a_gpu_that_waits_is_bound_by_the_host(tmp_path):
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "agents.csv").write_text(
        'Agent_Type,Name,Product_Name\nCPU,x,EPYC\nGPU,gfx942,"AMD Instinct MI300X"\n'
    )
    (tmp_path / "mine.csv").write_text("a,b\n1,2\n")
    profile = profile_of_files(tmp_path)
    assert profile.bottleneck.startswith("the host: no kernel runs in")
    assert profile.environment.device == "AMD Instinct MI300X"
    assert profile.tools[0].files == ["agents.csv", "trace.csv"]


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", None])
def test_a_folder_without_such_csvs(tmp_path, content):
    if content is not None:
        (tmp_path / "x.csv").write_text(content)
    ran = invoke("profile", "--read", tmp_path)
    assert ran.exit_code == 2
    assert "neither a request of rownorm profile nor CSVs of rocprofv3" in ran.output


def test_a_csv_that_is_cut_off_is_named(tmp_path):
    (tmp_path / "a.csv").write_text(TRACE)
    (tmp_path / "b.csv").write_text(COUNTERS.rstrip()[:-12])
    ran = invoke("profile", "--read", tmp_path)
    assert ran.exit_code == 1
    assert "b.csv: the CSV of rocprofv3 is cut off: line 6" in " ".join(ran.output.split())
