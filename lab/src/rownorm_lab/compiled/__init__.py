"""Compiled kernels, looked at without a GPU: registers, occupancy, sectors, bytes, predicted time."""
