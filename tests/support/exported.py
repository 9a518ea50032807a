"""Norms as one module that is exported, and a process without rownorm that runs what was exported."""

import subprocess
import sys

import torch

from support.cases import INPUTS, Case, call, output_dtype

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64

LLAMA = Case(False, BF16, rounding="llama")
# Every operator, option and dtype at least once. Constants of ONNX are fp32: in the fp64 cases eps is exact in fp32.
CASES = (
    Case(True, bias=True),
    Case(False),
    Case(True, weight=False, eps=1e-3),
    Case(False, F64, bias=True, activation="relu", eps=2.0**-20),
    LLAMA,
    Case(False, F32, activation="silu"),
    Case(True, F16, bias=True, rounding="llama", parameter_dtype=F32),
    Case(
        True,
        BF16,
        residual_dtype=BF16,
        pre_bias=True,
        bias=True,
        weight_shift=1.0,
        activation="gelu_tanh",
    ),
    Case(False, BF16, residual_dtype=F32, parameter_dtype=F32, out_dtype=F32, activation="gelu"),
    Case(False, F16, residual_dtype=F16, pre_bias=True, rounding="llama", weight_shift=1.0),
    Case(True, F64, residual_dtype=F64, eps=2.0**-17),
)


class Norms(torch.nn.Module):
    """Cases as one module. Rows and results are fp64, which has all values of the other dtypes and is in every runtime.

    rows: x [and residual] of each case; results: y [and h] of each case.
    """

    def __init__(self, cases, tensors):
        super().__init__()
        self.cases = cases
        self.vectors = torch.nn.ModuleList(
            torch.nn.ParameterDict({n: one[n] for n in INPUTS[2:] if one[n] is not None})
            for one in tensors
        )

    def forward(self, *rows):
        remaining, results = iter(rows), []
        for case, vectors in zip(self.cases, self.vectors, strict=True):
            dtypes = {"x": case.dtype, "residual": case.residual_dtype}
            inputs = {n: d and next(remaining).to(d) for n, d in dtypes.items()}
            inputs |= {n: vectors.get(n) for n in INPUTS[2:]}
            results += [t.double() for t in call(case, inputs) if t is not None]
        return tuple(results)


def rows_of(tensors):
    """The arguments of ``Norms``."""
    return tuple(one[n].double() for one in tensors for n in INPUTS[:2] if one[n] is not None)


def outputs_of(results, tensors):
    """The results of ``Norms`` by name, in their dtypes: one dictionary for each case."""
    remaining = iter(results)
    return [
        {
            name: next(remaining).detach().to(output_dtype(name, one))
            for name in (("y",) if one["residual"] is None else ("y", "h"))
        }
        for one in tensors
    ]


def export(module, rows):
    """The exported program of ``Norms``, for any batch and any sequence length."""
    shape = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("sequence", min=1)}
    return torch.export.export(module, rows, dynamic_shapes=((shape,) * len(rows),))


def operators(program):
    """The operators of rownorm in an exported program."""
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    return [target for target in targets if target.startswith("rownorm.")]


_ELSEWHERE = """
import sys
sys.modules["rownorm"] = None  # an import raises
import torch
path = sys.argv[1]
program = {loader}
torch.save(program(*torch.load(path + ".inputs")), path + ".outputs")
"""


def run_without_rownorm(loader, path, rows):
    """The results of the program in the file ``path``, in a process that cannot import rownorm.

    loader: an expression that makes a function of ``path``.
    """
    torch.save(rows, f"{path}.inputs")
    command = [sys.executable, "-c", _ELSEWHERE.format(loader=loader), str(path)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return torch.load(f"{path}.outputs")
