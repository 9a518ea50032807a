"""The registries, and an operator whose class may be replaced by name."""

import functools

from torch import nn

op_registry = {}
op_registry_oot = {}


class CustomOp(nn.Module):
    def __new__(cls, *args, **kwargs):
        return super().__new__(op_registry_oot.get(cls.__name__, cls))

    def __init__(self, *, enforce_enable: bool = False, compile_native: bool = False):
        super().__init__()

    @classmethod
    def register(cls, name: str, dynamic_arg_dims: dict[str, int | list[int]] | None = None):
        return functools.partial(_enter, op_registry, name)

    @classmethod
    def register_oot(cls, _decorated_op_cls=None, name: str | None = None):
        assert name not in op_registry_oot
        return _enter(op_registry_oot, name, _decorated_op_cls)


def _enter(registry, name, op_cls):
    registry[name] = op_cls
    op_cls.name = name
    return op_cls
