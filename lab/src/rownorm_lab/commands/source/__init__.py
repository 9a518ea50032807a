"""A kernel's source beside its machine code."""
