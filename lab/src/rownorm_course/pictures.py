"""The pictures in the texts of the exercises, drawn from what they show.

``python -m rownorm_course.pictures`` writes each one below its mark, ``<!-- picture: NAME -->``, in every text.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from .catalog import FOLDER, TEXT

SECTOR, WARP = 32, 32  # bytes, threads
MARK = re.compile(r"<!-- picture: (\w+) -->\n(```\n.*?```\n)?", re.DOTALL)


def grid() -> list[str]:
    """Programs, turns and masks of rows in blocks."""
    rows, cols, block = 3, 10, 4
    turns = -(-cols // block)
    lines = ["x has 3 rows of 10 columns; BLOCK = 4: three programs, three turns each", ""]
    lines.append("turn         " + "".join(f"{turn:<13}" for turn in range(turns)))
    lines.append("lane         " + " ".join(f"{c % block:2}" for c in range(turns * block)))
    for row in range(rows):
        cells = (f"{c:2}" if c < cols else " ." for c in range(turns * block))
        lines.append(f"program {row}:   " + " ".join(cells))
    masked = turns * block - cols
    return [
        *lines,
        "",
        f"numbers are columns; the {masked} dots are lanes that the mask switches off",
    ]


def sectors() -> list[str]:
    """The sectors that one request of a warp moves."""
    lines = ["32 lanes ask for        bytes   sectors   used   sectors of memory, # is moved"]
    for what, width, step in (
        ("neighbors, 2 bytes", 2, 2),
        ("neighbors, 4 bytes", 4, 4),
        ("neighbors, 16 bytes", 16, 16),
        ("every other, 4 bytes", 4, 8),
        ("a column, 2 bytes", 2, 4096),
    ):
        touched = {
            byte // SECTOR
            for lane in range(WARP)
            for byte in range(lane * step, lane * step + width)
        }
        needed = WARP * width
        share = needed / (len(touched) * SECTOR)
        drawn = "".join("#" if one in touched else "." for one in range(min(20, max(touched) + 1)))
        more = "..." if max(touched) >= 20 else ""
        lines.append(f"{what:22}  {needed:5}   {len(touched):7}   {share:4.0%}   {drawn}{more}")
    return lines


def reduction() -> list[str]:
    """The tree of tl.sum over eight lanes; the instructions of a whole warp follow."""
    values = [3, 1, 4, 1, 5, 9, 2, 6]
    lanes = len(values)
    lines = ["lane          " + "".join(f"{lane:4}" for lane in range(lanes))]
    lines.append("has           " + "".join(f"{one:4}" for one in values))
    step = lanes // 2
    while step:
        values = [one + values[lane ^ step] for lane, one in enumerate(values)]
        shown = "".join(f"{one:4}" for one in values)
        lines.append(f"+ lane ^ {step:<2}   {shown}    every lane adds the value of lane ^ {step}")
        step //= 2
    return lines


def instructions() -> list[str]:
    """The code of ``tl.sum`` over one warp, for two GPUs. It is compiled."""
    from .learner import Learner

    with tempfile.TemporaryDirectory() as folder, Learner(Path(folder), 1, "compile", 0) as learner:
        found: dict[str, list[str]] = learner.own("reduction_code")
    lines = []
    for target, code in found.items():
        lanes = {
            "sm_90": "PTX for sm_90, a warp of 32 lanes",
            "gfx942": "ISA of gfx942, a wavefront of 64 lanes",
        }
        lines += [lanes[target], *(f"    {line}" for line in code), ""]
    return lines[:-1]


def welford() -> list[str]:
    """Two blocks of a row, merged."""
    row = torch.tensor([10001.0, 10003, 10002, 10006, 10000, 10004])
    blocks = row[:4], row[4:]
    lines = ["row    " + " ".join(f"{one:.0f}" for one in row.tolist()), ""]
    parts = []
    for name, block in zip("ab", blocks, strict=True):
        n, mean = len(block), block.mean().item()
        m2 = (block - mean).square().sum().item()
        lines.append(f"{name}:     n = {n}   mean = {mean:9.2f}   m2 = {m2:6.2f}")
        parts.append((n, mean, m2))
    (n_a, mean_a, m2_a), (n_b, mean_b, m2_b) = parts
    delta, n = mean_b - mean_a, n_a + n_b
    mean, more = mean_a + delta * n_b / n, delta**2 * n_a * n_b / n
    lines += [
        f"merge: delta = {mean_b:.2f} - {mean_a:.2f} = {delta:.2f}",
        f"       mean  = {mean_a:.2f} + {delta:.2f} * {n_b}/{n} = {mean:.3f}",
        f"       m2    = {m2_a:.2f} + {m2_b:.2f} + {delta:.2f}^2 * {n_a}*{n_b}/{n} = {m2_a + m2_b + more:.3f}",
        f"variance = {(m2_a + m2_b + more) / n:.4f}; "
        f"mean(x^2) - mean(x)^2 in fp32 = {(row.square().mean() - row.mean().square()).item():.4f}",
    ]
    return lines


def cluster() -> list[str]:
    """A wide row shared by four programs, each on a multiprocessor of its own."""
    parts = 4
    edge = "+" + "+".join("-" * 15 for _ in range(parts)) + "+"

    def cells(text: str) -> str:
        return "|" + "|".join(f"{text.format(one):^15}" for one in range(parts)) + "|"

    return [
        "one row",
        edge,
        cells("part {}"),
        edge,
        cells("program {}"),
        cells("part in regs."),
        cells("sum s{}"),
        edge,
        "     each stores its sum in the shared memory of all four; a barrier of the cluster",
        edge,
        cells("s0+s1+s2+s3"),
        cells("y of part {}"),
        edge,
        "memory: x is read once, y is written once; two kernels without a cluster read x twice",
    ]


PICTURES: dict[str, Callable[[], list[str]]] = {
    one.__name__: one for one in (grid, sectors, reduction, instructions, welford, cluster)
}


def drawn(name: str) -> str:
    """A picture as it stands in a text."""
    body = "\n".join(line.rstrip() for line in PICTURES[name]())
    return f"<!-- picture: {name} -->\n```\n{body}\n```\n"


def main() -> None:
    """Draw all of them again."""
    for file in sorted(FOLDER.glob(f"*/{TEXT}")):
        text = file.read_text(encoding="utf-8")
        file.write_text(MARK.sub(lambda found: drawn(found[1]), text), encoding="utf-8")


if __name__ == "__main__":
    main()
