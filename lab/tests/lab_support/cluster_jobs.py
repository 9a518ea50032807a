"""Jobs for the tests of ``rownorm_lab.cluster``. They run in the processes of a real Ray cluster on this host."""

import os
import signal
import time
from pathlib import Path

import msgspec

from lab_support.tuning import H200, FakeClock
from rownorm_lab.cluster import ProcessLost
from rownorm_lab.commands.tune.compiling import Ahead
from rownorm_lab.commands.tune.gpu import Gpu
from rownorm_lab.commands.tune.jobs import StudyJob, trials_made


def first_time(file):
    """Whether nobody has asked about this file before."""
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def echo(arguments):
    """Two items."""
    yield arguments
    yield b"from %d" % os.getpid()


def always_lost(arguments):
    """Its process is killed, or says that it cannot be used any more, the first time."""
    yield b"begun"
    if first_time(Path(os.environ["RAY_TEST_FOLDER"]) / "lost"):
        raise ProcessLost("the GPU is gone")
    os.kill(os.getpid(), signal.SIGKILL)


def lost_late(arguments):
    """Its process is killed after it has sent all."""
    yield b"all"
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)


def fails(arguments):
    """It raises."""
    yield b"begun"
    raise ValueError("no settings can be used")


class KillingClock(FakeClock):
    """The fake clock, which kills its process at the 40th question, once. file: notes that it did."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def ask(self, *what):
        super().ask(*what)
        if len(self.asked) == 40 and first_time(self.file):
            os.kill(os.getpid(), signal.SIGKILL)


def search_with_fake_clock(arguments):
    """``search_study`` with the device and the times of ``lab_support/tuning.py``."""
    job = msgspec.json.decode(arguments, type=StudyJob)
    clock = KillingClock(Path(os.environ["RAY_TEST_FOLDER"]) / "killed")
    yield from trials_made(job, Gpu(H200, Ahead(0, None), clock.of))
