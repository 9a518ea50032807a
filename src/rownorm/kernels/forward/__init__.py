"""Forward kernels: (x, residual, pre_bias, weight, bias) -> (y, h, mu, rstd)."""
