"""How programs that share a row exchange two sums per row: inside a thread block cluster, or all over the grid."""
