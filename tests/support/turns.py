"""Pairs of two arguments, of which ``make test`` runs a part."""

from collections.abc import Sequence
from typing import Any

import pytest


def pairs_in_turns(firsts: Sequence[Any], seconds: Sequence[Any]) -> list[Any]:
    """Parameters: every first value with one of the second, which take turns; the other pairs in make test-all."""

    def words(value: Any) -> str:
        return "+".join(value) if isinstance(value, tuple) else str(value)

    return [
        pytest.param(
            first,
            second,
            id=f"{words(first)}-{second}",
            marks=[pytest.mark.exhaustive] * (i % len(seconds) != j),
        )
        for i, first in enumerate(firsts)
        for j, second in enumerate(seconds)
    ]
