"""Where the values of a result come from: a kernel stored them, and it loaded arguments or results of other kernels.

So a value is noticed that was computed around a kernel, wherever that was: in a thread, in NumPy, in Python, or where
PyTorch's dispatcher is not watched. Values are compared, not places: copies, views and conversions change nothing.
But the values of an argument are no kernel's, so a copy of one is known by its memory, and copies of that too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from rownorm_lab.interpreter.memory import NOBODY, Memory, Region
from rownorm_lab.interpreter.record import Contents

CONSTANTS = 8  # different values that a tensor for a kernel may have of its own, such as zeros
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Provenance:
    """The values that are known during one call. given: its arguments."""

    def __init__(self, given: Any) -> None:
        self.known = [_values(one) for one in _tensors(given)]
        self.loaded = 0  # values that kernels loaded and that nobody had given or stored
        # By launch: storages by the names of parameters; kept, so that no later one has the place of an earlier one.
        self.storages: list[dict[str, torch.UntypedStorage]] = []
        # Memory of arguments, and of copies of them, as long as no kernel has stored to it.
        self.given = {one.untyped_storage()._cdata: one for one in _tensors(given)}

    def launched(self, memory: Memory, before: Contents) -> None:
        """After a launch: check what its programs loaded, and keep what they stored."""
        self.storages.append({region.names: region.storage for region in memory.regions})
        for region in memory.regions:
            if region.writer.all:
                self.given.pop(region.storage._cdata, None)
        with _disable_current_modes():  # this is no arithmetic of the learner's
            self._launched(before)

    def _launched(self, before: Contents) -> None:
        stored = []
        for region, contents in before:
            if len(region.dtypes) != 1 or not region.elements:
                continue
            (dtype,) = region.dtypes
            written = torch.from_numpy(region.writer.program != NOBODY)
            loaded = torch.from_numpy(region.reader.program != NOBODY) & ~written
            if dtype in FLOATS:
                foreign = self._foreign(_typed(region, contents, dtype)[loaded])
                self.loaded += foreign if foreign > CONSTANTS else 0
            now = region.contents().copy()
            # Kernels may store the bits of floating-point values as integers.
            kinds = (dtype,) if dtype in FLOATS else FLOATS
            stored += [
                _values(_typed(region, now, kind)[written])
                for kind in kinds
                if kind.itemsize == dtype.itemsize
            ]
        self.known += stored

    def copied(self, to: Tensor, source: Tensor) -> None:
        """After a copy by PyTorch."""
        if self._is_given(source):
            self.given[to.untyped_storage()._cdata] = to

    def _is_given(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self.given

    def foreign(self, result: Any) -> int:
        """How many different values of the result no kernel stored, or follow from some that nobody gave to it."""
        return self.loaded + sum(
            len(_values(one)) if self._is_given(one) else self._foreign(one)
            for one in _tensors(result)
        )

    def _foreign(self, values: Tensor) -> int:
        values = _values(values)
        if any(one.dtype == values.dtype and one.equal(values) for one in self.known):
            return 0  # a tensor as it was given or stored, as nearly always
        wanted = values.double()
        for one in self.known:
            if len(one) and len(wanted):
                known = one.to(values.dtype).double()  # still sorted
                places = torch.searchsorted(known, wanted).clamp_(max=len(known) - 1)
                wanted = wanted[known[places] != wanted]
        return len(wanted)


def _typed(region: Region, contents: Any, dtype: torch.dtype) -> Tensor:
    size = region.elements * region.item
    return torch.from_numpy(contents[:size]).view(dtype)


def _values(tensor: Tensor) -> Tensor:
    """The different values of a tensor, sorted; NaN is memory that was never written."""
    values = tensor.detach().flatten()
    return values[~values.isnan()].unique()


def _tensors(value: Any) -> Iterator[Tensor]:
    """The floating-point tensors in a value that have contents."""
    if isinstance(value, Tensor):
        if value.dtype in FLOATS and not value.is_meta:
            yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
