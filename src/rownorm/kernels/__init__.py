"""Triton kernels and nothing else: these files import only Triton.

    forward/    resident.py      a program has whole rows in registers
                cluster.py       the programs of a thread block cluster share a row
                multipass.py     rows are loaded once for the statistics and again for the result
                column_range.py  columns of a row that is loaded in chunks, for multipass and cluster
    backward/   resident.py, grid.py, multipass.py; column_sums.py adds up partial sums over rows
    exchange/   cluster.py, grid.py: how programs that share a row exchange sums

Shared by them: ``bundles`` (bundles of kernel arguments), ``memory`` (loads and stores), ``moments`` (mean and
rstd), ``affine`` (x_hat, weight and bias), ``gradient``, ``activations``, ``packing`` (two 16-bit numbers in a
register) and ``target`` (what depends on the GPU).
"""
