"""Which elements each program loads and stores, for tasks whose text says how a kernel works, not only what it gives.

Only the interpreter records this. With a GPU the same steps run there as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from rownorm_lab.interpreter.findings import Access

from ..grades import Failure
from ..protocol import Seen

RESULT = "result"


class Share(NamedTuple):
    """The loads, or the stores, of one program to one tensor; accesses: those with an active lane."""

    launch: int
    program: int
    tensor: str  # the name of the kernel's parameter
    accesses: list[Access]

    @property
    def elements(self) -> set[int]:
        """Counted from the start of the tensor, in its memory."""
        return {element for one in self.accesses for element in elements_of(one)}


def elements_of(access: Access) -> set[int]:
    """The elements of the active lanes."""
    lanes = zip(access.offsets, access.active, strict=True)
    return {offset // access.width for offset, active in lanes if active}


def loads(seen: Seen, argument: int = 0) -> list[Share]:
    """What programs loaded of an argument of the learner's function."""
    return _shares(seen, "load", {str(argument)})


def stores(seen: Seen) -> list[Share]:
    """What they stored to the result; if it is a copy, what the last kernel stored."""
    if found := _shares(seen, "store", {RESULT}):
        return found
    last = len(seen.recorded) - 1
    return [one for one in _shares(seen, "store", {""}) if one.launch == last]


def _shares(seen: Seen, access: str, roles: Collection[str]) -> list[Share]:
    found: dict[tuple[int, int, str], Share] = {}
    for place, (recorded, launch) in enumerate(zip(seen.recorded, seen.launches, strict=False)):
        for one in recorded.accesses:
            role = launch.roles.get(one.tensor, "")
            if one.site.access == access and role in roles and any(one.active):
                key = place, one.program, one.tensor
                found.setdefault(key, Share(*key, [])).accesses.append(one)
    return list(found.values())


def in_blocks(title: str, shares: Sequence[Share]) -> None:
    """Failure if a program goes through its elements one at a time, or if each has a single one."""
    for one in shares:
        several = any(len(elements_of(access)) > 1 for access in one.accesses)
        single = len(one.elements) == 1
        block = len(one.accesses[0].active) > 1
        if several or (single and (block or len(shares) == 1)):
            continue
        how = "and nothing else" if single else f"in {len(one.accesses)} accesses of one element"
        raise Failure(f"{title}: {_who(one)} {how}", "one-by-one")


def one_access(title: str, shares: Sequence[Share]) -> None:
    """Failure if a program needs more than one access for its elements."""
    for one in shares:
        if len(one.accesses) > 1:
            raise Failure(
                f"{title}: {_who(one)} in {len(one.accesses)} accesses, expected one",
                "one-access",
            )


def masked(title: str, shares: Sequence[Share]) -> None:
    """Failure if lanes without an element of their own are active, such as those that repeat the last one."""
    for one in shares:
        for access in one.accesses:
            active = sum(access.active)
            if active > len(elements_of(access)):
                raise Failure(
                    f"{title}: {active} lanes are active in one {access.site.access} of "
                    f"{len(elements_of(access))} elements of {one.tensor}",
                    "active-lanes",
                )


def only_parts(
    title: str, shares: Sequence[Share], part_of: Callable[[Share], set[int]], what: str
) -> None:
    """Failure if a program has other elements than its part. what: a part, in words."""
    for one in shares:
        if one.elements != part_of(one):
            raise Failure(f"{title}: {_who(one)}, expected {what}", "whose-elements")


def _who(share: Share) -> str:
    verb = f"{share.accesses[0].site.access}s"
    return f"program {share.program} {verb} {listed(share.elements)} of {share.tensor}"


def listed(elements: set[int]) -> str:
    """Numbers of elements, in words."""
    if len(elements) == 1:
        return f"element {min(elements)}"
    first, last = min(elements), max(elements)
    some = f"{len(elements)} of " if last - first + 1 > len(elements) else ""
    return f"{some}the elements {first} to {last}"


def passes(seen: Seen, rows: int, cols: int) -> float:
    """How many times the programs load an element of the rows: of x, of a copy, or of an intermediate result."""
    loaded = 0
    for recorded in seen.recorded:
        of_rows = {one.tensor for one in recorded.uses if one.read >= rows * cols}
        for one in recorded.accesses:
            if one.site.access == "load" and one.tensor in of_rows:
                loaded += len(elements_of(one))
    return loaded / (rows * cols)
