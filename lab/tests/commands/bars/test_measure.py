"""Measuring the bars: a small real run on this machine, resumed, limited and interrupted."""

import os
import time

import msgspec
import pytest
import torch
import triton
import triton.language as tl
import triton.testing

import rownorm
from lab_support.bars_records import H200, only, record, write_run
from lab_support.lab_commands import invoke
from rownorm_lab import providers
from rownorm_lab.commands.bars import bars, measure, settings
from rownorm_lab.data.case import Case
from rownorm_lab.data.records import FILE, read

pytestmark = pytest.mark.usefixtures("short_rounds")

SMALL = [
    (Case(operation="layer_norm", dtype="fp32", rows=8, cols=cols), ("rownorm", "torch", "ceiling"))
    for cols in (64, 96)
]


def test_a_run_is_resumed(tmp_path, capsys, without_interpreter):
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


def layer_norm(case, t):
    return lambda: rownorm.layer_norm(t.x, t.weight, t.bias, eps=case.eps)


def test_a_case_is_on_the_disk_before_the_next_one_starts(tmp_path, add_provider):

    def dies(case, t):
        if case.cols == SMALL[1][0].cols:
            raise KeyboardInterrupt
        return layer_norm(case, t)

    add_provider("dies", dies)
    jobs = [(case, ("rownorm", "dies")) for case, _ in SMALL]
    with pytest.raises(KeyboardInterrupt):
        measure.measure(tmp_path / "a", jobs, rounds=1, workers=0)
    kept = [one.key for one in read(tmp_path / "a").records]
    assert kept == [(SMALL[0][0].key, name) for name in ("rownorm", "dies")]


def test_no_case_starts_after_the_limit(tmp_path, monkeypatch, add_provider):
    eager, clock, threads = providers.all_providers()["torch"].make, time.monotonic(), []

    def lasts(case, t):
        nonlocal clock
        clock += 1
        threads.append(torch._inductor.config.compile_threads)
        return eager(case, t)

    add_provider("torch", lasts, options=providers.EVERY_OPTION)
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    command = ["bars", "measure", "--out", tmp_path / "a", "--part", "host", "--rounds", "1"]
    ran = invoke(*command, "--limit-s", "2")  # one second passes while torch is tried
    assert ran.exit_code == 3, ran.output
    assert "Stopped after 2 s, 3 cases are left; the same command resumes the run." in ran.output
    first = read(tmp_path / "a").records
    assert [one.provider for one in first] == ["rownorm", "torch"]
    assert invoke(*command).exit_code == 0
    again = read(tmp_path / "a").records
    assert again[:2] == first
    assert len({one.case.key for one in again}) == 4
    assert len(again) == 8
    assert set(threads) == {1}  # no compile workers during the measurement


def test_some_of_the_providers(tmp_path, monkeypatch, without_interpreter):
    everything = bars.jobs_of(bars.PARTS)
    quick = bars.jobs_of(bars.PARTS, ("rownorm", "ceiling"))
    assert [case for case, _ in quick] == [case for case, _ in everything]
    with_add = ("rownorm", "rownorm add")  # training steps
    with_plain = ("rownorm", "rownorm plain")  # calls of forms
    alone = {("rownorm", "ceiling"), ("rownorm",)}
    assert {names for _, names in quick} == alone | {with_add, with_plain}
    assert bars.jobs_of(bars.PARTS, ("fla",)) == [
        (case, ("fla",)) for case, names in everything if "fla" in names
    ]
    command = ["bars", "measure", "--out", tmp_path / "a", "--part", "host", "--rounds", "1"]
    assert invoke(*command, "--provider", "rownorm").exit_code == 0
    assert {one.provider for one in read(tmp_path / "a").records} == {"rownorm"}
    only(monkeypatch, "host")
    ran = invoke("bars", "judge", tmp_path / "a")
    assert ran.exit_code == 1
    assert "torch was not measured" in ran.output


