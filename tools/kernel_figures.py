"""The figures of docs/kernels.md: where a row is in each regime, step by step.

    python tools/kernel_figures.py      # writes docs/kernels/*.svg

A step shows the registers of the programs above the memory, column below column. The steps of a figure are lit one
after the other, unless the reader asked for less motion. Colors follow the reader's light or dark scheme.
"""

from __future__ import annotations

from html import escape
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "kernels"
WIDTH, LEFT = 420, 84
CELL, ROW = 19, 16  # width of a column, height of a row
NAMES, GAP = 14, 28  # height of the programs' names, between registers and memory
SECONDS = 3  # a step is lit

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.label { font-size: 12px; fill: #57606a }
.page { fill: #fff }
.step { fill: #f3f5f8; stroke: #d0d7de }
.cell { fill: none; stroke: #9aa4af }
.x { fill: #4c8fd6 }
.y { fill: #2f9e6e }
.s { fill: #d9982b }
.program { fill: none; stroke: #57606a; stroke-width: 1.5 }
.arrow { fill: none; stroke: #57606a; stroke-width: 1.5 }
.head { fill: #57606a }
.lit { fill: #4c8fd6; opacity: 0 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .label { fill: #9da7b3 } .page { fill: #14161a }
  .step { fill: #1c1f25; stroke: #363c45 } .cell { stroke: #5d6671 }
  .program, .arrow { stroke: #9da7b3 } .head { fill: #9da7b3 }
}
@media (prefers-reduced-motion: no-preference) {
  .lit { animation: lit var(--all) infinite }
  @keyframes lit { 0%, var(--end) { opacity: 0 } }
}
"""


class Step(NamedTuple):
    """One step. Rows are strings with a letter for each column: x loaded, y a result, s a sum, . not in use.

    programs: (first column, rows in its registers, name). memory: (label, rows). moves: (first column, number
    of columns, "load", "store" or "both"). sums: the programs have them. exchange: through what they send them to each
    other. below: the memory that is loaded.
    """

    caption: str
    programs: tuple[tuple[int, tuple[str, ...], str], ...]
    memory: tuple[tuple[str, tuple[str, ...]], ...]
    moves: tuple[tuple[int, int, str], ...] = ()
    sums: bool = False
    exchange: str = ""
    below: int = 0


def parts(letters: str) -> tuple[tuple[int, tuple[str, ...], str], ...]:
    """Four programs on four SMs, with four columns each."""
    return tuple((4 * i, (letters,), f"SM {i}") for i in range(4))


def all_parts(direction: str) -> tuple[tuple[int, int, str], ...]:
    return tuple((4 * i, 4, direction) for i in range(4))


X, Y, NOT = 16 * "x", 16 * "y", 16 * "."
SHORT = 4 * (4 * "x",)
FIGURES: dict[str, tuple[str, tuple[Step, ...]]] = {
    "tile": (
        "Tile: several short rows in one program's registers",
        (
            Step(
                "Load. One program loads several short rows at once, as a tile.",
                ((0, SHORT, "program 0"),),
                (("x", SHORT),),
                ((0, 4, "load"),),
            ),
            Step(
                "Sum. Its threads add up every row. Each row has its own mean and rstd.",
                ((0, SHORT, "program 0"),),
                (("x", SHORT),),
                sums=True,
            ),
            Step(
                "Store. y is computed from the registers. Memory was read once and written once.",
                ((0, 4 * (4 * "y",), "program 0"),),
                (("y", 4 * (4 * "y",)),),
                ((0, 4, "store"),),
            ),
        ),
    ),
    "resident": (
        "Resident: one row in one program's registers",
        (
            Step(
                "Load. One program loads a whole row.",
                ((0, (X,), "program 0"),),
                (("x", (X,)),),
                ((0, 16, "load"),),
            ),
            Step(
                "Sum. Its threads add up the row: one mean, one rstd.",
                ((0, (X,), "program 0"),),
                (("x", (X,)),),
                sums=True,
            ),
            Step(
                "Store. y is computed from the registers. Memory was read once and written once.",
                ((0, (Y,), "program 0"),),
                (("y", (Y,)),),
                ((0, 16, "store"),),
            ),
        ),
    ),
    "looped": (
        "Looped: a row in chunks, loaded twice",
        (
            Step(
                "First pass. A chunk is loaded and added to the sums. Then the next chunk takes its registers.",
                ((0, ("xxxx",), "program 0"),),
                (("x", (X,)),),
                ((0, 4, "load"),),
                sums=True,
            ),
            Step(
                "After the last chunk, mean and rstd are known. The row is in no register.",
                ((12, ("xxxx",), "program 0"),),
                (("x", (X,)),),
                ((12, 4, "load"),),
                sums=True,
            ),
            Step(
                "Second pass. Each chunk is loaded again, usually from the cache, and its y is stored.",
                ((0, ("yyyy",), "program 0"),),
                (("x", (X,)), ("y", ("yyyy" + 12 * ".",))),
                ((0, 4, "both"),),
            ),
        ),
    ),
    "split": (
        "Split: few wide rows, and several programs for each",
        (
            Step(
                "First kernel. Each program loads one part of the row, and adds it up.",
                parts("xxxx"),
                (("x", (X,)),),
                all_parts("load"),
                sums=True,
            ),
            Step(
                "It stores the sums of its part to a small buffer.",
                parts("s..."),
                (("sums", ("s...s...s...s...",)),),
                tuple((4 * i, 1, "store") for i in range(4)),
            ),
            Step(
                "Second kernel. Each program loads the sums of all parts, and merges them in a fixed order.",
                parts("s..."),
                (("sums", ("s...s...s...s...",)),),
                all_parts("load"),
                sums=True,
            ),
            Step(
                "It loads its part again and stores y.",
                parts("yyyy"),
                (("x", (X,)), ("y", (Y,))),
                all_parts("both"),
            ),
        ),
    ),
    "cluster": (
        "Cluster: a wide row in registers of neighboring SMs",
        (
            Step(
                "Load. Each program of the cluster loads its part of the row, and keeps it.",
                parts("xxxx"),
                (("x", (X,)),),
                all_parts("load"),
            ),
            Step(
                "Exchange. Each sends its sums to all others, through distributed shared memory.",
                parts("xxxx"),
                (("x", (X,)),),
                sums=True,
                exchange="shared memory",
            ),
            Step(
                "Store. y is computed from the registers. Memory was read once and written once.",
                parts("yyyy"),
                (("y", (Y,)),),
                all_parts("store"),
            ),
        ),
    ),
    "grid": (
        "Grid: backward of a row shared all over the GPU",
        (
            Step(
                "Each program loads its part of a row, and sends its sums to all others through L2.",
                parts("xxxx"),
                (("row 0", (X,)), ("row 1", (NOT,)), ("row 2", (NOT,))),
                all_parts("load"),
                sums=True,
                exchange="L2",
            ),
            Step(
                "It does not wait for theirs. It sends the sums of the next rows meanwhile.",
                parts("xxxx"),
                (("row 0", (NOT,)), ("row 1", (X,)), ("row 2", (NOT,))),
                all_parts("load"),
                sums=True,
                exchange="L2",
                below=1,
            ),
            Step(
                "Some rows later the messages have arrived. It loads its part of row 0 again, from L2, and stores dx.",
                parts("yyyy"),
                (("row 0", (X,)), ("dx", (Y,))),
                all_parts("both"),
            ),
        ),
    ),
}


def cells(x: float, y: float, rows: tuple[str, ...]) -> str:
    """A rectangle for each run of equal letters, and the lines between its columns."""
    drawn = []
    for r, row in enumerate(rows):
        top = y + r * ROW
        for c, letter in enumerate(row):
            kind = "" if letter == "." else f" {letter}"
            drawn.append(f'<use href="#c" class="cell{kind}" x="{x + c * CELL:g}" y="{top:g}"/>')
    return "".join(drawn)


def arrow(x: float, start: float, end: float) -> str:
    """A vertical arrow."""
    back = 5 if end > start else -5
    return (
        f'<path class="arrow" d="M{x:g} {start:g}V{end - back:g}"/>'
        f'<path class="head" d="M{x - 4:g} {end - back:g}h8l-4 {back}z"/>'
    )


def drawn_step(step: Step, number: int, top: float) -> tuple[str, float]:
    """The SVG of a step below ``top``, and where it ends."""
    lines = wrap(f"{number}. {step.caption}", 58)
    out = [
        f'<text x="16" y="{top + 20 + 17 * i:g}">{escape(line)}</text>'
        for i, line in enumerate(lines)
    ]
    y = top + 20 + 17 * len(lines) + (16 if step.exchange else 4)
    height = max(len(rows) for _, rows, _ in step.programs) * ROW
    several = len(step.programs) > 1
    middles = []
    for first, rows, name in step.programs:
        x = LEFT + first * CELL
        width = len(rows[0]) * CELL
        middles.append(x + width / 2)
        out.append(cells(x, y, rows))
        out.append(
            f'<rect class="program" x="{x - 1.5:g}" y="{y - 2:g}" width="{width + 1:g}" '
            f'height="{height + 2:g}" rx="3"/>'
        )
        if several:
            out.append(f'<text class="label" x="{x + 2:g}" y="{y + height + 14:g}">{name}</text>')
        if step.sums:
            at = x + width - 14
            out += [
                f'<text x="{at if several else x + width + 4:g}" y="{y + r * ROW + (30 if several else 13):g}">Σ</text>'
                for r in range(len(rows))
            ]
    out.append(f'<text class="label" x="16" y="{y + height / 2 + 4:g}">registers</text>')
    if step.exchange:
        out += [
            f'<path class="arrow" d="M{a + 6:g} {y - 4:g}C{a + 20:g} {y - 16:g} '
            f'{b - 20:g} {y - 16:g} {b - 6:g} {y - 4:g}"/>'
            f'<path class="head" d="M{a + 3:g} {y - 1:g}l8-1-6-6zM{b - 3:g} {y - 1:g}l-8-1 6-6z"/>'
            for a, b in pairwise(middles)
        ]
        out.append(f'<text class="label" x="16" y="{y - 6:g}">{step.exchange}</text>')
    registers = y + height + (NAMES if several else 0)
    y = registers + GAP
    tops = []
    for label, rows in step.memory:
        tops.append(y)
        out.append(cells(LEFT, y, rows))
        out.append(f'<text class="label" x="16" y="{y + len(rows) * ROW / 2 + 4:g}">{label}</text>')
        y += len(rows) * ROW + 8
    for first, columns, direction in step.moves:
        middle = LEFT + (first + columns / 2) * CELL
        if direction in ("load", "both"):
            at = middle - (8 if direction == "both" else 0)
            out.append(arrow(at, tops[step.below] - 3, registers + 3))
        if direction in ("store", "both"):
            at = middle + (8 if direction == "both" else 0)
            out.append(arrow(at, registers + 3, tops[-1 if direction == "both" else 0] - 3))
    end = y + 4
    card = (
        f'<rect class="step" x="4" y="{top:g}" width="{WIDTH - 8}" height="{end - top:g}" rx="6"/>'
        f'<rect class="lit lit{number}" x="4" y="{top:g}" width="5" height="{end - top:g}" rx="2"/>'
    )
    return card + "".join(out), end


def figure(regime: str) -> str:
    """The SVG of a regime."""
    title, steps = FIGURES[regime]
    body, top = [], 34.0
    for number, step in enumerate(steps, 1):
        shown, end = drawn_step(step, number, top)
        body.append(f"<g>{shown}</g>")
        top = end + 8
    everything = SECONDS * len(steps)
    share = 100 / len(steps)
    lit = "\n".join(
        f".lit{n} {{ animation-delay: {SECONDS * (n - 1)}s }}" for n in range(1, len(steps) + 1)
    )
    style = STYLE.replace(
        "animation: lit var(--all) infinite", f"animation: lit {everything}s infinite"
    )
    style = style.replace(
        "@keyframes lit { 0%, var(--end) { opacity: 0 } }",
        f"@keyframes lit {{ 0%, {share:.1f}% {{ opacity: 1 }} {share + 1:.1f}%, 100% {{ opacity: 0 }} }}\n{lit}",
    )
    text = ". ".join(f"{n}. {step.caption}" for n, step in enumerate(steps, 1)).replace("..", ".")
    shape = f'<defs><rect id="c" width="{CELL - 2}" height="{ROW - 2}" rx="2"/></defs>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * 4 // 3}" height="{top * 4 / 3:.0f}" '
        f'viewBox="0 0 {WIDTH} {top:g}" role="img" aria-labelledby="title text">\n'
        f'<title id="title">{title}</title>\n<desc id="text">{escape(text)}</desc>\n<style>{style}</style>\n{shape}'
        f'<rect class="page" width="{WIDTH}" height="{top:g}" rx="8"/>'
        f'<text x="10" y="22" style="font-weight: 600">{title}</text>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for regime in FIGURES:
        (FOLDER / f"{regime}.svg").write_text(figure(regime))


if __name__ == "__main__":
    main()
