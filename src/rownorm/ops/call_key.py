"""The key of a prepared call: everything that its checks, its plan and its compiled kernels depend on.

``FIELDS`` is the only description of what a key says about a tensor. The functions are generated from it, as
``NamedTuple`` generates its methods, because a loop over the fields at every call would be slower. The C extension has
no description of its own: its key (``put_tensor`` in launch/native/keys.c) is everything that DLPack says about a
tensor, and it asks for a prepared call by this key the first time. A field that DLPack does not know needs a place in
that key too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..program import INPUTS

# The properties of a tensor that are part of the key: expressions of the tensor {t} at {address}.
FIELDS = (
    "{t}.shape",
    "{t}.is_contiguous() or {t}.stride()",
    "{t}.dtype",
    "{t}.get_device()",
    "{t}.is_cpu",
    "{address} & 15",
)

# (tensor, address) -> key
TensorKey = Callable[[Tensor, int], tuple[Any, ...]]
# (inputs, options, want_statistics) -> addresses of the inputs, key
ForwardKey = Callable[[tuple[Any, ...], tuple[Any, ...], bool], tuple[list[Any], tuple[Any, ...]]]


def _key_functions() -> tuple[TensorKey, ForwardKey]:
    """``tensor_key`` and ``forward_key``.

    ``tensor_key(t, address)`` returns the fields of one tensor. ``forward_key(inputs, options, want_statistics)``
    returns the addresses of the inputs, and (options, want_statistics, *fields of x, then for every other input its
    fields or None).
    """

    def values(tensor: str, address: str) -> str:
        return ", ".join(field.format(t=tensor, address=address) for field in FIELDS)

    x, *optional = INPUTS
    lines = [
        "def tensor_key(t, address):",
        f"    return ({values('t', 'address')},)",
        "def forward_key(inputs, options, want_statistics):",
        f"    {', '.join(INPUTS)} = inputs",
        f"    {x}_address = {x}.data_ptr()",
        *(
            f"    {name}_address = None if {name} is None else {name}.data_ptr()"
            for name in optional
        ),
        f"    return [{', '.join(f'{name}_address' for name in INPUTS)}], (",
        f"        options, want_statistics, {values(x, f'{x}_address')},",
        *(
            f"        None if {name} is None else ({values(name, f'{name}_address')},),"
            for name in optional
        ),
        "    )",
    ]
    namespace: dict[str, Any] = {}
    exec(compile("\n".join(lines), f"<{__name__}>", "exec"), namespace)
    return namespace["tensor_key"], namespace["forward_key"]


tensor_key, forward_key = _key_functions()
