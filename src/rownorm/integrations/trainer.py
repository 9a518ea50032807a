"""A callback for transformers' ``Trainer``, and so for TRL's trainers: ``rownorm.patch`` before training.

trainer = Trainer(model, ..., callbacks=[rownorm.integrations.trainer.PatchNorms()])
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from ..patching import Report, patch

log = logging.getLogger(__name__)


class PatchNorms(TrainerCallback):
    """Patch the model when the trainer is constructed, before it is sharded or compiled, and log the report.

    A model that is made later, by ``model_init``, is patched when training begins. out_dtype, fuse_residuals: as for
    ``rownorm.patch``. report: what was swapped, once there was a model.
    """

    def __init__(
        self, *, out_dtype: torch.dtype | None = None, fuse_residuals: bool = False
    ) -> None:
        self._options: dict[str, Any] = {"out_dtype": out_dtype, "fuse_residuals": fuse_residuals}
        self._patched: nn.Module | None = None
        self.report: Report | None = None

    def on_init_end(
        self, args: Any, state: Any, control: Any, model: nn.Module | None = None, **kwargs: Any
    ) -> None:
        if model is not None and model is not self._patched:
            self._patched, self.report = model, patch(model, **self._options)
            log.info("%s", self.report)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: nn.Module | None = None, **kwargs: Any
    ) -> None:
        self.on_init_end(args, state, control, model)
