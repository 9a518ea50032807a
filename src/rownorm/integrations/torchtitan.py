"""An override for torchtitan: the function ``rms_norm`` below. On its command line:

--override.imports rownorm.integrations.torchtitan.rms_norm
"""

from __future__ import annotations

from dataclasses import dataclass

from torchtitan.config.override import derive, override
from torchtitan.models.common.nn_modules import RMSNorm

from .. import nn


class RownormRMSNorm(nn.RMSNorm, RMSNorm):  # type: ignore[misc]
    """torchtitan's RMSNorm, with its configuration, parameters and ``state_dict``, computed by rownorm."""

    @dataclass(kw_only=True, slots=True)
    class Config(RMSNorm.Config):  # type: ignore[misc]
        """That of torchtitan's RMSNorm."""

    def __init__(self, config: RMSNorm.Config) -> None:
        RMSNorm.__init__(self, config)


@override(target=RMSNorm.Config, exact=True, description="RMSNorm computed by rownorm")  # type: ignore[untyped-decorator]
def rms_norm(cfg: RMSNorm.Config) -> RownormRMSNorm.Config:
    """Replace every RMSNorm of the model."""
    return derive(cfg, RownormRMSNorm.Config)
