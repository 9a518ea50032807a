"""The warm-up: eight puzzles, each answered with a picture of lanes, masks and sectors."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rownorm_lab.interpreter.picture import picture

from ..grade import Task
from ..grades import Failure
from ..judge import refuse_findings, refuse_foreign
from ..learner import Learner
from ..protocol import Seen, Watch, unwritten

FILE = "puzzles.py"
LINES = 26  # of a picture
ORDERS = 4  # of the programs that are tried: sums in two orders may happen to have the same bits
Inputs = tuple[Tensor, ...]


def _puzzle(
    part: str,
    function: str,
    inputs: Callable[[torch.Generator], list[Inputs]],
    expected: Callable[..., Tensor],
    also: Callable[[str, Seen, Tensor], None] = lambda title, seen, right: None,
    shown: int = 0,
) -> Task:
    """One puzzle: the function's results for all inputs, in fp64; then what its kernels did, and what ``also`` asks.

    shown: the inputs whose picture is shown after all are right.
    """

    def check(learner: Learner) -> str:
        call = learner.function(FILE, function)
        generator = torch.Generator().manual_seed(learner.seed)
        pictures = []
        for given in inputs(generator):
            shapes = ", ".join("x".join(map(str, one.shape)) for one in given)
            title = f"{function} of {shapes}"
            given = tuple(one.to(learner.device) for one in given)
            with learner.observed(Watch(orders=ORDERS)) as seen:
                got = call(*given)
            drawn = _drawn(seen)
            pictures.append(f"{title}\n{drawn}")
            right = expected(*(one.double() for one in given))
            _judge(title, seen, got, right, drawn)
            also(title, seen, right)
        return pictures[shown]

    return Task(part, function, check)


def _judge(title: str, seen: Seen, got: object, right: Tensor, drawn: str) -> None:
    if not seen.launches:
        raise Failure(f"{title}: the function returned without a kernel", "no-kernel")
    if seen.operators:
        raise Failure(
            f"{title}: torch's {seen.operators[0]} ran inside your function", "torch-norm"
        )
    if not isinstance(got, Tensor) or got.numel() != right.numel():
        raise Failure(
            f"{title}: it returned {got!r}, expected a tensor of shape {tuple(right.shape)}"
        )
    try:  # first: what all programs write to one place is missing in the others
        refuse_findings(title, seen)
    except Failure as failure:
        raise Failure(f"{failure}\n{drawn}", failure.habit) from None
    missing = unwritten(got)
    if missing:
        raise Failure(
            f"{title}: {missing} of {got.numel()} elements were never written\n{drawn}",
            "not-written",
        )
    values = got.detach().double().reshape(right.shape)
    wrong = ~torch.isclose(values, right, rtol=1e-4, atol=1e-4)
    if wrong.any():
        place = tuple(int(i) for i in wrong.nonzero()[0])
        raise Failure(
            f"{title}: element {list(place)} is {values[place].item():.6g}, expected {right[place].item():.6g}; "
            f"{int(wrong.sum())} of {right.numel()} are wrong\n{drawn}",
            "mask-other" if seen.unfilled and bool(values.isnan().any()) else "",
        )
    refuse_foreign(title, seen)


def _drawn(seen: Seen) -> str:
    lines = [line for launch in seen.recorded for line in picture(launch)]
    return "\n".join([*lines[:LINES], *(["  ..."] if len(lines) > LINES else [])])


def _random(*shapes: tuple[int, ...]) -> Callable[[torch.Generator], list[Inputs]]:
    """One tensor of each shape."""
    return lambda generator: [(torch.randn(shape, generator=generator),) for shape in shapes]


def _magnitudes(generator: torch.Generator) -> list[Inputs]:
    """The last rows have the same magnitude several times."""
    ties = torch.tensor([[1.0, -1.0, 0.5], [-2.0, 2.0, 2.0]])
    return [(torch.randn(3, 5, generator=generator),), (ties,)]


def _pairs(generator: torch.Generator) -> list[Inputs]:
    return [tuple(torch.randn(2, n, generator=generator)) for n in (10, 1000)]


def _tiles(generator: torch.Generator) -> list[Inputs]:
    return [
        (torch.randn(rows, cols, generator=generator), torch.randn(cols, generator=generator))
        for rows, cols in ((6, 3), (9, 40))
    ]


def _strided(generator: torch.Generator) -> list[Inputs]:
    x = torch.randn(6, 10, generator=generator)
    return [(x,), (x.t(),), (x[:, ::2],), (x[1:, 3:],)]


def _no_copy(title: str, seen: Seen, right: Tensor) -> None:
    if sum(seen.created) > right.numel():
        raise Failure(
            f"{title}: torch copied x before the kernel did; give the kernel x and its strides",
            "torch-norm",
        )


def _several_programs(title: str, seen: Seen, right: Tensor) -> None:
    n_programs = max(math.prod(one.grid) for one in seen.launches)
    if "9000" in title and n_programs < 2:
        raise Failure(
            f"{title}: one program added all elements; let several have a part each", "few-programs"
        )


def _own_function(title: str, seen: Seen, right: Tensor) -> None:
    # Only the interpreter sees a reduction; with a GPU, the same step runs there as well.
    if seen.recorded and not seen.combined:
        raise Failure(f"{title}: no tl.reduce with a function of yours ran", "own-reduce")


TASKS = [
    _puzzle("mask", "copy", _random((5,), (8,), (300,)), lambda x: x),
    _puzzle("sum", "row_sum", _random((3, 5), (4, 300)), lambda x: x.sum(1)),
    _puzzle("blocks", "add", _pairs, lambda x, y: x + y, shown=1),
    _puzzle("tile", "scale", _tiles, lambda x, weight: x * weight),
    _puzzle("mend", "double", _random((3, 5), (3, 16)), lambda x: 2 * x),
    _puzzle("reduce", "largest", _magnitudes, lambda x: x.abs().amax(1), _own_function),
    _puzzle("strides", "copy_strided", _strided, lambda x: x, _no_copy, shown=1),
    _puzzle(
        "total",
        "total",
        _random((10,), (9000,)),
        lambda x: x.sum().reshape(1),
        _several_programs,
        shown=1,
    ),
]
