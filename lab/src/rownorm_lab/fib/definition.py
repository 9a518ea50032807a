"""A norm as a FlashInfer-Bench Definition with Workloads.

Two conventions of names:

    course    exercise 6: rmsnorm_d4096, op_type norm, axes batch and hidden, inputs x, weight, eps, output out; fp16
    public    rmsnorm_h4096, fused_add_rmsnorm_h4096: the names of FlashInfer's public dataset; eps is fixed; bf16
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from flashinfer_bench import Definition, Trace, Workload

from ..data.case import Case, Dtype, Operation

DTYPE_NAMES: dict[Dtype, str] = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


class Norm(NamedTuple):
    """What a Definition computes, as a row program: its options, and the names of its tensors."""

    operation: Operation
    cols: int
    dtype: Dtype
    eps: float | None  # None: an input
    rows_axis: str  # the axis that counts rows
    # Role to name: x, residual, weight, bias, eps; in the order of the arguments.
    inputs: dict[str, str]
    outputs: dict[str, str]  # role to name: y, h
    weight_shift: float = 0.0

    @property
    def centers(self) -> bool:
        """Whether it is a LayerNorm."""
        return self.operation in ("layer_norm", "add_layer_norm")

    @property
    def eps_source(self) -> str:
        """The eps as source text: the name of the input, or the value."""
        return self.inputs.get("eps", repr(self.eps))

    def case(self, workload: Workload) -> Case:
        """The lab's case of one workload; ValueError where there is none."""
        if self.weight_shift:
            raise ValueError(f"the lab has no case with {self.weight_shift:g} added to the weight")
        return Case(
            operation=self.operation,
            rows=workload.axes[self.rows_axis],
            cols=self.cols,
            dtype=self.dtype,
            bias=None if ("bias" in self.inputs) == self.centers else "bias" in self.inputs,
            returns_h="h" in self.outputs or "residual" not in self.inputs,
            eps=self.eps_of(workload),
        )

    def eps_of(self, workload: Workload) -> float:
        """The eps of one workload; ValueError if it is neither fixed nor a scalar of the workload."""
        if self.eps is not None:
            return self.eps
        given = workload.inputs.get(self.inputs["eps"])
        if given is None or given.type != "scalar":
            raise ValueError(
                f"workload {workload.uuid}: {self.inputs['eps']} must be a scalar; a random one is noise"
            )
        return float(given.value)


class Convention(NamedTuple):
    """How Definitions and their tensors are called."""

    add: str  # before the name of a norm with a residual add
    letter: str  # before the width
    op_types: tuple[str, str]  # of RMSNorm and of LayerNorm
    axes: tuple[str, str]  # of rows and columns
    tensors: dict[str, str]  # role to name
    dtype: Dtype  # the one that names do not mention
    eps_is_input: bool
    returns_h: bool  # whether the sum with the residual is an output


CONVENTIONS = {
    "course": Convention(
        add="add_",
        letter="d",
        op_types=("norm", "norm"),
        axes=("batch", "hidden"),
        tensors={"x": "x", "y": "out", "h": "residual_out"},
        dtype="fp16",
        eps_is_input=True,
        returns_h=True,
    ),
    "public": Convention(
        add="fused_add_",
        letter="h",
        op_types=("rmsnorm", "layernorm"),
        axes=("batch_size", "hidden_size"),
        tensors={"x": "hidden_states", "y": "output"},
        dtype="bf16",
        eps_is_input=False,
        returns_h=False,
    ),
}
COURSE_COLS = (4096,)
BATCHES = (1, 8, 32, 128, 512)
# Of the public dataset, and widths of common models that 0.1.2 was published without.
PUBLIC_COLS = (128, 512, 1536, 2048, 3072, 3584, 4096, 5120, 5376, 6144, 7168, 8192, 16384)
# The eps that the public RMSNorm of a width has; 1e-6 elsewhere.
PUBLIC_EPS = {4096: 1e-5, 8192: 1e-5}


def default_eps(convention: str, operation: Operation, cols: int) -> float:
    """1e-5 for LayerNorm; for RMSNorm what the public Definition of that width has, else 1e-6."""
    if operation in ("layer_norm", "add_layer_norm"):
        return 1e-5
    return PUBLIC_EPS.get(cols, 1e-6) if convention == "public" else 1e-6


def norm_of(name: str, operation: Operation, cols: int, dtype: Dtype, eps: float) -> Norm:
    """The norm that the convention ``name`` describes."""
    convention = CONVENTIONS[name]
    adds = operation.startswith("add_")
    roles = ["x", "residual"] if adds else ["x"]
    roles += ["weight", "bias"] if operation.endswith("layer_norm") else ["weight"]
    roles += ["eps"] if convention.eps_is_input else []
    results = ["y", "h"] if adds and convention.returns_h else ["y"]
    called = convention.tensors
    return Norm(
        operation=operation,
        cols=cols,
        dtype=dtype,
        eps=None if convention.eps_is_input else eps,
        rows_axis=convention.axes[0],
        inputs={role: called.get(role, role) for role in roles},
        outputs={role: called.get(role, role) for role in results},
    )


