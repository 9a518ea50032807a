"""The result of ``rownorm race`` as one HTML file: a bar for every tensor, colored by the program that wrote it."""

from __future__ import annotations

from html import escape

from ...data.texts import count
from ...interpreter.findings import RecordedLaunch, Recording, Run, TensorUse
from ...interpreter.picture import picture
from ...page.page import part
from .table import words

STYLE = """
h2 { margin-top: 2rem; }
ol { max-width: 60rem; overflow-wrap: anywhere; }
li { margin: .3rem 0; }
td { vertical-align: top; }
td svg { display: block; width: 100%; height: 1.3rem; }
td rect { fill: var(--line); } td .written { fill: var(--color); } td .race { fill: #dc2626; }
pre { overflow-x: auto; font-size: .82rem; }
"""
WIDTH = 1000.0


def page(title: str, recording: Recording) -> str:
    """The whole page."""
    found = "".join(f"<li>{escape(str(one))}</li>" for one in recording.findings)
    verdict = (
        f"<p>{count(len(recording.findings), 'finding')}:</p><ol>{found}</ol>"
        if found
        else "<p>Nothing was found.</p>"
    )
    launches = "".join(map(_launch, recording.launches))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f"<style>{part('page.css')}{STYLE}</style><h1>{escape(title)}</h1>{verdict}"
        f'<p class="note">A bar is a tensor from its first element to its last. A color is the program that wrote '
        f"there; red is a race, gray was not written.</p>{launches}</html>\n"
    )


def _launch(launch: RecordedLaunch) -> str:
    grid = " x ".join(map(str, launch.grid))
    uses = "".join(map(_use, launch.uses))
    return (
        f"<h2>Launch {launch.number}: {escape(launch.kernel)}, {grid} programs</h2>"
        f'<div class="scroll whole"><table><tr><th>tensor<th>read<th>written<th></tr>{uses}</table></div>'
        f"<pre>{escape(chr(10).join(picture(launch)))}</pre>"
    )


def _use(use: TensorUse) -> str:
    bars = "".join(_bar(use, run) for run in use.runs)
    return (
        f"<tr><td>{escape(use.tensor)}<td>{use.read:,} by {use.readers}<td>{use.written:,} by {use.writers}"
        f'<td width="55%"><svg viewBox="0 0 {WIDTH:g} 16" preserveAspectRatio="none">'
        f'<rect width="{WIDTH:g}" height="16"/>{bars}</svg></tr>'
    )


def _bar(use: TensorUse, run: Run) -> str:
    scale = WIDTH / max(1, use.elements)
    hue = run.programs[0] * 137 % 360  # neighbors in number are far apart in color
    fill = (
        'class="race"'
        if len(run.programs) > 1
        else f'class="written" style="--color:hsl({hue} 60% 60%)"'
    )
    return (
        f'<rect x="{run.first * scale:.2f}" width="{(run.last - run.first + 1) * scale:.2f}" height="16" {fill}>'
        f"<title>{escape(words(run))}</title></rect>"
    )
