"""``rownorm tune FILE.py:kernel``: what is printed about combinations that were measured on a GPU."""

import msgspec

from lab_support.analyses import launches
from rownorm_lab.commands.tune.own import Candidate, _table, _verdict


def measured(seconds, **changes):
    """Candidates whose kernels took these times; ``changes`` are those of the last one's traffic."""
    found = []
    for one, took in zip(launches(len(seconds)), seconds, strict=True):
        is_last = len(found) == len(seconds) - 1
        traffic = msgspec.structs.replace(one.traffic, **changes) if is_last else one.traffic
        one = msgspec.structs.replace(one, measured_seconds=took, traffic=traffic)
        found.append(Candidate({"BLOCK": 64 * (len(found) + 1)}, one))
    return found


def test_measured_times_stand_beside_the_predicted_ones():
    header, first, second = map(str.split, _table(measured([2e-5, 4e-5])))
    assert header[0] == "BLOCK"
    assert " ".join(header).endswith("predicted bound by measured of predicted")
    assert " ".join(first).endswith("12.3 µs bandwidth 20.0 µs 1.62x")
    assert " ".join(second).endswith("12.3 µs bandwidth 40.0 µs 3.24x")


def test_the_best_is_named_with_what_the_slowest_does_otherwise():
    verdict = "\n".join(_verdict(measured([2e-5, 4e-5], bound="latency"), measured=True))
    assert "Measured best: 20.0 µs with BLOCK 64." in verdict
    assert "BLOCK 128 takes 2.00x as long: it is bound by latency, not by bandwidth." in verdict
    # 200 MB in 20 µs, of 4 TB/s
    assert "BLOCK 64 reaches 10,000 GB/s, 250% of the ceiling." in verdict


def test_a_difference_that_the_code_does_not_explain():
    verdict = "\n".join(_verdict(measured([4e-5, 2e-5]), measured=True))
    assert "Measured best: 20.0 µs with BLOCK 128." in verdict
    assert "BLOCK 64 takes 2.00x as long: no figure of the code explains it." in verdict


def test_combinations_within_a_percent_are_level():
    verdict = _verdict(measured([2e-5, 2.01e-5]), measured=True)
    assert verdict[0] == "Measured best: 20.0 µs with all."
    assert not any("as long" in line for line in verdict)
