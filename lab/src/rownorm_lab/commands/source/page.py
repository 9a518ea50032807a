"""A kernel's source beside its machine code as one HTML file, with the style of the report page."""

from __future__ import annotations

from html import escape
from string import Template

from ...page.page import part
from .beside import Listing, Pair, Shown

STYLE = """
.code { width: 100%; border-collapse: collapse; font: .82rem/1.45 ui-monospace, "Liberation Mono", monospace; }
.code td { padding: 0 .6rem; vertical-align: top; white-space: pre-wrap; border-bottom: 1px solid var(--line); }
.code td:first-child { color: var(--soft); text-align: right; width: 3rem; }
.code td:nth-child(2) { width: 52%; }
.code td { overflow-wrap: anywhere; }
@media (max-width: 700px) {
  .code td:nth-child(2), .code td:nth-child(3) { display: block; width: auto; }
  .code td:nth-child(2) { border-bottom: 0; }
}
.code i { display: block; font-style: normal; color: var(--soft); }
.code i[class] { color: var(--ink); padding-left: .4rem; border-left: 4px solid var(--soft); }
.code i.load { border-color: #2563eb; } .code i.store { border-color: #d97706; }
.code i.reduction { border-color: #7c3aed; } .code i.barrier { border-color: #dc2626; }
.code i.shared { border-color: #0d9488; } .code i.spill, .code i.atomic { border-color: #be123c; }
"""


def page(shown: Shown) -> str:
    """The whole page."""
    facts = "".join(
        f"<dt>{escape(question)}</dt><dd>{escape(answer)}</dd>"
        for question, answer in shown.answers
    )
    return (
        Template(part("page.html"))
        .substitute(
            title=escape(f"{shown.kernel}: source and {shown.isa.upper()}"),
            css=part("page.css") + STYLE,
            subtitle=escape(
                f"{shown.kernel} for {shown.about} on {shown.target}, Triton {shown.triton}"
            ),
            damaged="",
            opening=f'<p class="verdict">{escape(shown.kernel)}: source beside its {escape(shown.isa.upper())}</p>'
            f'<dl class="facts">{facts}</dl>',
            bar="",
            charts="",
            chapters="",
            tables="\n".join(map(_listing, shown.code)),
            footer=f"Written by <code>rownorm source {escape(shown.kernel)}</code>.",
            data="{}",
            scripts="",
        )
        .replace("<h1>rownorm report</h1>", "<h1>rownorm source</h1>")
    )


def _listing(listing: Listing) -> str:
    rows = "".join(map(_row, listing.lines))
    return f'<section><h2>{escape(listing.title)}</h2><table class="code">{rows}</table></section>'


def _row(pair: Pair) -> str:
    instructions = "".join(
        f'<i class="{mark}">{escape(text)}</i>' if mark else f"<i>{escape(text)}</i>"
        for mark, text in pair.instructions
    )
    number = pair.number or ""
    return f"<tr><td>{number}</td><td>{escape(pair.source)}</td><td>{instructions}</td></tr>"
