"""Warnings that are PyTorch's own and depend on the machine."""

import pytest

# oneDNN on a CPU without bf16 instructions; torch then computes without oneDNN.
IGNORE_ONEDNN = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
