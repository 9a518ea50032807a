"""Cases in a setting, which the bars measure beside torch: calls as training code makes them, norms on a CPU, and
training steps of small models; and calls with a modulation or a gate, beside the plain norm. How they are run is in
``calls.py``, ``cpu.py`` and ``steps.py``; this file needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ...data.case import OPERATIONS, Case
from ...data.shapes import Shape
from ...data.suites import NORMS, grid
from ...models import DIT_SIZES, SMALL_MODELS, TINY

ADD = "rownorm add"  # a provider of training steps: rownorm's norms with the residual add
PLAIN = (
    "rownorm plain"  # a provider of calls with a modulation or a gate: the plain norm of the shape
)
OWN_PROVIDERS = (ADD, PLAIN)  # rownorm's, which is measured with each
BESIDE_PLAIN = "beside the plain norm"
CALLS = (
    *("plain", "autocast bf16", "autocast fp16", "default device", "profiler"),
    *("saved-tensor hooks", "inference mode", "checkpoint", "module, 3-D", "module, 4-D"),
)
THREADS = {"1 thread": 1, "2 threads": 2}
CPU_SHAPES: tuple[Shape, ...] = ((1, 4096), (64, 1024), (512, 4096), (4096, 1024))
# Training steps: at least how fast beside torch's norms, with the norms swapped and with the residual add.
STEPS = {
    "step, bf16": (1.03, 1.05),
    "step, autocast": (1.0, 1.03),
    "step, autocast, out bf16": (1.05, 1.08),  # out_dtype=torch.bfloat16 of every norm
    "step, autocast bf16 stream": (1.0, 1.03),  # the residual stream, else fp32
    "step, default device": (1.0, 1.0),
}
# Training steps of a DiT: at least how fast beside PyTorch's operators.
DIT_STEPS = {"DiT step, bf16": 1.08, "DiT step, autocast": 1.08, "DiT step, compiled": 1.0}


def call_cases(tiny: bool = False) -> list[Case]:
    """No gradient is computed in inference mode, and a checkpoint is about gradients."""
    plain = grid(NORMS, ["forward", "both"], ["bf16"], [(8, 16 if tiny else 4096)])
    left_out = {"forward": "checkpoint", "both": "inference mode"}
    return [
        msgspec.structs.replace(case, setting=setting)
        for case in plain
        for setting in CALLS
        if setting != left_out[case.direction]
    ]


def form_cases(tiny: bool = False) -> list[Case]:
    """Modulation, a residual add with its gate, and gates in both orders."""
    rows, cols = 8, 16 if tiny else 4096
    modulated = {"weight": False, "sample_rows": 4}
    forms: tuple[tuple[str, dict[str, Any]], ...] = (
        ("layer_norm", modulated),
        ("add_layer_norm", modulated | {"residual_gate": True}),
        ("rms_norm", {"gate_activation": "silu"}),
        ("rms_norm", {"gate_activation": "silu", "gate_first": True}),
    )
    return [
        case
        for operation, options in forms
        for case in grid(
            [operation],
            ["forward", "both"],
            ["bf16"],
            [(rows, cols)],
            setting=BESIDE_PLAIN,
            **options,
        )
    ]


def cpu_cases(tiny: bool = False) -> list[Case]:
    """Both norms, with a residual add and without, with one thread and with two."""
    shapes = ((1, 16), (3, 16)) if tiny else CPU_SHAPES
    plain = grid(OPERATIONS, ["forward", "both"], ["fp32", "bf16"], shapes)
    return [msgspec.structs.replace(case, setting=setting) for case in plain for setting in THREADS]


def step_cases(tiny: bool = False) -> list[Case]:
    """A case has the norm of the model, and the tokens of its batch as rows; its name is that of the model."""
    sizes = {name: TINY if tiny else size for name, size in SMALL_MODELS.items()}
    return [
        Case(
            operation="rms_norm" if name == "llama" else "layer_norm",
            direction="both",
            rows=size.batch * size.n_tokens,
            cols=size.width,
            setting=setting,
            name=name,
        )
        for name, size in sizes.items()
        for setting in STEPS
    ]


def dit_cases(tiny: bool = False) -> list[Case]:
    """A case has the norms of the model, and the tokens of its batch as rows. A trial compiles nothing."""
    sizes = [TINY] if tiny else DIT_SIZES.values()
    return [
        Case(
            operation="layer_norm",
            direction="both",
            rows=size.batch * size.n_tokens,
            cols=size.width,
            weight=False,
            sample_rows=size.n_tokens,
            eps=1e-6,
            setting=setting,
            name=f"DiT, {size.width} columns",
        )
        for size in sizes
        for setting in DIT_STEPS
        if not (tiny and setting.endswith("compiled"))
    ]


# By the name of the part. Tiny ones are for a trial, which is not judged.
CASES: dict[str, Callable[[bool], list[Case]]] = {
    "calls": call_cases,
    "host-forms": form_cases,
    "cpu": cpu_cases,
    "small": step_cases,
    "dit-steps": dit_cases,
}
