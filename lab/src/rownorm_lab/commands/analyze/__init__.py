"""``rownorm analyze``: compiled kernels without a GPU."""
