"""Backward kernels: (dy, dh, h, mu, rstd, parameters) -> (dx, dresidual, dpre_bias, dweight, dbias)."""
