"""A callback for Lightning's ``Trainer``: ``rownorm.patch`` before training.

trainer = lightning.Trainer(..., callbacks=[rownorm.integrations.lightning.PatchNorms()])
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import nn

from ..patching import Report, patch

log = logging.getLogger(__name__)


class PatchNorms(Callback):  # type: ignore[misc]
    """Patch the module before the strategy wraps it, and log the report.

    out_dtype, fuse_residuals: as for ``rownorm.patch``. report: what was swapped, once there was a module.
    """

    def __init__(
        self, *, out_dtype: torch.dtype | None = None, fuse_residuals: bool = False
    ) -> None:
        self._options: dict[str, Any] = {"out_dtype": out_dtype, "fuse_residuals": fuse_residuals}
        self._patched: nn.Module | None = None
        self.report: Report | None = None

    def setup(self, trainer: Any, pl_module: nn.Module, stage: str) -> None:
        if pl_module is not self._patched:
            self._patched, self.report = pl_module, patch(pl_module, **self._options)
            log.info("%s", self.report)
