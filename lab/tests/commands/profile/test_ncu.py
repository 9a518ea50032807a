"""The CSV of ncu. The samples are synthetic: written by hand to the layouts of ncu 2025.3, with made-up figures."""

import re

import pytest
import torch

from rownorm_lab.data.case import Case
from rownorm_lab.profilers.ncu import collect, options
from rownorm_lab.profilers.ncu_csv import REQUESTS, SECTORS, TIME, KernelRecord, parse
from rownorm_lab.profilers.request import ModelStep, ProfileRequest, Script

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
JIT = "@triton.jit\n"


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
    """Collect with a stand-in for ncu, a shell script. What it does when it counts, and when it prints either page of
    the report, are the test's. $by_line: yes, if counters by source line are asked for.
    """
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None)

    def run(count="touch $report", raw=f"cat <<'E'\n{WIDE}E", source='echo \'"Line No","Source"\''):
        program = tmp_path / "ncu"
        program.write_text(
            f"""#!/bin/sh
case "$*" in
*--import*"--page raw"*)
{raw}
;;
*--import*"--page source"*)
{source}
;;
*)
by_line=no
while [ "$1" != -o ]; do [ "$1" = SourceCounters ] && by_line=yes; shift; done; report=$2.ncu-rep
{count}
esac
"""
        )
        program.chmod(0o755)
        monkeypatch.setattr("rownorm_lab.profilers.ncu.find_program", lambda: str(program))
        folder = tmp_path / "out"
        folder.mkdir()
        case = Case(operation="rms_norm", rows=2, cols=8)
        return collect(ProfileRequest(case), folder)

    return run


def test_ncu_is_denied(run_ncu):
    found = run_ncu("echo '==ERROR== ERR_NVGPUCTRPERM - no permission'; exit 1")
    assert (found.status, found.files) == ("denied", [])
    assert "NVreg_RestrictProfilingToAdminUsers=0" in found.why


def test_ncu_fails(run_ncu):
    found = run_ncu("echo 'RuntimeError: planted'; exit 3")
    assert (found.status, found.why) == ("failed", "RuntimeError: planted; see ncu.log")


def test_ncu_meets_no_kernel(run_ncu):
    found = run_ncu("echo '==WARNING== No kernels were profiled.'")
    assert found.status == "failed"
    assert "neither a norm" in found.why


def test_ncu_works(run_ncu, tmp_path):
    found = run_ncu()
    assert (found.status, found.why) == ("ok", "")
    assert found.files == ["ncu.csv", "ncu-source.csv", "ncu.ncu-rep"]
    assert len(parse((tmp_path / "out/ncu.csv").read_text())) == 2


def test_a_program_that_crashes_keeps_its_counters(run_ncu, tmp_path):
    crash = "touch $report; echo RuntimeError: planted; exit 1"
    found = run_ncu(crash)
    assert (found.status, found.why) == ("failed", "RuntimeError: planted; see ncu.log")
    assert len(parse((tmp_path / "out/ncu.csv").read_text())) == 2


def test_an_older_ncu_counts_without_lines(run_ncu, tmp_path):
    unknown = "==ERROR== unrecognised option '--import-source'"
    found = run_ncu(f'[ $by_line = yes ] && echo "{unknown}" && exit 1; touch $report')
    assert (found.status, found.files) == ("ok", ["ncu.csv", "ncu.ncu-rep"])
    assert found.why == "no counters by source line: unrecognised option '--import-source'"
    assert not (tmp_path / "out/ncu-source.csv").exists()


def test_a_crash_is_not_repeated_without_lines(run_ncu, tmp_path):
    error = "==ERROR== The application returned an error code (1)."
    found = run_ncu(f'echo run >> {tmp_path}/runs; echo "{error}"; exit 1')
    assert found.status == "failed"
    assert (tmp_path / "runs").read_text() == "run\n"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("echo '==ERROR== Page source is not supported'; exit 1", "Page source is not supported"),
        ("echo '==WARNING== No lineinfo available'", "no kernel has line numbers"),
        ("", "no kernel has line numbers"),
    ],
)
def test_counters_remain_without_a_source_page(run_ncu, tmp_path, source, why):
    found = run_ncu(source=source)
    assert (found.status, found.files) == ("ok", ["ncu.csv", "ncu.ncu-rep"])
    assert found.why.startswith(f"no counters by source line: {why}")
    assert not (tmp_path / "out/ncu-source.csv").exists()


def test_a_report_that_cannot_be_printed_is_named(run_ncu):
    found = run_ncu(raw="echo '==ERROR== Failed to load the report'; exit 1")
    assert (found.status, found.files) == ("failed", ["ncu.ncu-rep"])
    assert found.why == "==ERROR== Failed to load the report; see ncu.csv"


def test_ncu_is_missing(monkeypatch, tmp_path):
    case = ProfileRequest(Case(operation="rms_norm", rows=2, cols=8))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr("rownorm_lab.profilers.ncu.find_program", lambda: None)
    found = collect(case, tmp_path)
    assert (found.status, "install Nsight Compute" in found.why) == ("missing", True)


def pattern_of(request):
    """The names of kernels that are profiled; None: all."""
    found = options(request)
    return (
        found[found.index("--kernel-name") + 1].removeprefix("regex:")
        if "--kernel-name" in found
        else None
    )


def test_only_norms_of_a_model_are_profiled():
    assert pattern_of(ProfileRequest(Case(operation="rms_norm", rows=2, cols=8))) is None
    pattern = pattern_of(ProfileRequest(model=ModelStep("llama", "tiny", "fused")))
    for name in ("forward_resident", "vectorized_layer_norm_kernel", "GammaBetaBackwardCUDAKernel"):
        assert re.search(pattern, name)
    assert not re.search(pattern, "vectorized_elementwise_kernel")


def test_the_triton_kernels_of_a_script_are_profiled(tmp_path):
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside/scaling.py").write_text(f"{JIT}def scale(x):\n    pass\n")
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "other.py").write_text(f"{JIT}def not_imported(x):\n    pass\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import broken, torch\nfrom beside.scaling import scale\nfrom . import other\n"
        "@triton.autotune([])\n@triton.jit(do_not_specialize=[])\ndef rotate(x):\n    pass\n"
        "def plain(x):\n    pass\n@torch.jit.script\ndef scripted(x):\n    pass\n"
    )
    pattern = pattern_of(ProfileRequest(script=Script(str(script))))
    assert re.search(pattern, "rotate")
    assert re.search(pattern, "scale")
    assert re.search(pattern, "forward_resident")
    for name in ("plain", "scripted", "not_imported", "rotated", "vectorized_elementwise_kernel"):
        assert not re.search(pattern, name)
