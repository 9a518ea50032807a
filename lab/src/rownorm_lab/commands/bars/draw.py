"""The draw: cases of widths that a seed picks, so that no width is measured only because it was tuned.

The seed of a run is in its folder, so that a run is resumed and judged with its own widths.
"""

from __future__ import annotations

import random
import secrets
from pathlib import Path

import msgspec

from ...data.case import Case
from ...data.files import read_json, write_json
from ...data.shapes import Shape
from ...data.suites import NORMS, PASSES, grid

PART = "draw"  # the name of its part
SEED_FILE = "draw.json"  # the name in a run folder
EACH, BESIDE_RESIDUAL = 8, 2  # widths of each kind; those of them that also have an fp32 residual
WIDEST = 16384
# Hidden sizes, of an attention head (128 and 256), and of the pair and MSA tensors of protein models.
MODEL_COLS = (
    *(128, 256, 384, 512, 576, 640, 768, 896, 960, 1024),
    *(1152, 1280, 1408, 1536, 1600, 1664, 2048, 2304, 2560, 2880),
    *(3072, 3200, 3584, 3840, 4096, 4544, 4608, 5120, 5376, 6144),
    *(6656, 7168, 8192, 12288, 14336, 16384),
)
KINDS = {
    "32 to 1024 columns": range(32, 1025),
    "multiples of 64": range(64, WIDEST + 1, 64),
    "widths of models": MODEL_COLS,
    "odd numbers": range(33, WIDEST, 2),
}
ELEMENTS = 1 << 28
NARROW = 1024  # rows of at most so many columns have all the elements: heads and pair tensors do
MOST_ROWS = 32768  # of wider rows, as in the suite speed
TINY_ROWS = 3


class Request(msgspec.Struct, frozen=True):
    """What a run folder says of its draw."""

    seed: int


def read_seed(folder: Path) -> int | None:
    """The seed of a run; None: nothing was drawn. ValueError if it cannot be read."""
    file = folder / SEED_FILE
    return read_json(file, Request, "a seed").seed if file.exists() else None


def seed_for(folder: Path, wanted: int | None) -> int:
    """The seed of a run that is resumed, else the one that is wanted, else a fresh one.

    ValueError if the run has another seed than the one that is wanted.
    """
    there = read_seed(folder)
    if there is None:
        return secrets.randbits(32) if wanted is None else wanted
    if wanted not in (None, there):
        raise ValueError(
            f"{folder} has the seed {there}, not {wanted}; leave out --seed or name a new folder"
        )
    return there


def write_seed(folder: Path, seed: int) -> None:
    """Keep the seed of a run."""
    write_json(folder / SEED_FILE, Request(seed))


def widths(seed: int) -> dict[str, list[int]]:
    """The widths of each kind, in the order in which they are drawn; none is drawn twice."""
    generator = random.Random(seed)
    drawn: dict[str, list[int]] = {}
    for kind, known in KINDS.items():
        before = {cols for of_kind in drawn.values() for cols in of_kind}
        drawn[kind] = generator.sample([cols for cols in known if cols not in before], EACH)
    return drawn


def cases(seed: int, tiny: bool = False) -> list[Case]:
    """Both norms and both passes of every width, then of some widths with an add to an fp32 residual.

    tiny: one width of each kind, with a few rows.
    """
    of_kinds = widths(seed).values()
    plain, added = (
        [shape(cols, tiny) for cols in sorted(cols for one in of_kinds for cols in one[:n])]
        for n in ((1, 1) if tiny else (EACH, BESIDE_RESIDUAL))
    )
    adds = [f"add_{name}" for name in NORMS]
    return [
        *grid(NORMS, PASSES, ["bf16"], plain),
        *grid(adds, PASSES, ["bf16"], added, residual_dtype="fp32"),
    ]


def shape(cols: int, tiny: bool = False) -> Shape:
    """How many rows of a width are measured."""
    rows = ELEMENTS // cols
    return TINY_ROWS if tiny else rows if cols <= NARROW else min(rows, MOST_ROWS), cols
