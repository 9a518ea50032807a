"""The CSV of ncu. The samples are synthetic: written by hand to the layouts of ncu 2025.3, with made-up figures."""

import re

import pytest
import torch

from rownorm_lab.data.case import Case
from rownorm_lab.profilers.ncu import collect, options
from rownorm_lab.profilers.ncu_csv import REQUESTS, SECTORS, TIME, KernelRecord, parse
from rownorm_lab.profilers.request import ProfileRequest

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


def test_time_and_sectors_of_a_launch():
    sectors, requests = SECTORS.format("ld"), REQUESTS.format("ld")
    record = KernelRecord(0, "a", {TIME: 5.0, sectors: 160.0, requests: 10.0}, {TIME: "us"})
    assert record.seconds == pytest.approx(5e-6)
    assert record.sectors_per_request("ld") == 16
    assert record.sectors_per_request("st") is None
    assert KernelRecord(0, "a", {TIME: 5.0}, {TIME: "fortnight"}).seconds is None
    assert KernelRecord(0, "a", {requests: 0.0, sectors: 0.0}, {}).sectors_per_request("ld") is None


@pytest.fixture
def run_ncu(tmp_path, monkeypatch):
    """Collect with a stand-in for ncu, a shell script: what it prints and its exit status are the test's."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None)

    def run(body):
        program = tmp_path / "ncu"
        program.write_text(
            f'#!/bin/sh\nwhile [ "$1" != --log-file ]; do shift; done; log=$2\n{body}\n'
        )
        program.chmod(0o755)
        monkeypatch.setattr("rownorm_lab.profilers.ncu.find_program", lambda: str(program))
        folder = tmp_path / "out"
        folder.mkdir()
        case = Case(operation="rms_norm", rows=2, cols=8)
        return collect(ProfileRequest(case), folder)

    return run


def test_ncu_is_denied(run_ncu):
    found = run_ncu("echo '==ERROR== ERR_NVGPUCTRPERM - no permission' > $log; exit 1")
    assert found.status == "denied"
    assert "NVreg_RestrictProfilingToAdminUsers=0" in found.why


def test_ncu_fails(run_ncu):
    found = run_ncu("echo 'RuntimeError: planted'; exit 3")
    assert (found.status, found.why) == ("failed", "RuntimeError: planted; see ncu.log")


def test_ncu_meets_no_kernel(run_ncu):
    found = run_ncu("echo '==WARNING== No kernels were profiled.' > $log")
    assert found.status == "failed"
    assert "no kernel" in found.why


def test_ncu_works(run_ncu):
    found = run_ncu('printf %s \'"ID","Process ID"\' > $log')
    assert (found.status, found.files) == ("ok", ["ncu.csv"])


def test_ncu_is_missing(monkeypatch, tmp_path):
    case = ProfileRequest(Case(operation="rms_norm", rows=2, cols=8))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr("rownorm_lab.profilers.ncu.find_program", lambda: None)
    found = collect(case, tmp_path)
    assert (found.status, "install Nsight Compute" in found.why) == ("missing", True)


def test_only_norms_of_a_model_are_profiled(tmp_path):
    whole, norms = options(tmp_path / "a.csv", False), options(tmp_path / "a.csv", True)
    assert "--kernel-name" not in whole
    pattern = norms[norms.index("--kernel-name") + 1].removeprefix("regex:")
    for name in ("forward_resident", "vectorized_layer_norm_kernel", "GammaBetaBackwardCUDAKernel"):
        assert re.search(pattern, name)
    assert not re.search(pattern, "vectorized_elementwise_kernel")
