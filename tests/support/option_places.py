"""Every place that has to know an option of the row program, and whether it does.

As a script it prints, as JSON, the places that lack the option named by its arguments.
"""

import inspect
import json
import sys

import torch

import rownorm
from rownorm import reference
from rownorm.launch import launcher
from rownorm.ops import checks, cpu, execute, export
from rownorm.program import DEFAULT_EPS, INPUTS, Inputs, Program, is_in_backward

FUNCTIONS = ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")


def missing_places(option: str, value: object) -> list[str]:
    """The places where ``option=value`` changes nothing, although it differs from the default."""
    missing = []
    operator = torch.ops.rownorm.rms_norm
    reached = (False, False)
    if option not in {argument.name for argument in operator.default._schema.arguments}:
        missing.append(f"ops/schema.py: the operators have no {option}")
    else:
        reached = constants_differ(operator, "rms_norm", option, value)
    for name in FUNCTIONS:
        function = getattr(rownorm, name)
        if option not in inspect.signature(function).parameters:
            missing.append(f"ops/norms.py: {name} has no keyword {option}")
        elif constants_differ(function, name, option, value) != reached:
            missing.append(f"ops/norms.py: {name} does not pass {option} on")
    missing += [
        f"kernels/bundles.py, {direction}: no field of Spec depends on {option}"
        for direction, is_reached in zip(("forward", "backward"), reached, strict=True)
        if not is_reached
    ]
    missing += [f"{place}: no result depends on {option}" for place in plain_places(option, value)]
    if not rejects_nonsense(option):
        missing.append(f"ops/checks.py: any value of {option} is accepted")
    return missing


def constants_differ(function, name, option, value) -> tuple[bool, bool]:
    """Whether the option changes a constant, or the dtype of a tensor, of the kernels that this function starts.

    One answer for forward, one for backward.
    """
    usual, changed = (
        kernel_constants(function, name, option),
        kernel_constants(function, name, option, value),
    )
    in_forward, in_backward = (a != b for a, b in zip(usual, changed, strict=True))
    return in_forward, in_backward or not is_in_backward(option)


def kernel_constants(function, name, option, value=None) -> tuple[list, list]:
    """Constants of the kernels of forward and backward, and dtypes of their tensors. No kernel runs.

    value: None for the default of the option.
    """
    bound, bind = [], launcher.bind

    def record(call, roles, tensors, device):
        dtypes = {role: tensors[i].dtype for role, i in roles.items() if tensors[i] is not None}
        bound.append((call.constants, dtypes))
        return launcher.Bound(lambda tensors, addresses: None)

    x = torch.zeros(2, 8, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.zeros(8, dtype=torch.bfloat16, requires_grad=True)
    residual = [x.detach()] if name.startswith("add_") else []
    beside = {"scale": weight.detach()} if option == "scale_shift" else {}
    beside |= {"gate": x.detach()} if option.startswith("gate_") else {}
    execute._forget()
    launcher.bind = record
    try:
        options = {} if value is None else {option: value}
        outputs = function(x, *residual, weight, **beside, **options)
        n_forward = len(bound)
        y = outputs[0] if residual else outputs
        torch.autograd.grad(y, (x, weight), torch.zeros_like(y))
    finally:
        launcher.bind = bind
        execute._forget()
    return bound[:n_forward], bound[n_forward:]


def plain_places(option: str, value: object) -> list[str]:
    """Functions in PyTorch whose results do not depend on the option."""
    usual = Program(False, DEFAULT_EPS["rms_norm"])
    changed = usual._replace(**{option: value})
    x, dy = torch.randn(2, 32, 64).bfloat16()
    weight, scale = torch.rand(2, 64)
    inputs = Inputs(
        *(x, None, None, weight, None),
        scale=scale if option == "scale_shift" else None,
        gate=dy if option.startswith("gate_") else None,
    )

    def forward(compute, program):
        return compute(inputs, program)

    def backward(compute, program):
        outputs = reference.forward(*inputs, usual)
        saved = reference.backward_inputs(dy, None, inputs, outputs)
        return compute(saved, program, False, tuple(t is not None for t in inputs))

    def differ(run, compute):
        pairs = zip(run(compute, usual), run(compute, changed), strict=True)
        return any(
            a is not None and (a.dtype != b.dtype or not torch.equal(a, b)) for a, b in pairs
        )

    places = {
        "reference.py, forward": differ(
            forward, lambda inputs, program: reference.forward(*inputs, program)
        ),
        "ops/cpu.py, forward": differ(forward, cpu.forward),
        "ops/export.py, forward": differ(forward, export.forward),
    }
    if is_in_backward(option):
        places["reference.py, backward"] = differ(backward, reference.backward)
        places["ops/cpu.py, backward"] = differ(backward, cpu.backward)
    missing = [place for place, depends in places.items() if not depends]
    # The others leave an option that they do not know to ``reference``.
    return [place for place in missing if place.startswith("reference")] or missing


def rejects_nonsense(option: str) -> bool:
    program = Program(False, DEFAULT_EPS["rms_norm"])._replace(**{option: object()})
    try:
        checks.check_options("a test", program, INPUTS)
    except (TypeError, ValueError) as error:
        return option in str(error)
    return False


if __name__ == "__main__":
    print(json.dumps(missing_places(sys.argv[1], json.loads(sys.argv[2]))))
