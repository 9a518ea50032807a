"""The Python blocks of the documents run: here, in order, each page by itself, or in the test that is named here."""

import re
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import rownorm

pytestmark = pytest.mark.usefixtures("without_interpreter")
ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
# What a page takes for granted: tensors of the reader.
TENSORS = {
    "torch": torch,
    "rownorm": rownorm,
    "x": torch.randn(3, 4096),
    "h": torch.randn(3, 4096),
    "weight": torch.ones(4096),
}
HERE = {
    "docs/autocast.md": TENSORS,
    "docs/coding-agents.md": {},
    "docs/inference.md": {},
    "docs/integrations.md": {},
    "docs/kernels.md": {},
    "docs/numbers.md": TENSORS,
    "docs/package-index.md": {},
    "docs/training.md": {},
}
ELSEWHERE = {
    "README.md": "tests/test_examples.py",
    "docs/flashinfer-bench.md": "lab/tests/fib/test_applied.py",
    "docs/own-kernel.md": "lab/tests/providers/test_own.py",
    "docs/patching.md": "tests/patching/test_transformers.py",
}


def test_every_page_with_python_is_named_here():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("lab/*.md")]
    found = {str(page.relative_to(ROOT)) for page in pages if BLOCK.search(page.read_text())}
    assert found == HERE.keys() | ELSEWHERE.keys() | {"docs/operations.md"}
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text()


@pytest.mark.parametrize("page", HERE)
def test_blocks(page, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    request.addfinalizer(lambda: rownorm.set_batch_invariant(False))
    names = dict(HERE[page])
    for block in BLOCK.findall((ROOT / page).read_text()):
        exec(block, names)


def function_of(body, *parameters):
    """A block that stands in a function of the reader's."""
    names = {"torch": torch, "F": F, "rownorm": rownorm}
    exec(f"def function({', '.join(parameters)}):\n" + indent(body, "    "), names)
    return names["function"]


def test_blocks_of_operations():
    """Code of models before and after: the same numbers, as near as fp32 is."""
    blocks = BLOCK.findall((ROOT / "docs" / "operations.md").read_text())
    dit, dit_after, following, flux, flux_after, *gated = blocks
    qwen, qwen_after, kimi, kimi_after, mamba, mamba_after = gated
    cols = 32
    model = SimpleNamespace(
        modulation=nn.Linear(cols, 6 * cols),
        attention=nn.Linear(cols, cols),
        mlp=nn.Linear(cols, cols),
        norm1=nn.LayerNorm(cols, eps=1e-6, elementwise_affine=False),
        norm2=nn.LayerNorm(cols, eps=1e-6, elementwise_affine=False),
    )
    x, t = torch.randn(2, 5, cols), torch.randn(2, cols)
    before, after = (
        function_of(f"{one}\nreturn x", "self", "x", "t")(model, x, t) for one in (dit, dit_after)
    )
    torch.testing.assert_close(after, before)
    terms = [torch.randn(2, 1, cols) for _ in range(3)]
    y, total = function_of(f"{following}\nreturn y, x", "update", "x", "gate", "scale", "shift")(
        x + 1, x, *terms
    )
    gate, scale, shift = terms
    torch.testing.assert_close(total, x + gate * (x + 1))
    torch.testing.assert_close(y, model.norm1(total) * (1 + scale) + shift)

    names = ("hidden_states", "attn_output", "gate_msa", "scale_mlp", "shift_mlp")
    tensors = [x, x + 1, *(term[:, 0] for term in terms)]
    expected, got = (
        function_of(f"{one}\nreturn norm_hidden_states, hidden_states", "self", *names)(
            model, *(tensor.bfloat16() for tensor in tensors)
        )
        for one in (flux, flux_after)
    )
    torch.testing.assert_close(got, expected, rtol=0, atol=0)  # each step is rounded

    norm = SimpleNamespace(weight=torch.randn(cols), variance_epsilon=1e-6, group_size=cols)
    arguments = (norm, x, torch.randn_like(x), torch.float32)
    parameters = ("self", "hidden_states", "gate", "input_dtype")
    whole, in_groups = mamba_after.split("\n\n")
    compared = ((qwen, (qwen_after,)), (kimi, (kimi_after,)), (mamba, (whole, in_groups)))
    for first, others in compared:
        expected = function_of(first, *parameters)(*arguments)
        for other in others:
            torch.testing.assert_close(function_of(other, *parameters)(*arguments), expected)
