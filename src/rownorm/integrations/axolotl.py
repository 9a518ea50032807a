"""A plugin for axolotl. In the configuration file:

plugins:
  - rownorm.integrations.axolotl.Plugin
"""

from __future__ import annotations

import logging
from typing import Any

from axolotl.integrations.base import BasePlugin
from torch import nn

from ..patching import patch

log = logging.getLogger(__name__)


class Plugin(BasePlugin):  # type: ignore[misc]
    """``rownorm.patch`` when the model is built, before adapters; the report is logged."""

    def post_model_build(self, cfg: Any, model: nn.Module) -> None:
        log.info("%s", patch(model))
