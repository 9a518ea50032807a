"""The namespace of the operators, in the form of the file that Hugging Face's kernel builder generates.

A copy of the library that is loaded beside another one has a namespace of its own: in it, this file is replaced.
"""

from __future__ import annotations

import torch

NAMESPACE = "rownorm"
ops = getattr(torch.ops, NAMESPACE)


def add_op_namespace_prefix(op_name: str) -> str:
    """The full name of an operator."""
    return f"{NAMESPACE}::{op_name}"
