"""Kernels compiled ahead of a launch: the launch must find them in Triton's cache."""

import pytest

from support.compiled import json_of

_SCRIPT = """
import json, torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import MockTensor
from rownorm.launch import launcher, resources
from rownorm.launch.l1_cache import copies_through_l1
from rownorm.program import Inputs, Program


class NoGpu:
    '''What Triton asks of a driver when it compiles for a launch.'''
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device=None: 0)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))


driver.set_active(NoGpu())
calls, compile_for = [], launcher.compile_for


def recorded(call, dtypes, target):
    compiled = compile_for(call, dtypes, target)
    calls.append((call, dtypes, compiled.hash))
    return compiled


resources.compile_for = recorded
for center, n_cols, activation in ((True, 300, "silu"), (False, 131072, None)):
    x = torch.empty(64, n_cols, dtype=torch.bfloat16, device="meta")
    program = Program(center, 1e-5, activation=activation, rounding="llama")
    inputs = (*Inputs(x, None, None, x[0], None), program, resources.TARGETS["sm_90"])
    resources.compile_forward(*inputs)
    resources.compile_backward(*inputs)

found = {}
for call, dtypes, ahead in calls:
    values = call.integers | call.constants
    for name in call.roles:
        dtype = dtypes.get(name)
        values[name + "_ptr"] = None if dtype is None else MockTensor(dtype)
    arguments = [values[name] for name in call.kernel.arg_names]
    with copies_through_l1(call.cluster_size > 1):
        launched = call.kernel.warmup(*arguments, **call.options, grid=(1,))
    found[call.kernel.__name__] = launched.hash == ahead
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(triton_cache):
    return json_of(["-c", _SCRIPT], triton_cache)


@pytest.mark.parametrize(
    "kernel", ["forward_resident", "forward_cluster", "backward_grid", "column_sums"]
)
def test_a_launch_finds_what_was_compiled_ahead(found, kernel):
    assert found[kernel]
