"""Benchmarks on the CPU: the check before timing, the order of timing, and providers that fail."""

import gc
import random
import weakref

import msgspec
import pytest
import torch

import rownorm
from rownorm_lab import providers
from rownorm_lab.data.case import Case
from rownorm_lab.data.records import Record
from rownorm_lab.measure import bench as bench_module
from rownorm_lab.measure import machine
from rownorm_lab.measure.bench import bench
from rownorm_lab.providers import Refusal, by_autograd, data, provider

CASE = Case(operation="rms_norm", rows=8, cols=64, dtype="fp32")
TRAINING = Case(operation="add_layer_norm", direction="both", rows=8, cols=64, dtype="bf16")


@pytest.fixture(autouse=True)
def cpu_path(monkeypatch, without_interpreter):
    """Without the interpreter, and without thousands of calls in a round."""
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr("rownorm_lab.measure.timing.CPU_ROUND", 2e-5)
    providers.all_providers()
    monkeypatch.setattr(providers, "_registry", dict(providers._registry))


def add_provider(name, make, **options):
    provider(name, about="of a test", **options)(make)


def run(cases, names, **options):
    options = {"rounds": 3, "device": "cpu", "run": "test"} | options
    return {(one.case.key, one.provider): one for one in bench(cases, names, **options)}


def one(case, name, **options):
    return run([case], [name], **options)[case.key, name]


def right(case, t):
    return by_autograd(case, t, lambda: rownorm.rms_norm(t.x, t.weight, eps=case.eps))


@pytest.mark.parametrize("case", [CASE, TRAINING], ids=["forward", "training"])
def test_records_of_a_case(case):
    names = ["rownorm", "torch", "ceiling"]
    records = run([case], names)
    assert list(records) == [(case.key, name) for name in names]
    for name in names:
        record = records[case.key, name]
        assert record.status == "ok", record.why
        assert record.why == ""
        assert len(record.seconds) == record.method.rounds == 3
        assert all(0 < seconds < 1 for seconds in record.seconds)
        assert record.method.timer == "cpu_clock"
        assert record.method.calls >= record.method.rotation >= 2
        assert record.environment.kind == "cpu"
        assert record.host_seconds == []
        assert record.peak_bytes >= case.rows * case.cols * (2 if case.dtype == "bf16" else 4)
        assert record.run == "test"
        assert (record.accuracy is None) == (name == "ceiling")
        assert msgspec.json.decode(msgspec.json.encode(record), type=Record) == record


def changes_its_input(case, t):
    def call():
        y = rownorm.rms_norm(t.x, t.weight, eps=case.eps)
        t.x[0, 0] += 1
        return y

    return call


def refuses(case, t):
    raise Refusal("not on a Sunday")


def raises(case, t):
    def call():
        raise RuntimeError("the first line\nand a second")

    return call


def is_broken(case, t):
    raise ImportError("libmissing.so: cannot open shared object file")


def is_missing(case, t):
    raise AssertionError("never asked")


