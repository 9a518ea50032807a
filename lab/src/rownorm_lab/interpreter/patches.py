"""Parts of Triton that are replaced, in a block or for the process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

Patch = tuple[Any, str, Any]  # (owner, name, value)
MISSING = object()


def around(owner: Any, name: str, function: Callable[..., Any]) -> Patch:
    """``function`` in place of a function or a method; its first argument is what it replaces."""
    original = getattr(owner, name)

    def replaced(*args: Any, **named: Any) -> Any:
        return function(original, *args, **named)

    return owner, name, replaced


@contextmanager
def patched(patches: Iterable[Patch]) -> Iterator[None]:
    """Replace them in the block, also those that are new.

    Without ``unittest.mock``: code that is watched could replace it.
    """
    with ExitStack() as stack:
        for owner, name, value in patches:
            stack.callback(_restore, owner, name, owner.__dict__.get(name, MISSING))
            setattr(owner, name, value)
        yield


def _restore(owner: Any, name: str, before: Any) -> None:
    if before is MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
