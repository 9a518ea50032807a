"""Values on their way between the grader and the learner's process: MessagePack, with tensors as bytes.

Nothing is unpickled: what comes out of the learner's process is data.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from rownorm_lab.data.case import Case

NONCE = 16  # bytes at the begin of every message
_LENGTH = struct.Struct("<Q")


class Made(NamedTuple):
    """An output that the learner's process allocates, as an argument."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Other(NamedTuple):
    """A value that has no form here: its type and its repr."""

    type_name: str
    text: str

    def __repr__(self) -> str:
        return self.text


class Model(NamedTuple):
    """A pydantic model as JSON."""

    type_name: str
    json: str


def encode(value: Any, roles: Mapping[int, str] | None = None, whole: bool = False) -> Any:
    """``value`` in types of MessagePack. roles: names of tensors by id; whole: with all memory of their storages."""
    if value is None or isinstance(value, bool | float | str | bytes):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 63 else {"t": "int", "v": str(value)}
    if isinstance(value, Tensor):
        return _encode_tensor(value, (roles or {}).get(id(value), ""), whole)
    if isinstance(value, Made):
        return {"t": "made", "shape": list(value.shape), "dtype": _name(value.dtype)}
    if isinstance(value, list | tuple):
        return {
            "t": "list" if isinstance(value, list) else "tuple",
            "v": [encode(one, roles, whole) for one in value],
        }
    if isinstance(value, dict):
        pairs = [[encode(key), encode(one, roles, whole)] for key, one in value.items()]
        return {"t": "dict", "v": pairs}
    if isinstance(value, Path):
        return {"t": "path", "v": str(value)}
    if isinstance(value, Case):
        return {"t": "case", "v": msgspec.to_builtins(value)}
    if isinstance(value, np.generic):
        return encode(value.item())
    if hasattr(value, "model_dump_json"):
        return {"t": "model", "name": type(value).__name__, "v": value.model_dump_json()}
    return {"t": "other", "name": type(value).__name__, "v": repr(value)[:1000]}


def decode(value: Any, device: str = "cpu", untouched: bool = False) -> Any:
    """The value. untouched: tensors without contents become memory that nothing touches."""
    if not isinstance(value, dict):
        return value
    kind: str = value["t"]
    content: Any = value.get("v")
    if kind == "tensor":
        return _decode_tensor(value, device, untouched)
    if kind in ("list", "tuple"):
        found = [decode(one, device, untouched) for one in content]
        return found if kind == "list" else tuple(found)
    if kind == "dict":
        return {_key(decode(key)): decode(one, device, untouched) for key, one in content}
    made: dict[str, Callable[[], Any]] = {
        "int": lambda: int(content),
        "made": lambda: Made(tuple(value["shape"]), getattr(torch, value["dtype"])),
        "path": lambda: Path(content),
        "case": lambda: msgspec.convert(content, Case),
        "model": lambda: Model(value["name"], content),
        "other": lambda: Other(value["name"], content),
    }
    return made[kind]()


def _key(key: Any) -> Any:
    return key if isinstance(key, str | int | float | bool | tuple | None) else repr(key)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _encode_tensor(tensor: Tensor, role: str, whole: bool) -> Any:
    made = {
        "t": "tensor",
        "dtype": _name(tensor.dtype),
        "shape": list(tensor.shape),
        "requires_grad": tensor.requires_grad,
        "role": role,
    }
    if tensor.is_meta:
        return made | {"stride": list(tensor.stride()), "offset": 0, "storage": None}
    plain = tensor.detach()
    plain = plain if whole else plain.contiguous()
    memory = torch.empty(0, dtype=torch.uint8, device=plain.device).set_(plain.untyped_storage())
    if not whole:
        start, size = plain.storage_offset() * plain.element_size(), plain.numel()
        memory = memory[start : start + size * plain.element_size()]
    return made | {
        "stride": list(plain.stride()),
        "offset": plain.storage_offset() if whole else 0,
        "storage": memory.cpu().numpy().tobytes(),
    }


def _decode_tensor(value: Any, device: str, untouched: bool) -> Tensor:
    dtype, shape = getattr(torch, value["dtype"]), value["shape"]
    if value["storage"] is None:
        where = device if untouched else "meta"
        made = torch.empty(shape, dtype=dtype, device=where)
    else:
        memory = torch.empty(len(value["storage"]), dtype=torch.uint8)
        if value["storage"]:
            memory.copy_(torch.frombuffer(bytearray(value["storage"]), dtype=torch.uint8))
        memory = memory.to(device)
        made = torch.empty(0, dtype=dtype, device=device)
        made.set_(memory.untyped_storage(), value["offset"], shape, value["stride"])
    return made.requires_grad_(value["requires_grad"]) if value["requires_grad"] else made


# ---- messages on a socket ----


class Closed(Exception):
    """The other end has gone."""


class Garbled(Exception):
    """Something else than the other end's code has written on the socket."""


class TooLate(Exception):
    """No message came in time."""


def send(to: socket.socket, nonce: bytes, message: bytes) -> None:
    """One message."""
    try:
        to.sendall(nonce + _LENGTH.pack(len(message)) + message)
    except OSError:
        raise Closed from None


def receive(
    from_: socket.socket,
    nonce: bytes | None = None,
    deadline: float | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> tuple[bytes, bytes]:
    """(nonce, message) of the next one. nonce: which it must have; waiting: is called now and then until it comes."""
    head = _read(from_, NONCE + _LENGTH.size, deadline, waiting)
    got = head[:NONCE]
    if nonce is not None and got != nonce:
        raise Garbled
    (size,) = _LENGTH.unpack(head[NONCE:])
    return got, _read(from_, size, deadline, waiting)


def _read(
    from_: socket.socket, size: int, deadline: float | None, waiting: Callable[[], None]
) -> bytes:
    found = bytearray()
    while len(found) < size:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TooLate
            if not select.select([from_], [], [], min(left, 0.2))[0]:
                waiting()
                continue
        try:
            more = from_.recv(min(1 << 20, size - len(found)))
        except OSError:
            raise Closed from None
        if not more:
            raise Closed
        found += more
    return bytes(found)
