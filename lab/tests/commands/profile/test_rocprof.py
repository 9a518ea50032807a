"""The CSV files of rocprofv3. The samples are synthetic: written by hand to the documented headers, made-up figures."""

import pytest

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
