"""What a norm of tensors on a CPU takes, beside what a user of PyTorch would write, with one thread and with two.

The tensors are those of the call before, so small ones are in the cache, as between the layers of a model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch

from ...data.case import Case
from ...measure.timing import host_seconds
from ...providers import all_providers
from ...providers.data import rotation
from .settings import THREADS
from .workload import Call, Workload

ROUNDS = 41
ROUND = 2e-3  # seconds; short, so that both sides of a ratio find the same machine


def calls_of(case: Case, providers: Sequence[str], device: str) -> Mapping[str, Call]:
    """The calls of all providers, with the same tensors."""
    known, (tensors,) = all_providers(), rotation(case, 1, device)
    return {name: known[name].prepare(case, tensors) for name in providers}


def repeats_of(calls: Sequence[Call]) -> int:
    """The calls of a round, by what the slowest takes."""
    once = max(host_seconds(call, 3) for _ in range(3) for call in calls)
    return max(1, round(ROUND / once))


@contextlib.contextmanager
def _threads(case: Case, device: str) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS[case.setting])
    try:
        yield
    finally:
        torch.set_num_threads(before)


WORKLOAD = Workload(
    calls_of,
    lambda call, repeats, _: (host_seconds(call, repeats), None),
    _threads,
    rounds=ROUNDS,
    warm_up=0,
    repeats=repeats_of,
    on_cpu=True,
)
