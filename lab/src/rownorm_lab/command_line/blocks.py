"""The option ``--blocks`` of ``analyze`` and ``tune --study``: block sizes of the plain looped kernel."""

from __future__ import annotations

import click

from ..data.case import Case

ELEMENTS = 1 << 27  # of x, unless rows are given: more than any cache
WIDEST_BLOCK = 1 << 16


def block_sizes(blocks: str | None, case: Case) -> list[int]:
    """The block sizes of ``--blocks``; a usage error if one cannot be compiled."""
    if blocks is None:
        return []
    if case.direction != "forward" or case.adds or case.pre_bias or case.activation:
        raise click.UsageError(
            "--blocks: the plain looped kernel is layer_norm or rms_norm, forward, without options"
        )
    sizes = []
    for part in filter(None, (part.strip() for part in blocks.split(","))):
        size = int(part) if part.isdecimal() else 0
        if not 1 <= size <= WIDEST_BLOCK or size & (size - 1):
            raise click.BadParameter(
                f"a block size is a power of two up to {WIDEST_BLOCK}; got {part!r}",
                param_hint="'--blocks'",
            )
        sizes.append(size)
    return list(dict.fromkeys(sizes))
