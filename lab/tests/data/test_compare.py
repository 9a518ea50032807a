"""Comparisons of made-up runs whose differences are known."""

import math
import random

import pytest

from rownorm_lab.data.case import Case
from rownorm_lab.data.compare import changes, compare, differences, rounds_needed
from rownorm_lab.data.records import Environment, Method, Record

HERE = Environment(device="NVIDIA H200", kind="cuda")
METHOD = Method(timer="cuda_graph", rotation=3, calls=20, rounds=15, cold=True)


def record(provider, seconds, cols=256, run="r", **fields):
    case = Case(operation="rms_norm", rows=8, cols=cols)
    given = {"environment": HERE, "method": METHOD, "status": "ok"} | fields
    return Record(case=case, provider=provider, seconds=seconds, run=run, **given)


def run(seed, factor, *, drift=0.0, noise=0.005, cols=256, ceiling=True):
    """A run of 15 rounds in which rownorm takes ``factor`` times the ceiling's time."""
    chance = random.Random(seed)
    common = [1e-6 * (1 + chance.uniform(0, drift)) for _ in range(15)]

    def times(of):
        return [of * c * (1 + chance.gauss(0, noise)) for c in common]

    records = [record("rownorm", times(factor), cols)]
    return records + ([record("ceiling", times(1.0), cols)] if ceiling else [])


def suite(seed, factor, cases=12, **options):
    """``run`` of several cases."""
    return [
        one for n in range(cases) for one in run(f"{seed} {n}", factor, cols=256 + n, **options)
    ]


def verdicts(base, new, **options):
    return [one.verdict for one in compare(base, new, **options).comparisons]


@pytest.mark.parametrize(("factor", "expected"), [(1.0, "same"), (1.1, "slower"), (0.9, "faster")])
@pytest.mark.parametrize("ceiling", [True, False])
def test_a_known_difference_is_found(factor, expected, ceiling):
    base, new = run(1, 1.2, ceiling=ceiling), run(2, 1.2 * factor, ceiling=ceiling)
    (found,) = compare(base, new).comparisons
    assert found.verdict == expected
    assert found.ratio.ratio == pytest.approx(factor, rel=0.01)
    assert found.by_ceiling is ceiling


def test_a_run_is_the_same_as_itself():
    assert verdicts(run(1, 1.2, drift=0.3), run(1, 1.2, drift=0.3)) == ["same"]


def test_a_ceiling_that_changed_makes_small_changes_unclear():
    """Whatever changed the ceiling may have changed the provider too."""
    base, new = suite(1, 1.2), suite(2, 1.2)
    slow = [record(one.provider, [1.1 * s for s in one.seconds], one.case.cols) for one in new]
    assert set(verdicts(base, slow)) == {"unclear"}
    assert set(verdicts(base, slow, by_ceiling=False)) == {"unclear"}
    twice = [
        record(one.provider, [2 * s for s in one.seconds], one.case.cols) for one in suite(3, 1.2)
    ]
    halved = [one for one in slow if one.provider == "ceiling"] + [
        one for one in twice if one.provider == "rownorm"
    ]
    assert set(verdicts(base, halved)) == {"slower"}


def test_without_a_control_the_rounds_decide():
    base, new = run(1, 1.2, ceiling=False), run(2, 1.26, ceiling=False)
    outcome = compare(base, new)
    assert outcome.control is None
    assert [(one.noise, one.verdict) for one in outcome.comparisons] == [(None, "slower")]


def test_eager_torch_is_the_control_without_a_ceiling():
    def times(factor):
        return [1e-6 * factor * (1 + i / 1000) for i in range(15)]

    base = [record("rownorm", times(2)), record("torch", times(1))]
    new = [record("rownorm", times(2.4)), record("torch", times(1.2))]
    outcome = compare(base, new)
    assert outcome.control.provider == "torch"
    assert [one.verdict for one in outcome.comparisons] == ["unclear"]
    assert compare(base, new, providers=("torch",)).control is None
    newer = Environment(device="NVIDIA H200", kind="cuda", torch="3.0")
    new = [record(one.provider, one.seconds, environment=newer) for one in new]
    assert compare(base, new).control is None  # another torch is another control


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_too_few_rounds_are_unclear(rounds):
    base, new = (
        [record("rownorm", [factor * (1 + i / 1e4) for i in range(rounds)])] for factor in (1, 2)
    )
    (found,) = compare(base, new).comparisons
    assert (found.verdict, found.enough_rounds) == ("unclear", False)


def test_more_cases_need_more_rounds():
    """The confidence is of the whole comparison."""
    assert [rounds_needed(cases) for cases in (1, 11, 294)] == [4, 6, 8]
    base = [record("rownorm", [1 + i / 1e4 for i in range(5)], cols) for cols in range(64, 84)]
    new = [record("rownorm", [2 + i / 1e4 for i in range(5)], cols) for cols in range(64, 84)]
    assert set(verdicts(base, new)) == {"unclear"}
    assert verdicts(base[:1], new[:1]) == ["slower"]


