"""Code in the documents that needs packages which are not always there: blocks that are indented, not fenced."""

import re
from pathlib import Path
from textwrap import dedent

DOCS = Path(__file__).parents[2] / "docs"


def indented_block(page: str, words: str) -> str:
    """The block of ``docs/page`` that has these words."""
    blocks = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", (DOCS / page).read_text(), re.MULTILINE)
    (found,) = (one for one in blocks if words in one)
    return dedent(found)
