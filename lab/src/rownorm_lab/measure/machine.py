"""The device that a run measures on: facts, cache flush, sensors, and a stream for each case."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import NamedTuple

import torch

from ..data.case import Case
from ..data.records import Clocks, Environment
from ..device import sensors
from ..device.environment import cpu_environment, environment
from ..device.facts import describe
from ..providers import Provider, interpreting
from . import timing


class Machine(NamedTuple):
    """The device of a run."""

    device: torch.device
    environment: Environment
    cache: int | None  # size of the last cache before memory, bytes
    memory: int  # bytes
    flush: timing.Flush | None  # None on a CPU

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def clocks(self) -> Clocks | None:
        """Clocks, temperature and power now; None on a CPU."""
        return sensors.clocks(self.device.index or 0) if self.on_gpu else None

    def round_size(self, case: Case) -> timing.RoundSize:
        """How many sets of inputs and calls a round of this case has.

        The fewest in Triton's interpreter: a call takes seconds there, and its time means nothing.
        """
        if interpreting() and not self.on_gpu:
            return timing.RoundSize(2, 1)
        return timing.round_size(
            case.compulsory_bytes,
            read_bytes(case),
            cache=self.cache,
            peak=self.environment.peak_bytes_per_second,
            memory=self.memory,
            on_gpu=self.on_gpu,
        )

    def cold(self, case: Case, size: timing.RoundSize) -> bool:
        """Whether the inputs of a call are out of the cache. On a GPU the cache is flushed."""
        cache = self.cache or timing.DEFAULT_CACHE
        return self.on_gpu or size.sets * read_bytes(case) >= timing.CACHE_MULTIPLE * cache

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """On a GPU, a new stream for all work of a case, because graphs cannot be captured on the default stream."""
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
        """Free unused memory.

        Objects alive afterwards are excluded from collections until ``gc.unfreeze``: with PyTorch's compiler loaded, a
        full collection takes a quarter of a second, and every case would pay for it.
        """
        gc.collect()
        gc.freeze()
        if self.on_gpu:
            torch.cuda.empty_cache()


def machine_of(device: str | None, providers: Sequence[Provider]) -> Machine:
    """The device of that name ("cuda", "cuda:1", "cpu"); None is a GPU if there is one, else the CPU."""
    prepare_interpreter()
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} was requested, but torch sees no GPU")
    index = chosen.index or 0
    versions = {one.package: one.version for one in providers if one.version}
    here, facts = environment(versions, index), describe(index)
    if chosen.type == "cpu" and here.kind != "cpu":  # there is a GPU, but the CPU is measured
        here, facts = cpu_environment(versions), facts._replace(l2_bytes=None)
    flush = timing.Flush(facts.l2_bytes, chosen) if chosen.type == "cuda" else None
    return Machine(chosen, here, facts.l2_bytes, facts.memory_bytes, flush)


def prepare_interpreter() -> None:
    """Let kernels run in Triton's interpreter with the NumPy that is here, where Triton is there and interprets."""
    if interpreting() and find_spec("triton"):
        from ..interpreter.arithmetic import mend_scalars

        mend_scalars()


def read_bytes(case: Case) -> int:
    """The bytes of one set of inputs, without the parameters, which all sets share."""
    element, stream = case.torch_dtype.itemsize, case.torch_residual_dtype.itemsize
    per_element = element + stream if case.adds else element
    return case.rows * case.cols * per_element * (1 if case.direction == "forward" else 2)
