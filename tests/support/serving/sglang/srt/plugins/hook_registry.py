"""Hooks that wrap a method of a class."""

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
            path, _, name = target.rpartition(".")
            owner = pkgutil.resolve_name(path)
            own = getattr(owner, name)
            setattr(owner, name, lambda *given, own=own, hook=hook: hook(own, *given))

    @classmethod
    def reset(cls):
        cls._hooks.clear()
