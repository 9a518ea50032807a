"""Users' kernels, recorded and analyzed without a GPU.

Tests run in Triton's interpreter, which cannot compile. So this file is also a script, which a test runs in a process
without the interpreter; it prints JSON.
"""

import json
import re
import sys
from pathlib import Path

import pytest

from lab_support.lab_commands import invoke, refused, without_torch
from rownorm_lab.commands.tune import own
from rownorm_lab.compiled import own_timing
from rownorm_lab.compiled.recorded import compiler_message
from support.compiled import json_of

ROOT = Path(__file__).parents[3]
EXAMPLE = f"{ROOT / 'examples' / 'own_kernel.py'}:rms_norm_kernel"
KERNELS = ROOT / "lab" / "tests" / "lab_support" / "user_kernels.py"
CALLS = {  # name: (kernel, target, arguments of analyze)
    "add": ("add_kernel", "sm_90", ""),
    "described": (
        "add_kernel",
        "sm_90",
        "--signature x_ptr=fp32[99008],y_ptr=*fp32[99008],out_ptr=fp32[99008],n=99008 "
        "--constants BLOCK=1024 --grid 97",
    ),
    "second": ("add_kernel", "sm_90", "--call two_sizes() --launch 2"),
    "rows": ("rows_kernel", "sm_90", "--call rows()"),
    "rows_amd": ("rows_kernel", "gfx942", "--call rows() --constants num_warps=2"),
    "gather": ("gather_kernel", "sm_90", "--call gather()"),
    "product": ("product_kernel", "sm_90", "--call product()"),
    "sweep": ("add_kernel", "sm_90", "--blocks BLOCK=64..256"),
}  # fmt: skip
WRONG = {
    "no_main": (EXAMPLE.replace("rms_norm_kernel", "rms_norm"), "", "is no kernel: decorate it"),
    "failing": (
        f"{KERNELS}:add_kernel",
        "--call fails()",
        "fails() launches no add_kernel: RuntimeError: not today (user_kernels.py, line 84)",
    ),
    "other": (f"{KERNELS}:add_kernel", "--call rows()", "rows() launches no add_kernel. Give another --call"),
    "syntax": (f"{KERNELS}:add_kernel", "--call add(", "SyntaxError: '(' was never closed"),
    "third": (f"{KERNELS}:add_kernel", "--call two_sizes() --launch 3", "there are 2 different launches"),
    "constant": (f"{KERNELS}:add_kernel", "--constants WIDTH=3", "has no constant 'WIDTH'; it has BLOCK, num_warps"),
    "argument": (f"{KERNELS}:add_kernel", "--signature x=fp32[3] --grid 1", "add_kernel has no x; it has x_ptr"),
    "missing": (f"{KERNELS}:add_kernel", "--signature n=3 --grid 1", "has no value for x_ptr, y_ptr, out_ptr, BLOCK"),
    "dtype": (f"{KERNELS}:add_kernel", "--signature x_ptr=float[3] --grid 1", "no dtype 'float'; known: fp16"),
    "bytes": ("rms_norm", "--cols 4096 --rows 3000000000",
        "on sm_90: x has 24,600 GB, more than any GPU holds: take fewer rows"),
    "block": (f"{KERNELS}:add_kernel", "--blocks BLOCK=100",
        "BLOCK 100 on sm_90: ValueError: arange's range must be a power of 2 (at "),
}  # fmt: skip


def everything():
    """What the commands print, all in this process: starting Triton takes longer than most of them."""

    def analyze(what, arguments, target="sm_90"):
        return invoke("analyze", what, "--target", target, *arguments.split())

    def analyses(what, arguments, target="sm_90"):
        ran = analyze(what, f"{arguments} --json", target)
        assert ran.exit_code == 0, ran.output
        return json.loads(ran.stdout)

    found = {
        name: analyses(f"{KERNELS}:{kernel}", arguments, target)["kernels"]
        for name, (kernel, target, arguments) in CALLS.items()
    }
    found["wrong"] = {
        name: analyze(place, arguments).output for name, (place, arguments, _) in WRONG.items()
    }
    found["text"] = analyze(f"{KERNELS}:gather_kernel", "--call gather()").output
    found["narrow"] = analyze(
        f"{KERNELS}:rows_kernel", "--call rows() --blocks BLOCK=512,2048"
    ).output
    found["example"] = analyze(EXAMPLE, "--blocks BLOCK=64,1024").output
    found["source"] = json.loads(invoke("source", EXAMPLE, "--json").stdout)
    found["loop"] = analyses("rms_norm", "--cols 4096 --rows 8192 --blocks 1024")["analyses"][1]
    found["tuned"] = invoke(
        "tune", f"{KERNELS}:rows_kernel", "--call", "rows()", "--target", "sm_90",
        "--over", "BLOCK=512..2048", "--over", "num_warps=8", "--out", sys.argv[1],
    ).output  # fmt: skip
    found["own_loop"] = analyses(EXAMPLE, "")["kernels"][0]
    return found


