"""Swap the norms of an existing model for rownorm's: ``rownorm.patch`` and ``rownorm.unpatch``.

candidates.py   which modules are norms perhaps, and copies of them that a probe may call
probe.py        what a candidate computes: its form, or why it has none
forms.py        a form: the row program of a module for each pair of dtypes
swap.py         the class of a swapped module, and the way back
fusion.py       which residual adds are fused with the norm after them
rewrite.py      the forward of a block with residual adds and norms in one call, from its source
blocks.py       whether a rewritten block computes what it did: a probe of the block
report.py       what was swapped, what was left, and why
"""

from .report import Fused, Left, Report, Swapped
from .surgery import patch, unpatch

__all__ = ["Fused", "Left", "Report", "Swapped", "patch", "unpatch"]