@pytest.mark.parametrize("named", [[], ["--provider", "rownorm,torch"]], ids=["default", "named"])
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ImportError("no libmissing.so"), "torch: cannot be imported: no libmissing.so"),
        (
            RuntimeError("no cutlass_dsl"),
            "torch: a small call failed: RuntimeError: no cutlass_dsl",
        ),
    ],
    ids=["import", "call"],
)
def test_a_provider_that_does_not_work_stops_before_anything_is_measured(
    tmp_path, add_provider, named, error, words
):
    def is_broken(case, t):
        def call():
            raise error

        return call

    add_provider("torch", is_broken, options=providers.EVERY_OPTION)
    command = ["bars", "measure", "--part", "host", "--rounds", "1", "--out", tmp_path / "a"]
    ran = invoke(*command, *named)
    assert ran.exit_code == 1
    assert words in ran.output
    assert "To measure without it: --provider rownorm" in ran.output
    assert not (tmp_path / "a").exists()
    assert invoke(*command, "--provider", "rownorm").exit_code == 0


def test_a_provider_that_is_not_installed_must_be_if_it_is_named(
    tmp_path, monkeypatch, add_provider
):
    absent = {"needs": ("surely_not_installed",), "package": "surely"}
    add_provider("torch", layer_norm, options=providers.EVERY_OPTION, **absent)
    command = ["bars", "measure", "--part", "host", "--rounds", "1", "--out"]
    ran = invoke(*command, tmp_path / "a", "--provider", "rownorm,torch")
    assert ran.exit_code == 1
    assert "torch: surely_not_installed is not installed; pip install surely" in ran.output
    ran = invoke(*command, tmp_path / "b")
    assert ran.exit_code == 0
    assert "Without torch, which the bars need: surely_not_installed is not" in ran.output
    assert len(read(tmp_path / "b").records) == 8
    only(monkeypatch, "host")
    ran = invoke("bars", "judge", tmp_path / "b")
    assert ran.exit_code == 1
    assert "torch missing: surely_not_installed is not installed" in ran.output


def test_a_provider_that_fails_later_stops_the_run(tmp_path, add_provider):
    """A named one. Otherwise hours of measurements would lack it."""

    def is_broken(case, t):
        raise ImportError("no libmissing.so")

    add_provider("torch", is_broken, options=providers.EVERY_OPTION)
    with pytest.raises(
        measure.ProviderMissing, match=r"torch cannot be imported: no libmissing.so"
    ):
        measure.measure(tmp_path / "a", SMALL, 1, workers=0, required=["torch"])
    assert len(read(tmp_path / "a").records) == 3  # of the first case


def test_what_is_left_to_measure(add_provider):
    needs = ("a_module_that_is_not_there",)
    add_provider("absent", lambda case, t: lambda: t.x, needs=needs)
    (one, names), (other, _) = SMALL
    done = [record(case, name) for case in (one, other) for name in names]
    assert measure.unfinished(SMALL, done) == []
    lost = [record(other, "rownorm", status="failed", why="device lost"), *done[:3], *done[4:]]
    assert measure.unfinished(SMALL, lost) == [SMALL[1]]
    assert measure.unfinished([(one, (*names, "absent"))], done) == []
    assert measure.unfinished([(one, names)], done[1:]) == [SMALL[0]]
    there_now = [*done[:2], record(one, "ceiling", status="missing")]
    assert measure.unfinished([(one, names)], there_now) == [SMALL[0]]
    assert measure.unfinished([(one, ("torch",))], done[1:2]) == []  # rownorm was not requested


def test_an_option_is_measured_again_with_its_plain_norm():
    plain, names = SMALL[0]
    option = msgspec.structs.replace(plain, activation="silu")
    jobs = [(plain, names), (option, names)]
    done = [record(case, name) for case, _ in jobs for name in names]
    assert measure.unfinished(jobs, done) == []
    assert measure.unfinished(jobs, done[len(names) :]) == jobs
    assert measure.unfinished(jobs, done[: len(names)]) == jobs[1:]


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
    # Choices made on the busy device are deleted, older ones are not.
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "aa",
        "kernel.py",
        "old.best_config",
    ]
    assert not list(new.parent.iterdir())
    assert "FLA_CACHE_RESULTS" not in os.environ


