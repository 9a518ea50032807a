"""Print, as JSON, the parameters of kernels compiled for sm_90: a process of its own, without the interpreter."""

import json

import torch

from rownorm.launch import launcher, native, resources
from rownorm.program import Program


def compiled_parameters() -> dict[str, list]:
    """For every kernel of some norms on sm_90: its parameters, and its arguments that are passed."""
    seen = {}

    def record(call, dtypes, target):
        compiled = launcher.compile_for(call, dtypes, target.triton)
        indices = {f"{role}_ptr": index for index, role in enumerate(call.roles)}
        signature = compiled.src.signature
        found = native.parameters(signature, compiled.asm["ptx"], indices, call.integers)
        names = [name for name, kind in signature.items() if kind != "constexpr"]
        values = {**{name: [index, 0] for name, index in indices.items()}}
        values |= {name: [-1, value] for name, value in call.integers.items()}
        seen[call.kernel.__name__] = [found, [values[name] for name in names] + [[-1, 0]] * 2]
        return resources.resources(call, compiled)

    resources._compile = record
    program = Program(center=True, eps=1e-5)
    for n_rows, n_cols in ((8, 4096), (4096, 32768), (64, 65536), (1024, 262144), (1, 1 << 20)):
        x = torch.empty(n_rows, n_cols, dtype=torch.bfloat16, device="meta")
        weight = x[0].clone()
        for compile_pass in (resources.compile_forward, resources.compile_backward):
            compile_pass(x, None, None, weight, weight, program, resources.TARGETS["sm_90"])
    return seen


if __name__ == "__main__":
    print(json.dumps(compiled_parameters()))
