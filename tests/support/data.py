"""Kinds of random rows, from normal to overflowing."""

import torch

from rownorm.program import Program

DATA = (
    "normal",
    "offset",
    "step",
    "constant",
    "constant_huge",
    "near_eps",
    "huge",
    "overflowing",
    "denormal",
    "outliers",
)


def make_rows(data: str, shape: tuple[int, ...], dtype: torch.dtype, program: Program):
    """Rows of one kind, in ``dtype``. Magnitudes depend on the range of the dtype and of its squares."""
    largest = torch.finfo(dtype).max
    computed_largest = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).max
    normal = torch.randn(shape, dtype=torch.float64)
    per_row = torch.randn(*shape[:-1], 1, dtype=torch.float64).expand(shape)
    huge = min(1e4, largest / 8) if dtype == torch.float16 else computed_largest**0.5 / 64
    match data:
        case "normal":
            rows = normal
        case "offset":
            rows = normal + 1e4
        case "step":  # the first columns say little about the others
            rows = normal + 1e3 * (torch.arange(shape[-1]) < shape[-1] // 5)
        case "constant":
            rows = 10 * per_row
        case "constant_huge":
            rows = huge * per_row
        case "near_eps":
            rows = normal * program.eps**0.5
        case "huge":
            rows = huge * normal
        case (
            "overflowing"
        ):  # their squares do not fit, except those of fp16, which is computed in fp32
            rows = 1e3 * computed_largest**0.5 * normal if dtype != torch.float16 else huge * normal
        case "denormal":
            rows = normal * torch.finfo(dtype).tiny / 16
        case "outliers":
            rows = torch.where(torch.rand(shape) < 0.05, 1e3 * normal, normal)
        case _:
            raise ValueError(data)
    return rows.to(dtype)
