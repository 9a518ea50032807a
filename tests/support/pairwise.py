"""Sets of options in which every pair of choices occurs."""

import itertools
import random

import torch

from rownorm.program import ACTIVATIONS, ROUNDINGS
from support.cases import DTYPES, Case


def covering(seed: int, **choices) -> list[dict]:
    """Combinations in which every pair of choices of any two options occurs: pairwise testing."""
    draw = random.Random(seed)
    names = list(choices)
    missing = {
        (a, i, b, j)
        for a, b in itertools.combinations(range(len(names)), 2)
        for i in range(len(choices[names[a]]))
        for j in range(len(choices[names[b]]))
    }

    def pairs(combination):
        places = itertools.combinations(enumerate(combination), 2)
        return {(a, i, b, j) for (a, i), (b, j) in places} & missing

    chosen = []
    while missing:
        candidates = []
        for a, i, b, j in draw.sample(sorted(missing), min(20, len(missing))):
            combination = [draw.randrange(len(choices[name])) for name in names]
            combination[a], combination[b] = i, j
            candidates.append(combination)
        best = max(candidates, key=lambda combination: len(pairs(combination)))
        missing -= pairs(best)
        chosen.append({name: choices[name][i] for name, i in zip(names, best, strict=True)})
    return chosen


OTHER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.bfloat16,
    torch.float64: torch.float32,
}  # by dtype of x: another dtype, for a residual stream, parameters or the result


def combinations(seed: int) -> list[Case]:
    """Cases in which every pair of choices occurs."""
    chosen = covering(
        seed,
        center=(True, False),
        dtype=DTYPES,
        residual=(None, "same", "other"),
        pre_bias=(False, True),
        weight=(None, "same", "other"),
        bias=(False, True),
        activation=(None, *ACTIVATIONS),
        weight_shift=(0.0, 1.0),
        rounding=ROUNDINGS,
        out=(None, "other"),
    )

    def case(
        center, dtype, residual, pre_bias, weight, bias, activation, weight_shift, rounding, out
    ):
        return Case(
            center=center,
            dtype=dtype,
            shape=(3, 45),
            residual_dtype={None: None, "same": dtype, "other": OTHER[dtype]}[residual],
            pre_bias=pre_bias,
            weight=weight is not None,
            bias=bias,
            parameter_dtype=OTHER[dtype] if weight == "other" else None,
            activation=activation,
            weight_shift=weight_shift if weight else 0.0,
            rounding=rounding,
            out_dtype=None if out is None else OTHER[dtype],
        )

    return [case(**one) for one in chosen]


def name_of(case: Case) -> str:
    options = [case.program.name, str(case.dtype).removeprefix("torch.")]
    for name in ("residual_dtype", "parameter_dtype"):
        if (dtype := getattr(case, name)) is not None:
            options.append(f"{name}={str(dtype).removeprefix('torch.')}")
    options += [name for name in ("pre_bias", "weight", "bias") if getattr(case, name)]
    options += [name for name in (case.activation, case.rounding) if name not in (None, "once")]
    return "-".join(options + (["shift"] if case.weight_shift else []))
