"""Settings of the kernel."""

WARPS = 8
