"""Bytes to and from memory, for rows * cols elements of itemsize bytes."""


def relu_bytes_separate(rows, cols, itemsize):
    """RMSNorm reads x and writes y; ReLU reads y and writes it again."""
    return 4 * rows * cols * itemsize


def relu_bytes_fused(rows, cols, itemsize):
    """x in, y out."""
    return 2 * rows * cols * itemsize


def bias_bytes_separate(rows, cols, itemsize):
    """The addition reads x and writes h; LayerNorm reads h and writes y."""
    return 4 * rows * cols * itemsize


def bias_bytes_fused(rows, cols, itemsize):
    """x in, y out."""
    return 2 * rows * cols * itemsize
