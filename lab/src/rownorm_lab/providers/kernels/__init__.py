"""The Triton kernels of the plain providers; imported when one of them runs."""
