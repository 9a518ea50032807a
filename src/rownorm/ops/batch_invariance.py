"""The mode in which a row has the same bits in any batch: ``rownorm.batch_invariant``.

The public functions read the mode once, and it becomes ``Program.batch_invariant``: a field of the options, so it is in
the key of every call, in Python and in C, in the operators of a compiled graph, and in what backward gets from forward.

A thread that is inside ``with batch_invariant():`` has the mode, and so has the whole process after
``set_batch_invariant(True)``. Dynamo cannot guard on what belongs to a thread, so a compiled graph asks
``state.is_active``: it is compiled again when the first thread enters the mode and when the last one leaves it.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from collections.abc import Iterator

from .fast_path import is_traced

VARIABLE = "ROWNORM_BATCH_INVARIANT"

_in_context = contextvars.ContextVar("rownorm.batch_invariant", default=False)
_lock = threading.Lock()


class _State:
    """Of the process. A plain object, so that Dynamo guards on what it reads of it."""

    def __init__(self, is_process_wide: bool) -> None:
        self.is_process_wide = is_process_wide
        self.n_entered = 0  # contexts, of all threads
        self.is_active = is_process_wide  # whether any thread has the mode: all that a call reads while none has it

    def update(self, entered: int = 0) -> None:
        self.n_entered += entered
        self.is_active = self.is_process_wide or self.n_entered > 0


state = _State(os.environ.get(VARIABLE, "0").lower() in ("1", "true", "yes", "on"))


def is_on() -> bool:
    """Whether this thread has the mode, where ``state.is_active``. Every call first asks for that, which is faster."""
    return is_traced() or state.is_process_wide or _in_context.get()


@contextlib.contextmanager
def batch_invariant() -> Iterator[None]:
    """Within this context, a row's results do not depend on the other rows: not on their number, nor on its place.

    That holds for y and h, for the gradients of x and of the residual, for any alignment and any strides of the
    tensors. dweight, dbias and dpre_bias are sums over all rows: they have a fixed order for a fixed number of rows.

    It is for this thread. Backward follows the forward pass that it belongs to, in whatever thread it runs. Also a
    decorator. ``set_batch_invariant`` and ROWNORM_BATCH_INVARIANT=1 are for the process.
    """
    if is_traced():  # a lock and a context variable cannot be traced, and a trace is of one thread
        state.update(entered=1)
        try:
            yield
        finally:
            state.update(entered=-1)
        return
    token = _in_context.set(True)
    with _lock:
        state.update(entered=1)
    try:
        yield
    finally:
        with _lock:
            state.update(entered=-1)
        _in_context.reset(token)


def set_batch_invariant(enabled: bool) -> None:
    """Switch ``batch_invariant`` on or off for the whole process, its later threads included."""
    if not isinstance(enabled, bool):
        raise TypeError(
            f"rownorm.set_batch_invariant: enabled must be True or False; got {enabled!r}"
        )
    with _lock:
        state.is_process_wide = enabled
        state.update()
