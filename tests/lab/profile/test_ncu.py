"""The CSV of ncu. The samples are synthetic: written by hand to the layouts of ncu 2025.3, with made-up figures."""

import pytest

from rownorm.lab.profile.ncu import parse

PLACE = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream",'
    '"Block Size","Grid Size","Device","CC",'
)
FIRST = (
    '"0","12","python3","host","forward_resident","1","7","(256, 1, 1)","(8192, 1, 1)","0","9.0",'
)
SECOND = '"1","12","python3","host","column_sums","1","7","(256, 1, 1)","(512, 1, 1)","0","9.0",'
WIDE = f"""==PROF== Connected to process 12 (/usr/bin/python3)
==PROF== Profiling "forward_resident" - 0: 0%....50%....100% - 3 passes
==PROF== Disconnected from process 12
{PLACE}"dram__bytes_read.sum","launch__registers_per_thread","sm__warps_active.avg"
"","","","","","","","","","","","byte","register/thread","%"
{FIRST}"67,129,856","40","75"
{SECOND}"1024","32","n/a"
"""
LONG = f"""==PROF== Connected to process 12 (/usr/bin/python3)
{PLACE}"Section Name","Metric Name","Metric Unit","Metric Value"
{FIRST}"Command line profiler metrics","dram__bytes_read.sum","byte","67,129,856"
{FIRST}"Command line profiler metrics","launch__registers_per_thread","register/thread","40"
{SECOND}"Command line profiler metrics","dram__bytes_read.sum","byte","1,024"
"""


@pytest.mark.parametrize("text", [WIDE, LONG], ids=["wide", "long"])
def test_both_layouts(text):
    first, second = parse(text)
    assert (first.id, first.kernel) == (0, "forward_resident")
    assert first.metrics["dram__bytes_read.sum"] == 67129856
    assert first.metrics["launch__registers_per_thread"] == 40
    assert first.units["dram__bytes_read.sum"] == "byte"
    assert (second.kernel, second.metrics["dram__bytes_read.sum"]) == ("column_sums", 1024)


def test_a_value_that_is_no_number_is_left_out():
    assert "sm__warps_active.avg" not in parse(WIDE)[1].metrics


def test_a_file_that_is_cut_off():
    with pytest.raises(ValueError, match="cut off: line 4 has 6 of 14 values"):
        parse(WIDE[: WIDE.index("column_sums") + 16])


def test_a_foreign_file():
    with pytest.raises(ValueError, match="not the CSV of ncu"):
        parse("Name,Calls\nkernel,3\n")


def test_denied_counters_say_what_to_do():
    with pytest.raises(PermissionError, match="NVreg_RestrictProfilingToAdminUsers=0"):
        parse("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
