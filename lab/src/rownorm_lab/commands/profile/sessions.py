"""Recording inside the process of the work. A session is a context manager around what is recorded.

``restart`` forgets what was recorded so far. It is called while operators run, and torch.profiler may crash if it is
stopped then; so its trace gets a mark instead, and what is before the mark is left out when it is read.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ...data.files import whole_file
from ...profilers import chrome, proton


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Chrome:
    """Records a Chrome trace with torch.profiler."""

    def __init__(self, file: Path) -> None:
        self.file = file
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self.profiler = profile(activities=activities, record_shapes=True)

    def __enter__(self) -> None:
        self.profiler.start()

    def __exit__(self, *_: object) -> None:
        synchronize()
        self.profiler.stop()
        with whole_file(self.file) as temporary:
            self.profiler.export_chrome_trace(str(temporary))
            chrome.rename(temporary, self.file.name)

    def restart(self) -> None:
        """Mark the place in the trace."""
        synchronize()
        with record_function(chrome.RESTART):
            pass


class Proton:
    """Records the kernels with Triton's own profiler, into a hatchet file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __enter__(self) -> None:
        import triton.profiler

        triton.profiler.start(str(self.file.with_suffix("")))

    def __exit__(self, *_: object) -> None:
        import triton.profiler

        synchronize()
        triton.profiler.finalize()

    def restart(self) -> None:
        """Begin a new file in place of the old one."""
        self.__exit__()
        self.__enter__()


class Marks:
    """Tells a program around the process when to record: ``ncu --profile-from-start off``."""

    def __enter__(self) -> None:
        synchronize()
        if torch.cuda.is_available():
            torch.cuda.profiler.start()

    def __exit__(self, *_: object) -> None:
        synchronize()
        if torch.cuda.is_available():
            torch.cuda.profiler.stop()

    def restart(self) -> None:
        """Counters do not depend on how often a kernel ran before."""


Session = Chrome | Proton | Marks


def session_of(tool: str, folder: Path, subject: str) -> Session:
    """The session of a tool. Programs around the process (ncu, rocprofv3) need no more than marks."""
    if tool == "chrome":
        return Chrome(folder / chrome.FILES[subject])
    if tool == "proton":
        return Proton(folder / proton.FILES[subject])
    return Marks()