def test_suspect_measurements_are_marked():
    base, new = run(1, 1.2), run(2, 1.2)
    assert not compare(base, new).comparisons[0].suspect
    for place in (0, 1):  # the provider, the ceiling that its times are relative to
        doubtful = list(new)
        doubtful[place] = record(new[place].provider, new[place].seconds, suspect=["spread of 40%"])
        assert compare(base, doubtful).comparisons[0].suspect


def test_changes_of_versions_and_settings():
    def records(settings, **versions):
        here = Environment(device="NVIDIA H200", kind="cuda", settings=settings, **versions)
        return [record("rownorm", [1e-6], environment=here)]

    base = records({"threads": "2"}, torch="2.11", versions={"liger-kernel": "1"})
    new = records(
        {"threads": "4", "ROWNORM_NATIVE": "0"},
        torch="2.13",
        versions={"liger-kernel": "2", "torch": "2.13", "quack-kernels": "1"},
    )
    assert changes(base, base) == []
    assert changes(base, new) == [
        "liger-kernel: 1 against 2",
        "torch: 2.11 against 2.13",
        "ROWNORM_NATIVE: none against 0",
    ]


def test_noise_is_unclear():
    assert verdicts(run(1, 1.2, noise=0.3), run(2, 1.2, noise=0.3)) == ["unclear"]


def test_a_wider_margin_makes_it_the_same():
    base, new = run(1, 1.0), run(2, 1.05)
    assert verdicts(base, new) == ["slower"]
    assert verdicts(base, new, margin=0.1) == ["same"]


def test_a_ceiling_of_another_run_is_not_paired():
    base = run(1, 1.2)
    new = [record("rownorm", base[0].seconds, run="one"), record("ceiling", [1e-6] * 15, run="two")]
    assert not compare(base, new).comparisons[0].by_ceiling


def test_only_the_requested_providers():
    base = [*run(1, 1.2), record("torch", [1e-6] * 15)]
    assert [one.provider for one in compare(base, base).comparisons] == ["rownorm"]
    both = compare(base, base, providers=("torch", "rownorm")).comparisons
    assert {one.provider for one in both} == {"torch", "rownorm"}


def test_wrong_results_are_lost_and_absent_ones_are_listed():
    base = [*run(1, 1.2), *run(1, 1.2, cols=512), *run(1, 1.2, cols=1024)]
    new = [
        record("rownorm", [], status="wrong", why="y is off"),
        *run(1, 1.2, cols=512),
        *run(1, 1.2, cols=2048),
    ]
    outcome = compare(base, new)
    assert [(one.case.cols, one.why) for one in outcome.lost] == [(256, "wrong: y is off")]
    assert [one.case.cols for one in outcome.comparisons] == [512]
    assert [key[0].split()[3] for key in outcome.only_base] == ["8x1024"]
    assert [key[0].split()[3] for key in outcome.only_new] == ["8x2048"]


@pytest.mark.parametrize("times", [[], [0.0], [1e-6, math.nan], [math.inf]])
def test_times_that_are_none_are_lost(times):
    base = run(1, 1.2)
    outcome = compare(base, [record("rownorm", times), base[1]])
    assert [one.why for one in outcome.lost] == ["no valid times"]
    assert not compare([record("rownorm", times), base[1]], base).comparisons
    assert not compare(base, [base[0], record("ceiling", times)]).comparisons[0].by_ceiling


def test_the_last_record_of_a_case_counts():
    base, new = run(1, 1.0), [*run(2, 2.0), *run(3, 1.0)]
    assert verdicts(base, new) == ["same"]


def test_differences():
    base = run(1, 1.0)
    assert differences(base, run(2, 2.0)) == []
    elsewhere = record("rownorm", [1e-6], environment=Environment(device="L4", kind="cuda"))
    assert differences(base, [elsewhere]) == ["device: NVIDIA H200 against L4"]
    events = Method(timer="device_events", rotation=3, calls=20, rounds=15, cold=False)
    assert differences(base, [record("rownorm", [1e-6], method=events)]) == [
        "timer: cuda_graph against device_events",
        "inputs: cold against warm",
    ]
    threads = Environment(device="NVIDIA H200", kind="cuda", settings={"threads": "2"})
    assert differences(base, [record("rownorm", [1e-6], environment=threads)]) == [
        "threads: none against 2"
    ]
    longer = Method(timer="cuda_graph", rotation=9, calls=90, rounds=30, cold=True)
    assert differences(base, [record("rownorm", [1e-6], method=longer)]) == []
