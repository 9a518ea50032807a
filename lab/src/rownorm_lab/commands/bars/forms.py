"""What an eager call with a modulation or a gate costs the host, beside rownorm's call of the plain norm.

The two take turns, because a host is a third slower at one moment than at another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import msgspec

from ...data.case import Case
from ...data.records import OURS
from ...providers import all_providers, data
from . import calls
from .figures import plain_of
from .settings import PLAIN
from .workload import Call, Workload


def calls_of(case: Case, providers: Sequence[str], device: str) -> Mapping[str, Call]:
    """The call of the case and that of the plain norm of its shape."""
    ours, cases = all_providers()[OURS], {OURS: case, PLAIN: plain_of(case)}
    alone = {name: msgspec.structs.replace(cases[name], setting="") for name in providers}
    return {
        name: ours.prepare(one, data.rotation(one, 1, device)[0]) for name, one in alone.items()
    }


WORKLOAD: Workload = calls.WORKLOAD._replace(
    calls=calls_of, context=lambda case, device: contextlib.nullcontext()
)