@pytest.fixture(scope="module")
def found(triton_cache, tmp_path_factory):
    return json_of([__file__, str(tmp_path_factory.mktemp("tuned") / "out")], triton_cache)


def test_a_call_is_recorded_as_it_is_launched(found):
    (one,) = found["add"]
    assert one["launch"] == (
        "x_ptr fp32[99008], y_ptr fp32[99008], out_ptr fp32[99008], n 99008, BLOCK 1024, num_warps 4"
    )
    assert one["grid"] == [97, 1, 1]
    assert "main() ended early, after add_kernel: " in one["notes"][0]
    traffic = one["traffic"]
    assert {t["tensor"]: round(t["passes"], 3) for t in traffic["tensors"]} == {
        "x_ptr": 1, "y_ptr": 1, "out_ptr": 1,
    }  # fmt: skip
    assert traffic["memory_read"] + traffic["memory_written"] == pytest.approx(3 * 99008 * 4)
    assert one["load_widths"] == {"16": 4}  # 8 elements of each of two tensors
    assert one["unknown"] == []


def test_a_description_gives_what_a_call_gives(found):
    (one,), (other,) = found["add"], found["described"]
    for same in ("registers", "occupancy", "load_widths", "traffic", "launch", "grid"):
        assert one[same] == other[same], same


def test_different_launches_are_told_apart(found):
    assert found["second"][0]["launch"].startswith("x_ptr fp32[8192]")


def test_a_grid_that_depends_on_the_gpu(found):
    (one,), (amd,) = found["rows"], found["rows_amd"]
    assert one["grid"] == [2 * 132, 1, 1]
    assert amd["grid"] == [2 * 304, 1, 1]
    assert (one["warps"], amd["warps"]) == (8, 2)
    for each in (one, amd):
        assert {t["tensor"]: round(t["passes"], 2) for t in each["traffic"]["tensors"]} == {
            "x_ptr": 1, "y_ptr": 1,
        }  # fmt: skip


def test_what_it_cannot_tell_it_says(found):
    (one,), (matrix,) = found["gather"], found["product"]
    assert "loads whose addresses or masks depend on values of tensors" in one["unknown"][0]
    assert "accesses of x_ptr: none was seen" in one["unknown"][1]
    assert {t["tensor"] for t in one["traffic"]["tensors"]} == {"index_ptr", "y_ptr"}
    assert "Not known: loads whose addresses" in found["text"]
    assert "matrix products" in matrix["unknown"][0]
    assert matrix["notes"] == ["autotuned: this is the first of 2 configurations"]
    # Every program of a row of 4 x 4 loads the whole of its rows and columns.
    passes = {t["tensor"]: t["passes"] for t in matrix["traffic"]["tensors"]}
    assert passes == {"a_ptr": 4, "b_ptr": 4, "c_ptr": 1}


def test_a_constant_is_swept(found):
    assert [one["label"] for one in found["sweep"]] == ["BLOCK 64", "BLOCK 128", "BLOCK 256"]
    assert [one["grid"][0] for one in found["sweep"]] == [1547, 774, 387]
    assert "BLOCK 64" in found["example"]
    (smallest,) = re.findall(
        r"Smallest predicted time: (.+) µs with BLOCK 1024, bound by bandwidth", found["example"]
    )
    assert 30 < float(smallest) < 40  # it depends on the bandwidth that the published run measured


def test_a_block_that_is_too_narrow_is_not_the_best(found):
    """The recorded launch, with 1024, is none of those that are asked for."""
    text = " ".join(found["narrow"].split())
    assert re.search(r"BLOCK 512 stores 51% of y_ptr with \d+ programs: it would be wrong\.", text)
    assert re.search(r"Smallest predicted time: [\d.]+ µs with BLOCK 2048, bound by", text)


def test_a_wrong_variant_is_not_timed(monkeypatch):
    """The rest of its result would be in the copies, from the recorded launch."""
    timed = []
    monkeypatch.setattr(
        own_timing, "time_variants", lambda _, variants: [timed.append(one) for one in variants]
    )
    wrong = own.Candidate({"BLOCK": 8}, object(), "stores 50% of y_ptr")
    assert own._measured(None, [wrong]) == [wrong]
    assert timed == []


