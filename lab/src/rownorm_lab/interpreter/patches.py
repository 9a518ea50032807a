"""Parts of Triton that are replaced, in a block or for the process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

Patch = tuple[Any, str, Any]  # (owner, name, value)


def around(owner: Any, name: str, function: Callable[..., Any]) -> Patch:
    """``function`` in place of a function or a method; its first argument is what it replaces."""
    original = getattr(owner, name)

    def replaced(*args: Any, **named: Any) -> Any:
        return function(original, *args, **named)

    return owner, name, replaced


@contextmanager
def patched(patches: Iterable[Patch]) -> Iterator[None]:
    """Replace them in the block, also those that are new."""
    with ExitStack() as stack:
        for owner, name, value in patches:
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        yield
