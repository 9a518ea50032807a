"""The bars: records of a pretend H200 that hold, fall short or are not there; and a small real run on this machine."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import torch
import triton
import triton.language as tl
import triton.testing

import rownorm

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import bars  # noqa: E402
import figures  # noqa: E402
import judge  # noqa: E402
import measure  # noqa: E402
from first_call import FirstCall  # noqa: E402

from rownorm.lab import providers  # noqa: E402
from rownorm.lab.cases.case import Case  # noqa: E402
from rownorm.lab.cases.suites import SUITES  # noqa: E402
from rownorm.lab.results.records import FILE, Environment, Method, Record, read  # noqa: E402

H200 = Environment(
    device="NVIDIA H200",
    kind="cuda",
    torch="2.11.0",
    triton="3.6.0",
    driver="580",
    versions={"torch": "2.11.0", "quack-kernels": "0.6.5"},
)
METHOD = Method(timer="cuda_graph", rotation=2, calls=2, rounds=3, cold=True)
SPEED_OF_MEMORY = 4e12
SHARES = {"rownorm": 0.95, "torch": 0.2, "torch.compile": 0.8, "quack": 0.9, "ceiling": 1.0}


def record(case, provider, share=None, **changes):
    """A provider that reaches a share of the speed of memory, and what ``changes`` make of it."""
    seconds = case.compulsory_bytes / SPEED_OF_MEMORY / (share or SHARES.get(provider, 0.7))
    good = {
        "method": METHOD,
        "seconds": [seconds * noise for noise in (1.01, 1.0, 0.99)],
        "host_seconds": [1e-5] * 3,
        "peak_bytes": figures.allowed_bytes(case),
    }
    if changes.get("status", "ok") != "ok":
        good = {}
    return Record(
        **{"case": case, "provider": provider, "environment": H200, "run": "one"},
        **{"time": "2026-11-15T12:00:00+00:00", **good, **changes},
    )


def good_records():
    return [record(case, name) for case, names in bars.jobs_of(bars.PARTS) for name in names]


def good_first_calls():
    def compiled():
        once = {"forward": ["f"], "training forward": ["f"], "backward": ["b", "s"]}
        return {**once, "other rows": []}

    return [
        FirstCall(operation=operation, cols=cols, compiled=compiled())
        for operation, cols in bars.FIRST_CALL.calls
    ]


def written(folder, records, first_calls=None):
    folder.mkdir()
    (folder / FILE).write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in records))
    first_calls = good_first_calls() if first_calls is None else first_calls
    (folder / measure.FIRST_CALL_FILE).write_bytes(msgspec.json.encode(first_calls))
    return str(folder)


def only(monkeypatch, part, **changes):
    """Judge one part, without its first calls; the part."""
    chosen = next(one for one in bars.PARTS if one.name == part)._replace(**changes)
    monkeypatch.setattr(bars, "PARTS", (chosen,))
    monkeypatch.setattr(bars, "FIRST_CALL", bars.FIRST_CALL._replace(operations=()))
    return chosen


def findings(folder):
    """Those that do not hold: (what, figure, words)."""
    found = judge.findings_of(judge.read_run(Path(folder)), bars.PARTS, bars.FIRST_CALL)
    return [(one.what, one.figure, one.words) for one in found if not one.holds]


def test_the_parts_are_the_whole_suite():
    assert {case.key for part in bars.PARTS for case in part.cases} == {
        case.key for case in SUITES["speed-all"].cases()
    }
    for part in bars.PARTS:
        assert all(must.figure in figures.FIGURES for must in part.musts)
        for case in part.cases:
            assert any(must.applies(case) for must in part.musts), case.key


def test_everything_holds(tmp_path, capsys):
    folder = written(tmp_path / "a", good_records())
    assert bars.main(["judge", folder, folder]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "36 of 36 bars hold in every run"
    assert "SHORT" not in out
    assert "MISSING" not in out


def test_short_in_one_run_of_two(tmp_path, capsys, monkeypatch):
    part = only(monkeypatch, "speed-bf16")
    good = [record(case, name) for case, names in bars.jobs_of([part]) for name in names]
    slow = Case(operation="rms_norm", direction="backward", rows=1024, cols=262144)
    bad = [record(one.case, "rownorm", 0.5) if _is(one, slow) else one for one in good]
    assert sum(old != new for old, new in zip(good, bad, strict=True)) == 1
    folders = [written(tmp_path / "a", good), written(tmp_path / "b", bad)]
    assert bars.main(["judge", folders[0]]) == 0
    capsys.readouterr()

    assert bars.main(["judge", *folders]) == 1
    lines = capsys.readouterr().out.splitlines()
    cells = [line.split("  ") for line in lines if line.endswith("0.9500, 0.5000")]
    assert [[cell.strip() for cell in row if cell] for row in cells] == [
        [
            "speed-bf16",
            "rms_norm backward bf16 1024x262144",
            ">= 0.7 of the ceiling, backward, 16385 columns and more",
            "0.9500, 0.5000",
        ]
    ]
    assert any("1.0556, 0.5556" in line and ">= 1 of the fastest peer" in line for line in lines)
    (in_table,) = (line for line in lines if "0.5000 of the ceiling, not >= 0.7" in line)
    for cell in ("1024x262144", "2000", "4000", "quack 3600", "0.556", "0.500", "SHORT"):
        assert cell in in_table
    assert lines[-1] == "4 of 6 bars hold in every run"


def _is(one, case):
    return one.provider == "rownorm" and one.case.key == case.key


def test_a_bar_is_met_exactly_at_its_bound(tmp_path, monkeypatch):
    part = only(monkeypatch, "speed-fp32", suites=("speed-fp32",))
    for name, share, n_short in (("exact", 0.70, 0), ("below", 0.699, 8)):
        records = [
            record(case, provider, share if provider == "rownorm" else None)
            for case, names in bars.jobs_of([part])
            for provider in names
            if case.direction == "backward" and case.cols > 16384
        ]
        short = [one for one in findings(written(tmp_path / name, records)) if one[1] is not None]
        assert sum("of the ceiling" in words for *_, words in short) == n_short


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, "rownorm was not measured"),
        ({"status": "wrong", "why": "y is off by 9 ulp"}, "rownorm wrong: y is off by 9 ulp"),
    ],
)
def test_a_case_that_was_not_measured_is_missing(tmp_path, capsys, monkeypatch, change, words):
    part = only(monkeypatch, "few-rows")
    gone = part.cases[2]
    records = [
        record(case, name, **(change or {}))
        if name == "rownorm" and case == gone
        else record(case, name)
        for case, names in bars.jobs_of([part])
        for name in names
        if change or case != gone
    ]
    folder = written(tmp_path / "a", records)
    assert bars.main(["judge", folder]) == 1
    assert words in capsys.readouterr().out
    assert findings(folder) == [(gone.title, None, words)] * 2  # the peers, and the microseconds


def test_a_peer_that_cannot_run_a_case_is_no_peer_but_one_that_is_not_here_is_missing(
    tmp_path, monkeypatch
):
    """Nor was anybody compared with one that fails everywhere."""
    part = only(monkeypatch, "few-rows")
    first, everything = part.cases[:1], part.cases
    for status, cases, is_missing in (
        ("refused", first, False),
        ("refused", everything, False),
        ("failed", first, False),
        ("failed", everything, True),
        ("wrong", everything, True),
        ("missing", everything, True),
    ):
        records = [
            record(case, name, status=status if name == "quack" and case in cases else "ok")
            for case, names in bars.jobs_of([part])
            for name in names
        ]
        found = findings(written(tmp_path / f"{status} {len(cases)}", records))
        why_not = ["not measured: quack"] if is_missing else []
        assert [words for *_, words in found] == why_not * len(cases)


def test_variants_are_held_against_the_plain_norm_of_the_same_run(tmp_path, monkeypatch):
    part = only(monkeypatch, "variants")
    jobs = bars.jobs_of([part])
    plain = [case for case, _ in jobs if not case.pre_bias and not case.activation]
    assert len(plain) == len(part.cases) // 3

    def folder(name, share, kept):
        return written(
            tmp_path / name,
            [
                record(case, provider, share if case in plain and provider == "rownorm" else None)
                for case, names in jobs
                for provider in names
                if case in kept or case not in plain
            ],
        )

    assert findings(folder("same", 0.95 / 0.975, plain)) == []
    short = findings(folder("faster", 0.95 / 0.965, plain))
    assert len(short) == len(part.cases)
    assert short[0][2] == "0.9650 of the plain norm, not >= 0.97"
    missing = findings(folder("gone", None, plain[1:]))
    assert {words for *_, words in missing} == {"the plain norm was not measured"}
    assert len(missing) == 3


def test_memory(tmp_path, monkeypatch):
    part = only(monkeypatch, "add")
    records = [
        record(case, name, peak_bytes=figures.allowed_bytes(case) + (name == "rownorm"))
        for case, names in bars.jobs_of([part])
        for name in names
    ]
    short = findings(written(tmp_path / "a", records))
    assert len(short) == len(part.cases)
    assert all("of the memory allowed" in words for *_, words in short)


def test_what_memory_is_allowed():
    mib = 1 << 20
    forward = Case(operation="layer_norm", rows=1024, cols=1024)
    assert figures.allowed_bytes(forward) == 2 * mib + mib + 2 * 4096
    assert figures.allowed_bytes(Case(operation="rms_norm", rows=3, cols=100)) == 1024 + 512
    backward = Case(operation="rms_norm", direction="backward", rows=1024, cols=1024)
    assert figures.allowed_bytes(backward) == 2 * mib + mib + 2048 + 64 * mib + 2 * mib
    add = msgspec.structs.replace(backward, operation="add_rms_norm", residual_dtype="fp32")
    assert figures.allowed_bytes(add) == figures.allowed_bytes(backward) + 4 * mib + mib


def test_host_cost(tmp_path, monkeypatch):
    part = only(monkeypatch, "host")
    records = [
        record(case, name, host_seconds=[1.15e-5 if name == "rownorm" else 1e-5] * 3)
        for case, names in bars.jobs_of([part])
        for name in names
    ]
    short = findings(written(tmp_path / "a", records))
    assert [what for what, *_ in short] == [c.title for c in part.cases if c.direction == "forward"]
    assert short[0][2] == "1.1500 of torch's host cost, not <= 1.1"


def test_the_same_shape_in_two_parts_is_kept_apart(tmp_path, monkeypatch):
    """Few rows and host both have 8x4096 in fp16; eps tells them apart."""
    parts = [one for one in bars.PARTS if one.name in ("few-rows", "host")]
    monkeypatch.setattr(bars, "PARTS", parts)
    records = [
        record(case, name, 0.1 if name == "rownorm" and case.eps == 1e-5 else None)
        for case, names in bars.jobs_of(parts)
        for name in names
    ]
    assert findings(written(tmp_path / "a", records)) == []


def test_markdown(tmp_path, capsys, monkeypatch):
    part = only(monkeypatch, "speed-bf16")
    records = [
        record(case, name, status="refused" if name == "fla" else "ok")
        for case, names in bars.jobs_of([part])
        for name in names
        if case.cols in (256, 512)
    ]
    assert bars.main(["judge", "--markdown", written(tmp_path / "a", records)]) == 1
    lines = capsys.readouterr().out.splitlines()
    conditions = (
        "NVIDIA H200, driver 580, torch 2.11.0, triton 3.6.0, quack-kernels 0.6.5, 2026-11-15"
    )
    assert lines[1] == f"# {tmp_path / 'a'}: {conditions}"
    start = lines.index("### LayerNorm backward")
    assert lines[start - 1 : start + 6] == [
        "",
        "### LayerNorm backward",
        "",
        "| rows x columns | ceiling | rownorm | of ceiling | torch | torch.compile | Liger | QuACK "
        "| flash-linear-attention | over the fastest of them |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| 32768x256 | 4000 | 3800 | 0.95 | 800 | 3200 | 2800 | 3600 | - | 1.06 |",
        "| 32768x512 | 4000 | 3800 | 0.95 | 800 | 3200 | 2800 | 3600 | - | 1.06 |",
    ]
    assert (
        "| 1 | speed-bf16 | rownorm was not measured | 40 | rms_norm forward bf16 32768x1024 |"
        in lines
    )


def test_first_calls(tmp_path, capsys):
    calls = good_first_calls()
    calls[0].compiled["backward"].append("one more")
    calls[1].compiled["other rows"].append("f")
    found = findings(written(tmp_path / "a", good_records(), calls[:-1]))
    assert [(what, figure) for what, figure, _ in found] == [
        ("rms_norm 1000 columns", 3),
        ("rms_norm 4096 columns", 1),
        *[("layer_norm 65536 columns", None)] * 4,
    ]
    assert bars.main(["judge", str(tmp_path / "a")]) == 1
    lines = capsys.readouterr().out.splitlines()
    (row,) = (line.split() for line in lines if line.startswith("  RMSNorm 1000"))
    assert row == ["RMSNorm", "1000", "1", "1", "3", "0", "SHORT"]
    (tmp_path / "a" / measure.FIRST_CALL_FILE).write_text("[{")
    with pytest.raises(ValueError, match="damaged"):
        judge.read_run(tmp_path / "a")


COMPILE_TWICE = """
import sys
sys.path.insert(0, sys.argv[1])
import json, triton, triton.language as tl
from first_call import compilations
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def nothing(x_ptr, N: tl.constexpr):
    tl.store(x_ptr, N)