def test_compiling_and_measuring_share_one_cache_and_one_assembler(tmp_path, monkeypatch):
    """torch.compile would set another Triton cache and another ptxas in its process."""
    from triton import knobs

    names = ("TRITON_CACHE_DIR", "TRITON_PTXAS_PATH")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    there, seen = (knobs.cache.dir, knobs.nvidia.ptxas.path), []

    def look(*_, **__):
        seen.append(tuple(os.environ[name] for name in names))
        return iter(())

    monkeypatch.setattr(measure, "fill_caches", look)
    monkeypatch.setattr(measure, "bench", look)
    assert measure.measure(tmp_path / "a", SMALL, rounds=1, workers=2) == 2
    assert seen == [there] * 2
    assert not set(names) & set(os.environ)


def test_the_slowest_to_compile_come_first():
    narrow, wide = (Case(operation="rms_norm", rows=8, cols=cols) for cols in (64, 128))
    backward = Case(operation="rms_norm", direction="backward", rows=8, cols=64)
    cases = (narrow, wide, backward)
    pairs = [(case, name) for name in ("quack", "fla") for case in cases]
    assert sorted(pairs, key=measure.slowest_to_compile_first) == [
        (case, name) for name in ("fla", "quack") for case in (backward, wide, narrow)
    ]


def test_models_and_forms_are_compiled_in_advance():
    """Of the cases in a setting: those that torch.compile compiles, with both providers, and rownorm's forms."""
    compiled, eager = (settings.dit_cases()[number] for number in (2, 0))
    assert (compiled.setting, eager.setting) == ("DiT step, compiled", "DiT step, bf16")
    assert all(measure.compiles(compiled, name) for name in ("torch", "rownorm"))
    assert measure.compiles(eager, "rownorm")
    assert not measure.compiles(eager, "torch")
    assert not measure.compiles(settings.step_cases()[0], "rownorm")
    case = settings.form_cases(tiny=True)[0]
    assert measure.compiles(case, "rownorm")
    assert measure.slowest_to_compile_first((compiled, "torch")) < measure.slowest_to_compile_first(
        (Case(operation="rms_norm", rows=8, cols=65536), "fla")
    )
    assert [measure.compile_pair(case, name) for name in ("rownorm", settings.PLAIN)] == ["", ""]
    assert "no such" in measure.compile_pair(msgspec.structs.replace(case, cols=16), "no such")


def test_a_process_that_compiles_does_not_autotune(monkeypatch):
    monkeypatch.setattr("triton.testing.do_bench", None)  # restored afterwards
    measure.disable_autotuning()
    calls = []
    assert triton.testing.do_bench(lambda: calls.append(1), quantiles=(0.5, 0.2, 0.8)) == [0.0] * 3
    assert triton.testing.do_bench(lambda: calls.append(1), warmup=25, rep=100) == 0.0
    assert len(calls) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton autotunes on a GPU only")
def test_every_setting_is_compiled_without_autotuning(monkeypatch):
    monkeypatch.setattr("triton.testing.do_bench", None)
    measure.disable_autotuning()
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
        (["measure", "--out", "new", "--provider", "nobody"], "unknown provider 'nobody'"),
        (["measure", "--out", "new", "--limit-s", "0"], "x>=1"),
        (["measure", "--out", "new", "--part", "speed"], "unknown part 'speed'"),
        (["measure", "--out", "new", "--rounds", "0"], "x>=1"),
        (["measure", "--out", "."], "is not empty and holds no measurements"),
        (["judge", "nowhere"], "nowhere holds no measurements"),
        (["publish", "nowhere", "--out", "pages"], "nowhere holds no measurements"),
    ],
)
def test_usage_errors(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    ran = invoke("bars", *arguments)
    assert ran.exit_code == 2
    assert words in ran.output
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_without_a_gpu_it_says_that_it_needs_one(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ran = invoke("bars", "measure", "--out", tmp_path / "new")
    assert ran.exit_code == 2
    assert "torch sees no GPU" in ran.output
    assert not (tmp_path / "new").exists()


def test_a_run_of_another_device_is_not_resumed(tmp_path):
    another = msgspec.structs.replace(H200, device="NVIDIA A100")
    one = record(SMALL[0][0], "rownorm", environment=another)
    ran = invoke("bars", "measure", "--out", write_run(tmp_path / "a", [one]), "--part", "host")
    assert ran.exit_code == 2
    assert "was measured on NVIDIA A100; this is" in ran.output
