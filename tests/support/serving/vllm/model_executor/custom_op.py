"""The registries, and an operator whose class may be replaced by name."""

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
        def decorator(op_cls):
            op_cls.name = name
            op_registry[name] = op_cls
            return op_cls

        return decorator

    @classmethod
    def register_oot(cls, _decorated_op_cls=None, name: str | None = None):
        def decorator(op_cls):
            assert name not in op_registry_oot
            op_cls.name = name
            op_registry_oot[name] = op_cls
            return op_cls

        return decorator(_decorated_op_cls)
