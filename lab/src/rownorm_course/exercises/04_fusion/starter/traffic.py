"""Bytes to and from memory, for rows * cols elements of itemsize bytes."""


def relu_bytes_separate(rows, cols, itemsize):
    """RMSNorm, then ReLU: two operators."""
    raise NotImplementedError("relu_bytes_separate")


def relu_bytes_fused(rows, cols, itemsize):
    """RMSNorm and ReLU in one kernel."""
    raise NotImplementedError("relu_bytes_fused")


def bias_bytes_separate(rows, cols, itemsize):
    """x + bias, then LayerNorm: two operators."""
    raise NotImplementedError("bias_bytes_separate")


def bias_bytes_fused(rows, cols, itemsize):
    """The addition and LayerNorm in one kernel."""
    raise NotImplementedError("bias_bytes_fused")