def test_the_reason_of_an_error_in_a_function_that_the_kernel_calls():
    outer = RuntimeError("at 5:10:\ndef kernel():\n    tl.zeros((100,), tl.float32)\n    ^")
    outer.__cause__ = RuntimeError("at 9:4:\n    full(shape)\n    ^\nmust be a power of 2")
    said = "RuntimeError: must be a power of 2 (at 5:10: tl.zeros((100,), tl.float32))"
    assert compiler_message(outer) == said


def test_it_agrees_with_the_analysis_of_a_norm(found):
    """The example is the plain loop, without a bias."""
    norm, own = found["loop"], found["own_loop"]
    kernel, traffic = norm["kernels"][0], own["traffic"]
    for same in ("registers", "occupancy", "load_widths", "instructions", "shared_bytes"):
        assert kernel[same] == own[same], same
    for per_row, per_program in (
        ("load_requests_per_row", "load_requests_per_program"),
        ("store_sectors_per_row", "store_sectors_per_program"),
        ("load_sectors_per_row", "load_sectors_per_program"),
        ("passes", "passes"),
        ("sector_use", "sector_use"),
        ("in_flight_bytes", "in_flight_bytes"),
        ("memory_read", "memory_read"),
        ("predicted_seconds", "predicted_seconds"),
    ):
        assert kernel[per_row] == pytest.approx(traffic[per_program]), per_row


def test_the_source_of_a_users_kernel(found):
    first = found["source"]["code"][0]
    assert (first["file"], first["function"]) == ("own_kernel.py", "rms_norm_kernel")
    loads = [
        pair["source"]
        for pair in first["lines"]
        if any(mark == "load" for mark, _ in pair["instructions"])
    ]
    assert len(loads) == 3
    assert all("tl.load(" in line for line in loads)
    answers = dict(found["source"]["answers"])
    assert answers["How many passes over the tensors?"] == (
        "x_ptr is loaded 2 times; weight_ptr is loaded 8,192 times; y_ptr is stored once."
    )


def test_tuning_predicts_and_sees_what_would_be_wrong(found):
    text = " ".join(found["tuned"].split())
    assert "Predicted from compiled code." in text
    assert "measured" not in text
    assert "BLOCK 512 / num_warps 8: stores 51% of y_ptr with" in text
    assert re.search(r"Predicted best: [\d.]+ µs with [^.]*BLOCK 1024 / num_warps 8", text)
    assert "kernel.json" in text


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_analyzed_says_why(found, name):
    assert WRONG[name][2] in " ".join(found["wrong"][name].split())


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("analyze {} --cols 8", "--cols is an option for a norm"),
        ("analyze rms_norm --cols 8 --call main()", "--call is an option for FILE.py:kernel"),
        ("analyze {} --blocks 64", "is not NAME=VALUE,VALUE or NAME=64..1024"),
        ("analyze {} --blocks BLOCK=64..x", "is not a range as 64..1024"),
        ("analyze no_such.py:kernel", "No such file"),
        ("tune {} --over BLOCK", "--over: 'BLOCK' is not NAME=VALUE"),
        (
            "tune {} --over A=1..4000000 --over B=1..4000000 --over C=1..4000000",
            "combinations; 4,096 are",
        ),
        ("tune {}", "name what to vary of the kernel: --over BLOCK=64..1024"),
        ("tune kernel --over BLOCK=3", "'kernel' is not FILE.py:kernel"),
        ("tune no_such.py:kernel --over BLOCK=3", "No such file"),
        ("source no_such.py:kernel", "No such file"),
        ("analyze .", "or FILE.py:kernel, a kernel of yours"),
        ("tune --over BLOCK=3", "only FILE.py:kernel uses --over"),
        ("tune {} --over BLOCK=3 --width 3", "does not use --width"),
        ("source {} --op rms_norm", "are for rownorm's kernels"),
        ("source forward_resident --call main()", "--call: for FILE.py:kernel"),
    ],
)
def test_bad_options_are_refused(arguments, message, monkeypatch):
    monkeypatch.setattr("rownorm_lab.compiled.compile.INTERPRETING", False)
    assert message in " ".join(refused(*arguments.format(EXAMPLE).split()).split())


def test_help_needs_no_torch():
    for command in ("analyze", "source"):
        ran = without_torch(command, "--help")
        assert ran.returncode == 0, ran.stderr
        assert "FILE.py:kernel" in ran.stdout


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    print(json.dumps(everything()))
