"""``compare`` on unchanged code and on a known change, with the noise of a busy machine."""

import math
import random

import pytest

from rownorm_lab.data.case import Case
from rownorm_lab.data.compare import compare
from rownorm_lab.data.records import Environment, Method, Record

ROUNDS, CASES, COMPARISONS = 15, 20, 60
HERE = Environment(device="A CPU", kind="cpu")
METHOD = Method(timer="cpu_clock", rotation=3, calls=20, rounds=ROUNDS, cold=True)
# How much a disturbance of the machine affects a provider: not equally.
SENSITIVITIES = {"rownorm": 1.4, "ceiling": 1.0, "torch": 0.7}


class White:
    """Every round of every provider differs on its own."""

    def __init__(self, chance):
        self.chance = chance

    def disturbance(self):
        """The logarithm of the factor by which the machine is slower in the next round."""
        return 0.0

    def of_provider(self):
        """The same for one provider in one case."""
        return 0.0


class Drifting(White):
    """The machine becomes slower and faster by about 5%, over dozens of rounds."""

    level = 0.0

    def disturbance(self):
        self.level = 0.98 * self.level + self.chance.gauss(0, 0.05 * math.sqrt(1 - 0.98**2))
        return self.level


class Bursty(White):
    """Another process takes a third of the machine for up to 60 rounds: for a part of a case, or several cases."""

    left = 0

    def disturbance(self):
        if not self.left and self.chance.random() < 1 / 60:
            self.left = self.chance.randrange(5, 60)
        self.left = max(0, self.left - 1)
        return 0.4 if self.left else 0.0


class Bimodal(White):
    """A provider has one of two speeds, 10% apart, for a whole case: another placement in memory."""

    def of_provider(self):
        return 0.1 * self.chance.getrandbits(1)


def run(noise, chance, providers, slower=None):
    """Records of one run. slower: factors of rownorm, by the number of the case."""
    machine, records = noise(chance), []
    for number in range(CASES):
        case = Case(operation="rms_norm", rows=8, cols=256 + number)
        common = [machine.disturbance() for _ in range(ROUNDS)]
        for provider in providers:
            own = machine.of_provider()
            factor = (slower or {}).get(number, 1.0) if provider == "rownorm" else 1.0
            seconds = [
                1e-5
                * factor
                * math.exp(SENSITIVITIES[provider] * each + own + chance.gauss(0, 0.01))
                for each in common
            ]
            records.append(
                Record(
                    case=case,
                    provider=provider,
                    seconds=seconds,
                    run="one",
                    environment=HERE,
                    method=METHOD,
                )
            )
    return records


@pytest.mark.parametrize("noise", [White, Drifting, Bursty, Bimodal])
@pytest.mark.parametrize(
    ("providers", "options"),
    [
        (("rownorm", "ceiling"), {}),
        (("rownorm", "ceiling"), {"by_ceiling": False}),
        (("rownorm", "torch"), {}),
    ],
    ids=["by ceiling", "raw", "control torch"],
)
def test_unchanged_code_is_rarely_called_faster_or_slower(noise, providers, options):
    """In at most 5% of comparisons, over all of their cases."""
    wrong = 0
    for seed in range(COMPARISONS):
        chance = random.Random(seed)
        base, new = run(noise, chance, providers), run(noise, chance, providers)
        found = {one.verdict for one in compare(base, new, **options).comparisons}
        wrong += bool(found & {"faster", "slower"})
    assert wrong <= 0.05 * COMPARISONS


def test_the_rounds_alone_would_call_unchanged_code_slower():
    """Intervals of the rounds do not cover this noise: without a control, most comparisons are wrong."""
    for noise in (Drifting, Bursty, Bimodal):
        wrong = 0
        for seed in range(20):
            chance = random.Random(seed)
            base, new = run(noise, chance, ["rownorm"]), run(noise, chance, ["rownorm"])
            wrong += any(
                one.verdict in ("faster", "slower") for one in compare(base, new).comparisons
            )
        assert wrong >= 15, noise


@pytest.mark.parametrize("factor", [1.05, 1 / 1.05])
def test_a_change_of_5_percent_is_found(factor):
    """In one of 20 cases, or in all of them, on a machine without other load."""
    expected = "slower" if factor > 1 else "faster"
    for changed in ([7], range(CASES)):
        found = 0
        for seed in range(20):
            chance = random.Random(seed)
            providers = ("rownorm", "ceiling")
            base = run(White, chance, providers)
            new = run(White, chance, providers, dict.fromkeys(changed, factor))
            verdicts = [one.verdict for one in compare(base, new).comparisons]
            found += sum(verdicts[number] == expected for number in changed)
        assert found >= 0.9 * 20 * len(changed)


def test_a_large_change_is_found_on_a_drifting_machine():
    chance = random.Random(1)
    providers = ("rownorm", "ceiling")
    base = run(Drifting, chance, providers)
    new = run(Drifting, chance, providers, {3: 1.5})
    assert compare(base, new).comparisons[3].verdict == "slower"
