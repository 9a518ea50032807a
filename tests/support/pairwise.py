"""Sets of options in which every pair of choices occurs."""

import itertools
import random

import torch

from rownorm.program import COLUMNS, OPTIONS, ROWS, SAMPLES, Program
from support.cases import DTYPES, EXTENTS, Case


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
        **{f"{name}_dtype": (None, "same", "other") for name in ROWS if name != "x"},
        **dict.fromkeys(COLUMNS, (False, True)),
        **dict.fromkeys(SAMPLES, (None, *EXTENTS)),
        parameter_dtype=(None, "other"),
        **{name: values_of(name) for name in OPTIONS if name != "eps"},
    )

    def case(dtype, **fields):
        same_or_other = {"same": dtype, "other": OTHER[dtype]}
        fields = {
            name: same_or_other.get(value, value) if name.endswith("dtype") else value
            for name, value in fields.items()
        }
        for name in ("weight", "scale"):
            if not fields[name]:
                fields[f"{name}_shift"] = 0.0
        if fields["residual_dtype"] is None:
            fields["residual_gate"] = None
        if fields["gate_dtype"] is None:
            fields |= {"gate_activation": None, "gate_first": False}
        return Case(dtype=dtype, shape=(2, 3, 45), **fields)

    return [case(**one) for one in chosen]


def values_of(option: str) -> tuple:
    """Values of an option, the default among them; "other" for a dtype that is not that of x."""
    default, described = Program._field_defaults[option], OPTIONS[option]
    if described.is_number:
        return (default, default + 1.0)
    if torch.float32 in described.values:
        return (default, "other")
    return described.values


def name_of(case: Case) -> str:
    options = [case.program.name, str(case.dtype).removeprefix("torch.")]
    for name in ("residual_dtype", "gate_dtype", "parameter_dtype"):
        if (dtype := getattr(case, name)) is not None:
            options.append(f"{name}={str(dtype).removeprefix('torch.')}")
    options += [name for name in COLUMNS if getattr(case, name)]
    options += [f"{name}={getattr(case, name)}" for name in SAMPLES if getattr(case, name)]
    for name in OPTIONS:
        value = getattr(case, name)
        if value != Program._field_defaults.get(name):  # eps has none, and a case's is None
            options.append(value if isinstance(value, str) else f"{name}={value}")
    return "-".join(options)