def definition_of(convention_name: str, norm: Norm) -> Definition:
    """The Definition of a norm, in the convention of that name; its reference computes in fp32 and rounds once."""
    convention = CONVENTIONS[convention_name]
    rows, cols = convention.axes
    add = convention.add if "residual" in norm.inputs else ""
    name = f"{add}{'layernorm' if norm.centers else 'rmsnorm'}_{convention.letter}{norm.cols}"
    suffix = "" if norm.dtype == convention.dtype else f"_{norm.dtype}"
    shapes: dict[str, list[str] | None] = {"weight": [cols], "bias": [cols], "eps": None}

    def tensor(role: str) -> dict[str, Any]:
        dtype = "float32" if role == "eps" else DTYPE_NAMES[norm.dtype]
        return {"shape": shapes.get(role, [rows, cols]), "dtype": dtype}

    eps = "eps is an input" if norm.eps is None else f"eps is {norm.eps:g}"
    return Definition.model_validate(
        {
            "name": f"{name}{suffix}",
            "op_type": convention.op_types[norm.centers],
            "description": f"{norm.operation} over rows of {norm.cols} columns; {eps}.",
            "axes": {rows: {"type": "var"}, cols: {"type": "const", "value": norm.cols}},
            "inputs": {norm.inputs[role]: tensor(role) for role in norm.inputs},
            "outputs": {norm.outputs[role]: tensor(role) for role in norm.outputs},
            "reference": reference_source(norm),
        }
    )


def definition_named(name: str) -> Definition | None:
    """The Definition that has this name in one of the conventions; None if there is none."""
    for called, convention in CONVENTIONS.items():
        pattern = rf"({convention.add})?(rms|layer)norm_{convention.letter}([1-9]\d*)(?:_({'|'.join(DTYPE_NAMES)}))?"
        if found := re.fullmatch(pattern, name):
            adds, kind, cols, dtype = found.groups()
            operation: Operation = f"{'add_' if adds else ''}{kind}_norm"  # type: ignore[assignment]
            eps = default_eps(called, operation, int(cols))
            norm = norm_of(called, operation, int(cols), dtype or convention.dtype, eps)  # type: ignore[arg-type]
            return definition_of(called, norm)
    return None


def reference_source(norm: Norm) -> str:
    """The reference implementation: the formula in fp32, one rounding of each output."""
    x, weight = norm.inputs["x"], norm.inputs["weight"]
    added = [f"{norm.inputs[role]}.float()" for role in ("x", "residual") if role in norm.inputs]
    lines = [f"h = {' + '.join(added)}"]
    lines += ["deviation = h - h.mean(-1, keepdim=True)"] if norm.centers else ["deviation = h"]
    lines += [f"rstd = torch.rsqrt(deviation.square().mean(-1, keepdim=True) + {norm.eps_source})"]
    scaled = f"deviation * rstd * {weight}.float()"
    if "bias" in norm.inputs:
        scaled += f" + {norm.inputs['bias']}.float()"
    results = {"y": f"({scaled}).to({x}.dtype)", "h": f"h.to({x}.dtype)"}
    lines += [f"return {', '.join(results[role] for role in norm.outputs)}"]
    return run_source("import torch", norm.inputs.values(), lines)


def run_source(head: str, parameters: Iterable[str], lines: Iterable[str]) -> str:
    """The source text of a function ``run`` below ``head``."""
    body = "".join(f"    {line}\n" for line in lines)
    return f"{head}\n\n\ndef run({', '.join(parameters)}):\n{body}"


def workloads_of(
    definition: Definition, norm: Norm, batches: Sequence[int], eps: float
) -> list[Trace]:
    """One workload for each number of rows: random tensors; eps, where it is an input, as a scalar."""
    found = []
    for rows in batches:
        inputs: dict[str, Any] = {name: {"type": "random"} for name in norm.inputs.values()}
        if "eps" in norm.inputs:
            inputs[norm.inputs["eps"]] = {"type": "scalar", "value": eps}
        # The same workload has the same id in every export, so that traces of several exports can be compared.
        identity = f"rownorm {definition.name} {rows} {eps:g}"
        workload = {
            "axes": {norm.rows_axis: rows},
            "inputs": inputs,
            "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, identity)),
        }
        found.append(Trace(definition=definition.name, workload=Workload.model_validate(workload)))
    return found