def compile(n):
    source = ASTSource(nothing, {"x_ptr": "*i32", "N": "constexpr"}, {(1,): n})
    triton.compile(source, target=GPUTarget("cuda", 90, 32))

counted = []
for n in (1, 1, 2):
    with compilations() as names:
        compile(n)
    counted.append(names)
compile(3)  # nobody counts
print(json.dumps(counted))
"""


def test_compilations_are_counted_by_triton(tmp_path):
    script = tmp_path / "twice.py"
    script.write_text(COMPILE_TWICE)
    variables = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, script, BENCHMARKS], env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["nothing"], [], ["nothing"]]


SMALL = [
    (Case(operation="layer_norm", dtype="fp32", rows=8, cols=cols), ("rownorm", "torch", "ceiling"))
    for cols in (64, 96)
]


def test_measure_goes_on_where_it_ended(tmp_path, capsys, monkeypatch, without_interpreter):
    monkeypatch.setattr("rownorm.lab.measure.timing.CPU_ROUND", 2e-5)
    folder = tmp_path / "a"
    measure.measure(folder, SMALL, rounds=2, workers=0)
    first = read(folder).records
    assert [one.key for one in first] == [
        (case.key, name) for case, names in SMALL for name in names
    ]
    assert all(one.status == "ok" and len(one.seconds) == 2 for one in first)
    lines = (folder / FILE).read_bytes().splitlines(keepends=True)
    (folder / FILE).write_bytes(b"".join(lines[:4]) + lines[4][:20])  # killed while it was writing

    measure.measure(folder, SMALL, rounds=1, workers=0)
    again = read(folder).records
    assert again[:4] == first[:4]
    assert [one.key for one in again[4:]] == [(SMALL[1][0].key, name) for name in SMALL[1][1]]
    assert len({one.run for one in again[4:]}) == 1

    measure.measure(folder, SMALL, rounds=1, workers=0)
    assert read(folder).records == again
    assert "2 cases, 0 of them to be measured" in capsys.readouterr().out


@pytest.fixture
def plant(monkeypatch, without_interpreter):
    """Add a provider, or put one in the place of another, for this test."""
    providers.all_providers()
    monkeypatch.setattr(providers, "_registry", dict(providers._registry))

    def planted(name, make, **options):
        providers.provider(name, about="planted", **options)(make)

    return planted


def layer_norm(case, t):
    return lambda: rownorm.layer_norm(t.x, t.weight, t.bias, eps=case.eps)


def test_a_case_is_on_the_disk_before_the_next_one_begins(tmp_path, monkeypatch, plant):
    monkeypatch.setattr("rownorm.lab.measure.timing.CPU_ROUND", 2e-5)

    def dies(case, t):
        if case.cols == SMALL[1][0].cols:
            raise KeyboardInterrupt
        return layer_norm(case, t)

    plant("dies", dies)
    jobs = [(case, ("rownorm", "dies")) for case, _ in SMALL]
    with pytest.raises(KeyboardInterrupt):
        measure.measure(tmp_path / "a", jobs, rounds=1, workers=0)
    kept = [one.key for one in read(tmp_path / "a").records]
    assert kept == [(SMALL[0][0].key, name) for name in ("rownorm", "dies")]


def test_no_case_begins_after_the_limit(tmp_path, capsys, monkeypatch, plant):
    monkeypatch.setattr("rownorm.lab.measure.timing.CPU_ROUND", 2e-5)
    eager, clock, threads = providers.all_providers()["torch"].make, time.monotonic(), []

    def lasts(case, t):
        nonlocal clock
        clock += 1
        threads.append(torch._inductor.config.compile_threads)
        return eager(case, t)

    plant("torch", lasts, options=providers.EVERY_OPTION)
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    command = ["measure", "--out", str(tmp_path / "a"), "--part", "host", "--rounds", "1"]
    assert bars.main([*command, "--limit-s", "1"]) == 3
    assert (
        "Stopped after 1 s, 3 cases are left; the same command goes on." in capsys.readouterr().out
    )
    first = read(tmp_path / "a").records
    assert [one.provider for one in first] == ["rownorm", "torch"]
    assert bars.main(command) == 0
    again = read(tmp_path / "a").records
    assert again[:2] == first
    assert len({one.case.key for one in again}) == 4
    assert len(again) == 8
    assert set(threads) == {1}  # nothing compiles beside what is measured


def test_some_of_the_providers(tmp_path, capsys, monkeypatch, without_interpreter):
    monkeypatch.setattr("rownorm.lab.measure.timing.CPU_ROUND", 2e-5)
    everything = bars.jobs_of(bars.PARTS)
    quick = bars.jobs_of(bars.PARTS, ("rownorm", "ceiling"))
    assert [case for case, _ in quick] == [case for case, _ in everything]
    assert {names for _, names in quick} == {("rownorm", "ceiling"), ("rownorm",)}
    assert bars.jobs_of(bars.PARTS, ("fla",)) == [
        (case, ("fla",)) for case, names in everything if "fla" in names
    ]
    command = ["measure", "--out", str(tmp_path / "a"), "--part", "host", "--rounds", "1"]
    assert bars.main([*command, "--provider", "rownorm"]) == 0
    assert {one.provider for one in read(tmp_path / "a").records} == {"rownorm"}
    capsys.readouterr()
    only(monkeypatch, "host")
    assert bars.main(["judge", str(tmp_path / "a")]) == 1
    assert "torch was not measured" in capsys.readouterr().out


def test_a_provider_that_was_named_has_to_be_there(tmp_path, capsys, monkeypatch, plant):
    """Else hours of measurements would lack it, and bars would hold that were not put to the test."""
    monkeypatch.setattr("rownorm.lab.measure.timing.CPU_ROUND", 2e-5)

    def is_broken(case, t):
        raise ImportError("no libmissing.so")

    plant("torch", is_broken, options=providers.EVERY_OPTION)
    command = ["measure", "--part", "host", "--rounds", "1", "--out"]
    named = ["--provider", "rownorm", "torch"]
    assert bars.main([*command, str(tmp_path / "a"), *named]) == 1
    assert "Stopped: torch cannot be imported: no libmissing.so" in capsys.readouterr().err
    assert len(read(tmp_path / "a").records) == 2  # of the first case
    assert bars.main([*command, str(tmp_path / "b")]) == 0  # whoever is there
    assert len(read(tmp_path / "b").records) == 8
    only(monkeypatch, "host")
    assert bars.main(["judge", str(tmp_path / "b")]) == 1
    assert "torch missing: cannot be imported: no libmissing.so" in capsys.readouterr().out


def test_the_order_of_the_parts_is_fair_to_peers():
    order = [part.name for part in bars.PARTS]
    assert order.index("few-rows") > order.index("speed-fp16")  # fla chooses once for both
    by_key = {case.key: names for case, names in bars.jobs_of(bars.PARTS)}
    (variants,) = (part for part in bars.PARTS if part.name == "variants")
    for case in variants.cases:
        assert by_key[judge.plain_of(case).key] == ("rownorm", *bars.EVERYONE)


def test_what_is_left_to_measure(plant):
    needs = ("a_module_that_is_not_there",)
    plant("absent", lambda case, t: lambda: t.x, needs=needs)
    (one, names), (other, _) = SMALL
    done = [record(case, name) for case in (one, other) for name in names]
    assert measure.unfinished(SMALL, done) == []
    lost = [record(other, "rownorm", status="failed", why="device lost"), *done[:3], *done[4:]]
    assert measure.unfinished(SMALL, lost) == [SMALL[1]]
    assert measure.unfinished([(one, (*names, "absent"))], done) == []
    assert measure.unfinished([(one, names)], done[1:]) == [SMALL[0]]
    there_now = [*done[:2], record(one, "ceiling", status="missing")]
    assert measure.unfinished([(one, names)], there_now) == [SMALL[0]]
    assert measure.unfinished([(one, ("torch",))], done[1:2]) == []  # rownorm was not asked for


def test_caches_are_filled_by_other_processes(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    old, new = tmp_path / "old.best_config", tmp_path / "aa" / "new.best_config"
    new.parent.mkdir()
    for file in (old, new, tmp_path / "kernel.py"):
        file.touch()
    os.utime(old, (time.time() - 60,) * 2)
    wide = Case(operation="rms_norm", dtype="fp32", rows=1 << 40, cols=1 << 20)
    measure.fill_caches([SMALL[0], (wide, ("rownorm",))], workers=1)
    out = capsys.readouterr().out
    assert "while compiling: rownorm, rms_norm forward fp32" in out
    # What was chosen while others ran is forgotten; what was there before is not.
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "aa",
        "kernel.py",
        "old.best_config",
    ]
    assert not list(new.parent.iterdir())
    assert "FLA_CACHE_RESULTS" not in os.environ


def test_who_compiles_and_who_measures_have_one_cache(tmp_path, monkeypatch):
    """torch.compile would give Triton another one, in the process that it runs in."""
    from triton import knobs

    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    there, seen = knobs.cache.dir, []

    def look(*_, **__):
        seen.append(os.environ["TRITON_CACHE_DIR"])
        return iter(())

    monkeypatch.setattr(measure, "fill_caches", look)
    monkeypatch.setattr(measure, "bench", look)
    assert measure.measure(tmp_path / "a", SMALL, rounds=1, workers=2) == 2
    assert seen == [there] * 2
    assert "TRITON_CACHE_DIR" not in os.environ


def test_the_slowest_to_compile_come_first():
    narrow, wide = (Case(operation="rms_norm", rows=8, cols=cols) for cols in (64, 128))
    backward = Case(operation="rms_norm", direction="backward", rows=8, cols=64)
    cases = (narrow, wide, backward)
    pairs = [(case, name) for name in ("quack", "fla") for case in cases]
    assert sorted(pairs, key=measure.slowest_to_compile_first) == [
        (case, name) for name in ("fla", "quack") for case in (backward, wide, narrow)
    ]


def test_who_only_compiles_compares_nothing(monkeypatch):
    monkeypatch.setattr("triton.testing.do_bench", None)  # restored afterwards
    measure.compare_nothing()
    calls = []
    assert triton.testing.do_bench(lambda: calls.append(1), quantiles=(0.5, 0.2, 0.8)) == [0.0] * 3
    assert triton.testing.do_bench(lambda: calls.append(1), warmup=25, rep=100) == 0.0
    assert len(calls) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton compares on a GPU only")
def test_every_setting_is_compiled_though_nothing_is_compared(monkeypatch):
    monkeypatch.setattr("triton.testing.do_bench", None)
    measure.compare_nothing()
    ran = []

    @triton.autotune([triton.Config({"N": n}) for n in (1, 2, 4)], key=[])
    @triton.jit
    def store(x_ptr, N: tl.constexpr):
        tl.store(x_ptr, N)

    store.pre_hook = lambda arguments, **_: ran.append(arguments["N"])
    store[(1,)](torch.zeros(1, dtype=torch.int32, device="cuda"))
    assert sorted(set(ran)) == [1, 2, 4]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["measure", "--out", "new", "--provider", "nobody"], "invalid choice: 'nobody'"),
        (["measure", "--out", "new", "--limit-s", "0"], "must be at least 1; got 0"),
        (["measure", "--out", "new", "--part", "speed"], "invalid choice: 'speed'"),
        (["measure", "--out", "new", "--rounds", "0"], "must be at least 1; got 0"),
        (["measure", "--out", "."], "is not empty and holds no measurements"),
        (["judge", "nowhere"], "nowhere holds no measurements"),
    ],
)
def test_errors_of_the_user(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        bars.main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_folder_of_another_device_is_not_gone_on_with(tmp_path, capsys):
    folder = written(tmp_path / "a", [record(SMALL[0][0], "rownorm")])
    with pytest.raises(SystemExit):
        bars.main(["measure", "--out", folder, "--part", "seed"])
    assert "was measured on NVIDIA H200; this is" in capsys.readouterr().err
