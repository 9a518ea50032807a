"""``bench`` on a cluster: a case with all its providers is a job, so that its rounds belong together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

import msgspec

from ...data.records import Record
from ...data.runs import BenchRequest, timestamp
from ...measure.bench import bench
from ...providers import all_providers, missing, usual
from ...providers.own import add_providers

if TYPE_CHECKING:
    from ...cluster.pool import Pool


class CaseJob(msgspec.Struct, frozen=True):
    """The request of one case, and the id of the run."""

    request: BenchRequest
    run: str


class ProvidersThere(msgspec.Struct, frozen=True):
    """The default providers of a process, and the providers that it can run."""

    usual: list[str]
    available: list[str]


# ---- in the process that hands out jobs ----


def providers_on(pool: Pool) -> ProvidersThere:
    """The providers of the cluster."""
    return msgspec.json.decode(pool.ask(f"{__name__}:list_providers"), type=ProvidersThere)


def bench_on(
    pool: Pool,
    request: BenchRequest,
    *,
    run: str,
    done: Collection[tuple[str, str]] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Record]:
    """Measure every provider on every case; the records of a case, as soon as they are there, in any order of cases.

    A case whose process is lost is measured again as a whole. If it is lost every time, its records say that.
    """
    from ...cluster.pool import Job

    requests: dict[Job, BenchRequest] = {}
    for case in request.cases:
        names = [name for name in request.providers if (case.key, name) not in done]
        if names:
            alone = msgspec.structs.replace(request, cases=[case], providers=names)
            encoded = msgspec.json.encode(CaseJob(alone, run))
            arguments = functools.partial(bytes, encoded)
            job = Job(case.key, f"{__name__}:measure_case", arguments, single=True)
            requests[job] = alone
    for message in pool.run(requests, say):
        if message.content is not None:
            yield from msgspec.json.decode(message.content, type=list[Record])
        elif message.failure:
            yield from _failed(requests[message.job], run, message.failure, pool)


def _failed(request: BenchRequest, run: str, why: str, pool: Pool) -> Iterator[Record]:
    for provider in request.providers:
        yield Record(
            case=request.cases[0],
            provider=provider,
            status="failed",
            why=why,
            environment=pool.environment,
            run=run,
            time=timestamp(),
        )


# ---- in the processes of the cluster ----


def list_providers(arguments: bytes) -> Iterator[bytes]:
    """A ``ProvidersThere``."""
    available = [name for name, one in all_providers().items() if missing(one) is None]
    yield msgspec.json.encode(ProvidersThere(usual(), available))


def measure_case(arguments: bytes) -> Iterator[bytes]:
    """All records of a ``CaseJob``."""
    from ...cluster.here import located, require_working_gpu

    require_working_gpu()
    job = msgspec.json.decode(arguments, type=CaseJob)
    request = job.request
    add_providers(request.sources)
    records = bench(
        request.cases, request.providers, rounds=request.rounds, seed=request.seed, run=job.run
    )
    yield msgspec.json.encode(
        [
            msgspec.structs.replace(record, environment=located(record.environment))
            for record in records
        ]
    )
