"""Recording inside the process of the work. A session is a context manager around what is recorded."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ..results.files import whole_file
from . import chrome, proton

Session = AbstractContextManager[Any]


def session_of(tool: str, folder: Path, subject: str) -> Session:
    """The session of a tool. Programs around the process (ncu, rocprofv3) need no more than marks."""
    if tool == "chrome":
        return Chrome(folder / chrome.FILES[subject])
    if tool == "proton":
        return Proton(folder / proton.FILES[subject])
    return Marks()


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        synchronize()
        self.profiler.stop()
        with whole_file(self.file) as temporary:
            self.profiler.export_chrome_trace(str(temporary))


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
