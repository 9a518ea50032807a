"""Swap the norms of an existing model for rownorm's: ``rownorm.patch`` and ``rownorm.unpatch``.

candidates.py   which modules are norms perhaps, and copies of them that a probe may call
probe.py        what a candidate computes: its form, or why it has none
forms.py        a form: the row program of a module for each pair of dtypes
swap.py         the class of a swapped module, and the way back
report.py       what was swapped, what was left, and why
"""

from .report import Left, Report, Swapped
from .surgery import patch, unpatch

__all__ = ["Left", "Report", "Swapped", "patch", "unpatch"]
