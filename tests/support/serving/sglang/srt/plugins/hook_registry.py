"""Hooks that wrap a method of a class."""

import functools
import pkgutil
from collections.abc import Callable
from enum import Enum


class HookType(Enum):
    AFTER = "after"
    AROUND = "around"


class HookRegistry:
    _hooks = {}  # noqa: RUF012

    @classmethod
    def register(
        cls, target: str, hook: Callable, hook_type: HookType = HookType.AFTER, *, source=None
    ):
        assert hook_type is HookType.AROUND
        cls._hooks[target] = hook

    @classmethod
    def apply_hooks(cls):
        for target, hook in cls._hooks.items():
            owner, _, name = target.rpartition(".")
            owner = pkgutil.resolve_name(owner)
            setattr(owner, name, _wrap_fn(getattr(owner, name), hook))

    @classmethod
    def reset(cls):
        cls._hooks.clear()


def _wrap_fn(original_fn, hook):
    @functools.wraps(original_fn)
    def wrapper(*args, **kwargs):
        return hook(original_fn, *args, **kwargs)

    return wrapper