FAULTY = {
    "off by one percent": (lambda case, t: lambda: 1.01 * right(case, t)(), "wrong", "y is off by"),
    "nan": (lambda case, t: lambda: right(case, t)() * torch.nan, "wrong", "not finite"),
    "dtype": (lambda case, t: lambda: right(case, t)().half(), "wrong", "y is float16"),
    "shape": (lambda case, t: lambda: right(case, t)().T, "wrong", "y has shape (64, 8)"),
    "changes": (changes_its_input, "wrong", "changed its input x"),
    "refuses": (refuses, "refused", "not on a Sunday"),
    "raises": (raises, "failed", "RuntimeError: the first line"),
    "broken": (is_broken, "missing", "cannot be imported: libmissing.so"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_provider_is_not_timed(name):
    make, status, why = FAULTY[name]
    add_provider(name, make)
    records = run([CASE], [name, "rownorm"])
    record = records[CASE.key, name]
    assert record.status == status
    assert why in record.why
    assert "\n" not in record.why
    assert record.seconds == []
    assert record.method is None
    assert records[CASE.key, "rownorm"].status == "ok"  # the others are none the worse for it


def test_a_provider_that_changes_its_input_does_not_affect_the_others():
    """Autograd rejects saved tensors that were modified."""

    def meddler(case, t):
        with torch.no_grad():
            t.x.mul_(2)
            t.weight.add_(1)
        return lambda: torch.zeros_like(t.x)

    add_provider("meddler", meddler)
    records = run([TRAINING], ["rownorm", "meddler", "torch"])
    assert {name: record.status for (_, name), record in records.items()} == {
        "rownorm": "ok",
        "meddler": "wrong",
        "torch": "ok",
    }
    assert records[TRAINING.key, "meddler"].why == "changed its input x"


def test_a_wrong_result_keeps_its_figures():
    add_provider("half", lambda case, t: lambda: 0.5 * right(case, t)())
    record = one(CASE, "half")
    assert record.accuracy.worst == "y"
    assert record.accuracy.max_error > 0.5


def test_missing_and_refused_before_anything_runs():
    add_provider("absent", is_missing, needs=("surely_not_installed",), package="surely")
    add_provider("forward", is_missing, directions=("forward",))
    add_provider("gpu", is_missing, needs_gpu=True)
    records = run([TRAINING], ["absent", "forward", "gpu"])
    assert {record.status for record in records.values()} == {"missing", "refused"}
    assert records[TRAINING.key, "absent"].why.endswith("pip install surely")
    assert records[TRAINING.key, "forward"].why == "forward has no backward pass"
    assert records[TRAINING.key, "gpu"].why == "needs a GPU"


def test_a_provider_may_fail_during_a_round():
    """After the check has passed."""
    calls = []

    def later(case, t):
        def call():
            calls.append(1)
            if len(calls) > 20:
                raise MemoryError
            return rownorm.rms_norm(t.x, t.weight, eps=case.eps)

        return call

    add_provider("later", later)
    record = one(CASE, "later", rounds=50)
    assert (record.status, record.why) == ("failed", "MemoryError")
    assert record.seconds == []
    assert record.accuracy is not None  # it was right while it ran


def test_out_of_memory_is_recorded_in_words():
    def hungry(case, t):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB...")

    add_provider("hungry", hungry)
    record = one(CASE, "hungry")
    assert (record.status, record.why) == ("failed", "out of memory on the device")


def test_inputs_that_do_not_fit_fail_every_provider(monkeypatch):
    def rotation(*args, **options):
        raise RuntimeError("not enough memory: you tried to allocate 99 bytes")

    monkeypatch.setattr(data, "rotation", rotation)
    records = run([CASE], ["rownorm", "torch"])
    assert {record.status for record in records.values()} == {"failed"}
    assert all("not enough memory" in record.why for record in records.values())


def test_providers_are_timed_in_random_order():
    order = []

    def named(name):
        def make(case, t):
            call = right(case, t)
            return lambda: (order.append(name), call())[1]

        return make

    names = ["a", "b", "c"]
    for name in names:
        add_provider(name, named(name))
    records = run([CASE], names, rounds=12)
    calls = records[CASE.key, "a"].method.calls
    turns = order[-12 * 3 * calls :: calls]
    rounds = [turns[i : i + 3] for i in range(0, len(turns), 3)]
    assert all(sorted(each) == names for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1
    again = list(order)
    order.clear()
    run([CASE], names, rounds=12)
    assert order == again  # the seed decides
    order.clear()
    run([CASE], names, rounds=12, seed=1)
    assert order != again


def test_a_budget_cuts_rounds_short():
    record = one(CASE, "rownorm", rounds=1000, budget_s=0.0)
    assert len(record.seconds) == bench_module.FEWEST_ROUNDS


def test_finished_pairs_are_left_out():
    other = Case(operation="rms_norm", rows=4, cols=32, dtype="fp32")
    done = {(CASE.key, "rownorm"), (CASE.key, "torch"), (other.key, "torch")}
    assert list(run([CASE, other], ["rownorm", "torch"], done=done)) == [(other.key, "rownorm")]


def test_interrupting_keeps_the_cases_that_are_finished():
    def interrupted(case, t):
        if case.rows == 4:
            raise KeyboardInterrupt
        return right(case, t)

    add_provider("interrupted", interrupted)
    cases = [Case(operation="rms_norm", rows=rows, cols=32, dtype="fp32") for rows in (8, 4, 2)]
    records = bench(cases, ["interrupted"], run="test", device="cpu", rounds=3)
    assert next(records).case == cases[0]
    with pytest.raises(KeyboardInterrupt):
        next(records)


def test_progress():
    steps = []
    other = Case(operation="rms_norm", rows=4, cols=32, dtype="fp32")
    run([CASE, other], ["rownorm", "torch"], on_step=steps.append)
    assert {step.total for step in steps} == {4}
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert {step.done for step in steps} == {0, 2}
    doing = [(step.provider, step.doing) for step in steps if step.case == CASE]
    assert doing == [
        ("rownorm", "checking"),
        ("torch", "checking"),
        ("rownorm", "preparing"),
        ("torch", "preparing"),
        ("", "timing"),
    ]


def test_unknown_names():
    with pytest.raises(ValueError, match="unknown provider 'rownrom'; known: rownorm, "):
        next(bench([CASE], ["rownrom"], run="test"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_absent_device_is_an_error():
    with pytest.raises(ValueError, match="'cuda' was requested, but torch sees no GPU"):
        next(bench([CASE], ["rownorm"], run="test", device="cuda"))


def test_the_interpreter_is_suspect(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    record = one(CASE, "rownorm")
    assert any("interpreter" in reason for reason in record.suspect)


def test_cold_only_if_the_inputs_exceed_the_cache():
    here = machine.machine_of("cpu", [])._replace(cache=1 << 12)
    size = here.round_size(CASE)
    assert here.cold(CASE, size)
    large = here._replace(cache=1 << 30)
    assert not large.cold(CASE, large.round_size(CASE))


def test_reference_cycles_are_freed_after_each_case():
    """On a GPU they can hold gigabytes."""
    left = []

    def cyclic(case, t):
        holder = {"x": t.x}
        holder["self"] = holder
        left.append(weakref.ref(t.x))
        return lambda: (holder, right(case, t)())[1]

    add_provider("cyclic", cyclic)
    other = Case(operation="rms_norm", rows=4, cols=32, dtype="fp32")
    records = bench([CASE, other], ["cyclic"], run="test", device="cpu", rounds=1)
    gc.disable()
    try:
        for _ in (CASE, other):
            next(records)
            assert left
            assert not any(x() is not None for x in left)
            assert gc.get_freeze_count()  # so that the next search is short
        records.close()
    finally:
        gc.enable()
    assert not gc.get_freeze_count()


@pytest.mark.parametrize(
    ("slowest", "calls", "rounds"),
    [(1e-3, 5, bench_module.HOST_ROUNDS), (2e-5, 64, bench_module.SMALL_CASE_HOST_ROUNDS)],
    ids=["long", "brief"],
)
def test_all_providers_make_the_same_number_of_host_calls(slowest, calls, rounds, monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)  # there is nothing to wait for
    counted = {"quick": 0, "slow": 0}
    measurements = []
    for name, seconds in (("quick", [1e-5] * 3), ("slow", [9.0, slowest, slowest])):
        add_provider(name, None)
        one = bench_module.Measurement(providers.all_providers()[name])
        one.seconds = seconds
        one.calls = [lambda name=name: counted.update({name: counted[name] + 1})]
        measurements.append(one)
    bench_module._time_host(measurements, random.Random(0))
    assert counted == {"quick": calls * rounds, "slow": calls * rounds}
    assert [len(one.host_seconds) for one in measurements] == [rounds] * 2


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="measures a GPU")


@needs_gpu
@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
@pytest.mark.parametrize("operation", ["layer_norm", "add_rms_norm"])
def test_on_a_gpu(operation, direction):
    case = Case(operation=operation, direction=direction, rows=512, cols=1024, dtype="bf16")
    names = ["rownorm", "torch", "ceiling"]
    for record in run([case], names, device="cuda", rounds=5).values():
        assert record.status == "ok", record.why
        assert record.method.timer == "cuda_graph"
        assert record.method.cold
        assert len(record.host_seconds) == bench_module.SMALL_CASE_HOST_ROUNDS
        assert record.peak_bytes >= case.rows * case.cols * 2
        assert 1e-7 < min(record.seconds) < 1e-3


def test_a_case_larger_than_memory_is_not_started():
    """A CPU would grant the memory page by page until the process is killed."""
    case = Case(operation="rms_norm", rows=1 << 30, cols=1 << 20)
    (made,) = bench([case], ["torch"], run="one")
    assert made.status == "failed"
    assert "MemoryError: needs" in made.why
    assert "; the device has" in made.why
