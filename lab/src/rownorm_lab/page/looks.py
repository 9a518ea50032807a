"""Colors and marker shapes: one pair for each provider in all charts, and the scale of speed-ups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from ..data.records import CEILING, EAGER, OURS

# Colors with a contrast of 3 to 1 on white and on near-black; rownorm has the only saturated blue.
LOOKS = {
    OURS: ("#3273f6", "circle"),
    EAGER: ("#d97706", "square"),
    "torch.compile": ("#059669", "triangle-up"),
    "liger": ("#db2777", "diamond"),
    "quack": ("#8b5cf6", "cross"),
    "fla": ("#0891b2", "triangle-down"),
    "flashinfer": ("#5b920b", "triangle-right"),
    "plain_block": ("#64748b", "triangle-left"),
    "plain_loop": ("#a3794f", "diamond"),
    CEILING: ("#7a736d", "M-1.2,-.3H1.2V.3H-1.2Z"),  # a short bar
}
OTHER_LOOKS = (
    ("#0d9488", "circle"),
    ("#c026d3", "square"),
    ("#e11d48", "diamond"),
    ("#4d7c0f", "cross"),
)
SLOWER_TO_FASTER = ("#b45309", "#f0b977", "#f4f4f2", "#8fb8f5", "#1d4ed8")
# Of the speed, one for each of these colors: 0.5x, 0.87x, 1x, 1.15x, 2x.
DOUBLINGS = (-1, -0.2, 0, 0.2, 1)


def looks_of(providers: Sequence[str]) -> dict[str, tuple[str, str]]:
    """(color, shape) of each provider, the same in every chart."""
    others = cycle(OTHER_LOOKS)
    return {name: LOOKS.get(name) or next(others) for name in providers}
