"""The mode."""

from .batch_invariant_ops import is_batch_invariant_mode_enabled

__all__ = ["is_batch_invariant_mode_enabled"]
