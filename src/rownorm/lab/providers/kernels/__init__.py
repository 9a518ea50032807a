"""The Triton kernels of the plain providers; imported with Triton when one of them runs."""
