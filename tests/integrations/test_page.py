"""The Python blocks of docs/integrations.md and docs/coding-agents.md run, each by itself."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = [
    block
    for name in ("coding-agents", "integrations")
    for block in re.findall(r"```python\n(.*?)```", (DOCS / f"{name}.md").read_text(), re.DOTALL)
]


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_block(block):
    exec(block, {})
