"""Two profiles side by side: figures, kernels and scopes, with what changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

import msgspec

from . import texts
from .profile_tables import WRITERS, short_name
from .profiles import Profile
from .tables import Table


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One number in both profiles; None where a profile has none."""

    what: str  # figure, kernel or scope
    subject: str
    name: str
    unit: str
    before: float | None
    after: float | None

    @property
    def ratio(self) -> float | None:
        """The second over the first."""
        if not self.before or self.after is None:
            return None
        return self.after / self.before


def changes(before: Profile, after: Profile) -> list[Change]:
    """Every figure, then every kernel and scope of each subject, those with the largest change of time first."""
    found = _paired(
        "figure",
        {(one.subject, one.name): (one.value, one.unit) for one in before.figures},
        {(one.subject, one.name): (one.value, one.unit) for one in after.figures},
    )
    kernels = [
        {
            (subject, one.name): (one.seconds, "s")
            for subject, several in profile.kernels.items()
            for one in several
        }
        for profile in (before, after)
    ]
    scopes = [
        {
            (subject, " > ".join(one.path)): (one.seconds, "s")
            for subject, several in profile.scopes.items()
            for one in several
        }
        for profile in (before, after)
    ]
    for what, (a, b) in (("kernel", kernels), ("scope", scopes)):
        found += sorted(
            _paired(what, a, b), key=lambda one: -abs((one.after or 0) - (one.before or 0))
        )
    return found


def _paired(
    what: str,
    before: dict[tuple[str, str], tuple[float, str]],
    after: dict[tuple[str, str], tuple[float, str]],
) -> list[Change]:
    return [
        Change(
            what=what,
            subject=key[0],
            name=key[1],
            unit=(after.get(key) or before[key])[1],
            before=before[key][0] if key in before else None,
            after=after[key][0] if key in after else None,
        )
        for key in dict.fromkeys([*before, *after])
    ]


def change_tables(found: Iterable[Change], most: int) -> list[Table]:
    """A table for figures, one for kernels and one for scopes; of the last two, the ``most`` largest changes."""
    tables = []
    for what, title in (
        ("figure", "Figures"),
        ("kernel", "Kernels, the largest changes first"),
        ("scope", "Scopes, the largest changes first"),
    ):
        some = [one for one in found if one.what == what]
        some = some if what == "figure" else some[:most]
        lines = [
            [
                _short_subject(one.subject),
                short_name(one.name) if what == "kernel" else one.name,
                _text(one, one.before),
                _text(one, one.after),
                "" if one.ratio is None else f"{one.ratio:.3g}",
            ]
            for one in some
        ]
        tables.append(Table(title, ["of", what, "before", "after", "after / before"], lines))
    return tables


def _text(one: Change, value: float | None) -> str:
    if value is None:
        return "none"
    return WRITERS[one.unit](value)


def unlike(before: Profile, after: Profile) -> list[str]:
    """Why the two may differ for other reasons than the program: another work, device or version."""
    pairs: list[tuple[str, Callable[[Profile], Hashable]]] = [
        ("work", lambda one: one.title),
        ("device", lambda one: one.environment.device),
        ("torch", lambda one: one.environment.torch),
        ("triton", lambda one: one.environment.triton),
        ("rownorm", lambda one: one.environment.rownorm),
    ]
    return [
        f"{name}: {of(before)} against {of(after)}" for name, of in pairs if of(before) != of(after)
    ]


def _short_subject(subject: str) -> str:
    """``torch: KERNEL`` with the short name of the kernel: the start of long names is the same in all."""
    of, colon, kernel = subject.partition(": ")
    return f"{of}{colon}{short_name(kernel)}" if kernel else subject


def largest(found: Iterable[Change]) -> str:
    """The largest change of a kernel's time in a sentence; empty without one."""
    kernels = [one for one in found if one.what == "kernel"]
    if not kernels:
        return ""
    total = [
        sum(v or 0 for v in values)
        for values in zip(*((k.before, k.after) for k in kernels), strict=True)
    ]
    first = kernels[0]
    said = f"Kernels take {texts.duration(total[1])} instead of {texts.duration(total[0])}."
    times = f"{_text(first, first.before)} to {_text(first, first.after)}"
    return f"{said} The largest change: {short_name(first.name)}, {times}."
