"""A tensor that is added to the description, the public functions and ``reference`` works in every way of calling.

The kernels' arithmetic is left out: the tensors are on a CPU, where C and C++ leave a call with the new tensor to
``reference`` and keep every other call.
"""

from support.edited_copy import run_in_copy
from support.fake_driver import needs_compiler

# y = activation(...) + offset
EDITS = {
    "program.py": [
        (
            '    bias: Annotated[Tensor | None, Input("columns", "added after the weight")]\n',
            '    offset: Annotated[Tensor | None, Input("columns", "for tests", is_keyword=True)] = None\n',
        )
    ],
    "ops/norms.py": [
        ("pre_bias, weight, bias", ", offset"),
        ("    pre_bias: Tensor | None = None,\n", "    offset: Tensor | None = None,\n"),
        ("    weight: Tensor | None,\n    bias: Tensor | None,\n", "    offset: Tensor | None,\n"),
    ],
    "reference.py": [
        ("    weight: Tensor | None\n    bias: Tensor | None\n", "    offset: Tensor | None\n"),
        (
            "    pre_bias: Tensor | None,\n    weight: Tensor | None,\n    bias: Tensor | None,\n",
            "    offset: Tensor | None,\n",
        ),
        ("y = activate(z, program.activation)", ".add(0 if offset is None else offset)"),
        ("dy, dh, h, pre_bias, weight, bias", ", offset"),
        (
            '        bias=column_sum(dz, bias) if is_wanted["bias"] else None,\n',
            '        offset=column_sum(dy, offset) if is_wanted["offset"] else None,\n',
        ),
    ],
}

SCRIPT = """
import torch, rownorm
from rownorm.ops import cpu_native, eager, execute
from rownorm.program import Inputs, Program

double = {"dtype": torch.float64, "requires_grad": True}
x, residual = torch.randn(2, 3, 8, **double)
weight, bias, pre_bias, offset = torch.randn(4, 8, **double)

def norm(x, residual, weight, pre_bias, offset):
    y, h = rownorm.add_layer_norm(x, residual, weight, pre_bias=pre_bias, offset=offset)
    return y, h

inputs = [t.detach().requires_grad_() for t in (x, residual, weight, pre_bias, offset)]
assert torch.autograd.gradcheck(norm, inputs)
assert torch.autograd.gradgradcheck(norm, inputs)
for dims in ((0, None, None), (None, None, 0)):
    batch = [t if dim is None else torch.stack((t, t)) for t, dim in zip((x, weight, offset), dims)]
    assert torch.vmap(lambda x, w, o: rownorm.rms_norm(x, w, offset=o), dims)(*batch).shape == (2, 3, 8)
torch.library.opcheck(torch.ops.rownorm.rms_norm.default, (x.detach(), None, None, None, offset.detach()))
try:
    rownorm.rms_norm(x, offset=offset[:7])
    raise SystemExit("a wrong shape was accepted")
except ValueError as error:
    assert "offset must have shape (8,)" in str(error)

# fp32, which is computed in C: with C++ or Python around it, and without a gradient.
x, residual, weight, offset = (t.detach().float() for t in (x, residual, weight, offset))
options = tuple(Program(True, 1e-5))
assert cpu_native.forward(Inputs(x, residual, None, weight, None), options, True) is not None
assert cpu_native.forward(Inputs(x, residual, None, weight, None, offset), options, True) is None

def check():
    for requires_grad in (False, True):
        given = x.clone().requires_grad_(requires_grad)
        plain, moved = rownorm.rms_norm(given, weight), rownorm.rms_norm(given, weight, offset=offset)
        torch.testing.assert_close(moved, plain + offset)
        assert moved.requires_grad == requires_grad
        assert rownorm.nn.LayerNorm(8)(given).shape == given.shape
        if requires_grad:
            dx = [torch.autograd.grad(y.sum(), given)[0] for y in (plain, moved)]
            torch.testing.assert_close(*dx)

check()
from rownorm.launch import native
eager.native._use_module(native, native.load_for_cpu())
check()
"""


@needs_compiler
def test_an_added_tensor_flows_from_the_public_functions_to_plain_pytorch(tmp_path):
    run_in_copy(tmp_path, ["-c", SCRIPT], EDITS, TRITON_INTERPRET="0", ROWNORM_NODE="0")
