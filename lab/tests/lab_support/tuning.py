"""A search without a GPU: its candidates are those of an H200, and a fake clock gives the times.

The fake clock stands in for the GPU's only in tests of the search's logic. Correctness of candidates is tested with
real kernels in ``test_timer.py``, compiled code in ``test_static.py``.
"""

from rownorm.launch.resources import TARGETS
from rownorm_lab.commands.tune.journal import key_of
from rownorm_lab.data.records import Environment

H200 = TARGETS["sm_90"].device
HERE = Environment(
    device="NVIDIA H200", kind="cuda", arch="sm_90", torch="2.11.0", triton="3.6.0", rownorm="1"
)


class FakeClock:
    """A timer with made-up times: by regime, then by the number of warps. It counts what it is asked."""

    def __init__(self):
        self.microseconds = {
            "looped": 100, "resident": 102, "tile": 104, "cluster": 106, "grid": 103
        }  # fmt: skip
        self.wrong, self.failing, self.few_rows = [], [], {}
        self.asked = []
        self.interrupt_after = None

    def of(self, study):
        """The timer of a study."""
        return FakeTimer(self, study)

    def ask(self, *what):
        if self.interrupt_after is not None and len(self.asked) >= self.interrupt_after:
            raise KeyboardInterrupt
        self.asked.append(what)


class FakeTimer:
    def __init__(self, clock, study):
        self.clock, self.study = clock, study

    def check(self, several):
        self.clock.ask("check", len(several))
        return [
            ("wrong", "y is off by 9 ulp") if any(one.items() >= w.items() for w in self.clock.wrong)
            else ("failed", "too many resources")
            if any(one.items() >= f.items() for f in self.clock.failing)
            else ("ok", "")
            for one in several
        ]  # fmt: skip

    def seconds(self, settings, rounds):
        self.clock.ask("seconds", self.study, rounds, key_of(settings))
        fills = self.study.n_cols % settings["block_cols"] == 0
        slower = 0 if fills or settings["regime"] != "looped" else 30
        few = 0.01 * settings["num_warps"] + 1e-3 * (len(key_of(settings)) % 7)
        return 1e-6 * (self.clock.microseconds[settings["regime"]] + slower + few)

    def seconds_of_few(self, settings, rounds):
        self.clock.ask("few", key_of(settings))
        return 1e-6 * self.clock.few_rows.get(settings["num_warps"], 1 + settings["num_warps"])

    def ceiling_seconds(self, rounds):
        self.clock.ask("ceiling", self.study)
        return 99e-6

    def seconds_in_turns(self, several, rounds):
        self.clock.ask("in turns", rounds)
        return [self.seconds(settings, rounds) for settings in several]
