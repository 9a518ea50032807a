"""Triton's interpreter with a record of every access: which program reads and writes which address."""
