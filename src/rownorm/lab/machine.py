"""The device of a run: where its tensors live, what it can do, and the stream on which a case happens."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import torch

from . import devices, timing
from .cases import Case
from .environment import environment
from .providers import Provider
from .records import Clocks, Environment


class Machine(NamedTuple):
    """The device of a run, and what there is to know of it."""

    device: torch.device
    environment: Environment
    cache: int | None  # bytes of the last cache before memory
    memory: int
    flush: timing.Flush | None  # None on a CPU

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def clocks(self) -> Clocks | None:
        return devices.clocks(self.device.index or 0) if self.on_gpu else None

    def plan(self, case: Case) -> timing.Plan:
        """How a round of this case is made up."""
        return timing.plan_round(
            case.compulsory_bytes,
            read_bytes(case),
            cache=self.cache,
            peak=self.environment.peak_bytes_per_second,
            memory=self.memory,
            on_gpu=self.on_gpu,
        )

    def cold(self, case: Case, plan: timing.Plan) -> bool:
        """Whether a call's inputs have left the cache since they were last touched: on a GPU they were flushed."""
        cache = self.cache or timing.DEFAULT_CACHE
        return self.on_gpu or plan.sets * read_bytes(case) >= timing.CACHE_MULTIPLE * cache

    @contextlib.contextmanager
    def stage(self) -> Iterator[None]:
        """On a GPU, a stream for everything that is done with a case: graphs are captured from it."""
        if not self.on_gpu:
            yield
            return
        with torch.cuda.device(self.device), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream")
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                yield
                torch.cuda.synchronize()

    def free(self) -> None:
        """Give memory back that nothing holds any more.

        What is alive afterwards is not searched again until ``gc.unfreeze``: with PyTorch's compiler loaded, a search
        of everything takes a quarter of a second, which each case would pay.
        """
        gc.collect()
        gc.freeze()
        if self.on_gpu:
            torch.cuda.empty_cache()


def machine_of(device: str | None, providers: Sequence[Provider]) -> Machine:
    """The device of that name ("cuda", "cuda:1", "cpu"); without one, a GPU where there is one."""
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} was asked for, but torch sees no GPU")
    index = chosen.index or 0
    versions = {one.package: one.version for one in providers if one.version}
    here, facts = environment(versions, index), devices.describe(index)
    if chosen.type == "cpu" and here.kind != "cpu":  # a GPU is here, but is not measured
        nothing = {
            "arch": "",
            "peak_bytes_per_second": None,
            "peak_source": "unknown",
            "driver": "",
        }
        here = msgspec.structs.replace(here, device=here.host, kind="cpu", **nothing)
        facts = facts._replace(l2_bytes=None)
    flush = timing.Flush(facts.l2_bytes, chosen) if chosen.type == "cuda" else None
    return Machine(chosen, here, facts.l2_bytes, facts.memory_bytes, flush)


def read_bytes(case: Case) -> int:
    """The bytes of one set of inputs, without the parameters, which all sets share."""
    element, stream = case.torch_dtype.itemsize, case.torch_residual_dtype.itemsize
    per_element = element + stream if case.adds else element
    return case.rows * case.cols * per_element * (1 if case.direction == "forward" else 2)
