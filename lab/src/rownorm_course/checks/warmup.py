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
from .shares import Share, in_blocks, listed, loads, masked, one_access, only_parts, stores

FILE = "puzzles.py"
LINES = 26  # of a picture
LONG = 9001  # elements of a vector for which the text asks for several programs
WIDE = 300  # columns
# Reasons of wrong values and places. All others say what is wrong, whatever the inputs are.
OF_VALUES = ("", "mask-load", "mask-store", "mask-other", "not-written", "shared-write", "order")
Inputs = tuple[Tensor, ...]


def _puzzle(
    part: str,
    function: str,
    inputs: Callable[[torch.Generator], list[Inputs]],
    expected: Callable[..., Tensor],
    demanded: Callable[[str, Seen, Inputs], None] = lambda title, seen, given: None,
    shown: int = 0,
    own_reduction: bool = False,
) -> Task:
    """One puzzle: the function's results for all inputs, in fp64; then what its kernels did.

    demanded: what the text says about the way, beside the result. It is recorded in the interpreter only.
    own_reduction: whether the learner's function for tl.reduce must make the result. shown: the inputs whose picture is
    shown after all are right.
    """

    def check(learner: Learner) -> str:
        call = learner.function(FILE, function)
        generator = torch.Generator().manual_seed(learner.seed)
        pictures = []

        def tried(given: Inputs, masked: float = math.nan) -> tuple[str, Seen, Tensor, str]:
            title = f"{function} of {', '.join(map(_shape, given))}"
            with learner.observed(Watch(everything=True, masked=masked)) as seen:
                got = call(*given)
            drawn = _drawn(seen)
            right = expected(*(one.double() for one in given))
            _no_atomics(title, seen)  # before their order, which the data may hide
            _judge(title, seen, given, got, right, drawn)
            return title, seen, right, drawn

        for given in inputs(generator):
            given = tuple(one.to(learner.device) for one in given)
            try:
                title, seen, right, drawn = tried(given)
            except Failure as failure:
                raise _explained(failure, given, tried) from None
            pictures.append(f"{title}\n{drawn}")
            if seen.recorded:
                _demand(title, seen, given, right, drawn, demanded)
            if seen.recorded and own_reduction and given[0].shape[1] == WIDE:
                with learner.observed(Watch(adds=True, orders=0)):
                    got = call(*given)
                if torch.allclose(got.double().reshape(right.shape), right, rtol=1e-4, atol=1e-4):
                    raise Failure(
                        f"{title}: the result stays the same if an addition replaces your function for tl.reduce: "
                        "something else has found it",
                        "unused-reduce",
                    )
        return pictures[shown]

    return Task(part, function, check)


def _shape(one: Tensor) -> str:
    strides = "" if one.is_contiguous() else f" with strides {one.stride()}"
    return "x".join(map(str, one.shape)) + strides


def _explained(failure: Failure, given: Inputs, tried: Callable[..., object]) -> Failure:
    """The failure; its reason is the difficulty of the inputs, or masked lanes, if it is right without."""
    if failure.habit not in OF_VALUES:
        return failure

    def is_right(given: Inputs, masked: float = math.nan) -> bool:
        try:
            tried(given, masked)
        except Failure:
            return False
        return True

    if failure.habit == "mask-other":
        if is_right(given, masked=0.0):
            return failure
        failure = Failure(str(failure))
    if not all(one.is_contiguous() for one in given):
        habit, plain = "strides", tuple(one.contiguous() for one in given)
    elif given[0].shape[-1] == 1:
        habit, plain = "one-column", tuple(one.repeat_interleave(2, -1) for one in given)
    else:
        return failure
    return Failure(str(failure), habit) if is_right(plain) else failure


def _judge(title: str, seen: Seen, given: Inputs, got: object, right: Tensor, drawn: str) -> None:
    if not seen.launches:
        raise Failure(f"{title}: the function returned without a kernel", "no-kernel")
    if seen.operators:
        raise Failure(
            f"{title}: torch's {seen.operators[0]} ran inside your function", "torch-norm"
        )
    for what, places in (("changed", seen.changed), ("returned", seen.returned)):
        if places:
            raise Failure(
                f"{title}: argument {places[0] + 1} of your function was {what}; write to an output instead"
            )
    shapes = [right.shape, *([torch.Size()] if right.shape == (1,) else [])]
    if not isinstance(got, Tensor) or got.shape not in shapes or got.dtype != torch.float32:
        came = repr(got)
        if isinstance(got, Tensor):
            came = f"a tensor of shape {tuple(got.shape)} and {got.dtype}"
        wanted = " or ".join(str(tuple(one)) for one in shapes)
        raise Failure(
            f"{title}: it returned {came}, expected a tensor of shape {wanted} and {torch.float32}"
        )
    try:  # first: what all programs write to one place is missing in the others
        refuse_findings(title, seen)
    except Failure as failure:
        raise Failure(f"{failure}\n{drawn}", failure.habit) from None
    missing = unwritten(got)
    if missing == got.numel() and seen.recorded and not any(one.accesses for one in seen.recorded):
        raise Failure(f"{title}: nothing is written yet: the kernel has no load and no store")
    if missing:
        raise Failure(
            f"{title}: {missing} of {got.numel()} elements were never written\n{drawn}",
            "not-written",
        )
    missed = _not_loaded(given[0], _elements(loads(seen)))
    if missed and not seen.foreign:
        raise Failure(f"{title}: {missed}\n{drawn}", "not-loaded")
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
    wide = torch.randn(3, WIDE, generator=generator)
    alone = torch.tensor([[-1.5]])
    many = torch.randn(70, 5, generator=generator)
    return [(torch.randn(3, 5, generator=generator),), (ties,), (wide,), (many,), (alone,)]


def _pairs(generator: torch.Generator) -> list[Inputs]:
    return [tuple(torch.randn(2, n, generator=generator)) for n in (11, 1000, LONG)]


def _tiles(generator: torch.Generator) -> list[Inputs]:
    return [
        (torch.randn(rows, cols, generator=generator), torch.randn(cols, generator=generator))
        for rows, cols in ((6, 3), (9, WIDE), (70, 5), (7, 1))
    ]


def _strided(generator: torch.Generator) -> list[Inputs]:
    x = torch.randn(6, 10, generator=generator)
    wide, many = torch.randn(3, WIDE, generator=generator), torch.randn(70, 5, generator=generator)
    expanded = x[:1].expand(4, 10)
    layouts = [x, x.t(), x[:, ::2], x[1:, 3:], expanded, expanded.t()]
    return [(one,) for one in (*layouts, wide, many)]


def _demand(
    title: str,
    seen: Seen,
    given: Inputs,
    right: Tensor,
    drawn: str,
    demanded: Callable[[str, Seen, Inputs], None],
) -> None:
    """What all puzzles ask for: kernels load x and store all of the result, in blocks; then what this one does."""
    try:
        read, written = loads(seen), stores(seen)
        sizes = zip(given[0].shape, given[0].stride(), strict=True)
        elements = math.prod(size for size, stride in sizes if stride)  # an expanded x has fewer
        if len(_elements(read)) < elements or len(_elements(written)) < right.numel():
            raise Failure(
                f"{title}: your kernels loaded {len(_elements(read))} of {elements} elements of the argument "
                f"itself, not of a copy, and stored {len(_elements(written))} of {right.numel()} of the result",
                "torch-norm",
            )
        if elements == given[0].numel():
            in_blocks(title, read)
        demanded(title, seen, given)
    except Failure as failure:
        raise Failure(f"{failure}\n{drawn}", failure.habit) from None


def _not_loaded(x: Tensor, loaded: set[int]) -> str:
    """Which elements of a contiguous x were not loaded, if others were."""
    missing = set(range(x.numel())) - loaded
    if not missing or not loaded or not x.is_contiguous():
        return ""
    row = min(missing) // x.shape[-1]
    cols = {one % x.shape[-1] for one in missing if one // x.shape[-1] == row}
    where = f"{listed(cols)} of row {row}" if x.dim() > 1 else listed(missing)
    return f"your kernels did not load {where}: {len(missing)} of {x.numel()} elements in all"


def _elements(shares: list[Share]) -> set[int]:
    return {element for one in shares for element in one.elements}


def _one_masked_block(title: str, seen: Seen, given: Inputs) -> None:
    everything = set(range(given[0].numel()))
    for shares in (loads(seen), stores(seen)):
        in_blocks(title, shares)
        only_parts(title, shares, lambda one: everything, "one program with all elements")
        one_access(title, shares)
        masked(title, shares)


def _row_for_each(title: str, seen: Seen, given: Inputs) -> None:
    only_parts(title, loads(seen), _row_of(given[0]), "one row for each program")


def _row_for_each_and_back(title: str, seen: Seen, given: Inputs) -> None:
    for shares in (loads(seen), stores(seen)):
        in_blocks(title, shares)
        only_parts(title, shares, _row_of(given[0]), "one row for each program, and nothing else")


def _row_of(x: Tensor) -> Callable[[Share], set[int]]:
    """The row of the first element."""

    def part(share: Share) -> set[int]:
        first = min(share.elements) // x.shape[1] * x.shape[1]
        return set(range(first, first + x.shape[1]))

    return part


def _consecutive(title: str, seen: Seen, given: Inputs) -> None:
    n = given[0].numel()
    read = loads(seen)
    block = max(len(one.elements) for one in read)
    if n == LONG and block == n:
        raise Failure(
            f"{title}: program {read[0].program} has all {n} elements, expected several programs",
            "one-program",
        )

    def part(share: Share) -> set[int]:
        first = share.program * block
        return set(range(first, min(first + block, n)))

    for shares in (read, loads(seen, 1), stores(seen)):
        in_blocks(title, shares)
        only_parts(title, shares, part, f"p * {block} to (p + 1) * {block} - 1 for program p")


def _tile_for_each(title: str, seen: Seen, given: Inputs) -> None:
    n_cols = given[0].shape[1]

    def rows(share: Share) -> set[int]:
        return {row * n_cols + col for row in _rows(share, n_cols) for col in range(n_cols)}

    for shares in (loads(seen), stores(seen)):
        in_blocks(title, shares)
        only_parts(title, shares, rows, "whole rows")
        one_access(title, shares)
        if max(len(_rows(one, n_cols)) for one in shares) == 1:
            raise Failure(
                f"{title}: each program has one row, expected a tile of several", "whose-elements"
            )


def _rows(share: Share, n_cols: int) -> set[int]:
    return {element // n_cols for element in share.elements}


def _no_copy(title: str, seen: Seen, given: Inputs) -> None:
    in_blocks(title, stores(seen))
    if sum(seen.created) > given[0].numel():
        raise Failure(
            f"{title}: torch copied x before the kernel did; give the kernel x and its strides",
            "torch-norm",
        )


def _several_programs(title: str, seen: Seen, given: Inputs) -> None:
    read, written = loads(seen), stores(seen)
    if given[0].numel() == LONG and len(read) < 2:
        raise Failure(
            f"{title}: program {read[0].program} loads all elements of x, expected several that load some each",
            "two-kernels",
        )
    if {one.launch for one in read} & {one.launch for one in written}:
        raise Failure(
            f"{title}: a kernel that loads x stores the total as well, expected a second kernel that adds the sums of "
            "the first one's programs",
            "two-kernels",
        )


def _no_atomics(title: str, seen: Seen) -> None:
    for launch in seen.recorded:
        if any(one.atomics for one in launch.uses):
            raise Failure(f"{title}: {launch.kernel} has atomics, expected tl.store", "atomics")


def _own_function(title: str, seen: Seen, given: Inputs) -> None:
    own = [name for name in seen.combined if not name.startswith("tl.")]
    if not own:
        raise Failure(f"{title}: no tl.reduce with a function of yours ran", "own-reduce")
    if others := sorted({name for name in seen.combined if "max" in name and name not in own}):
        raise Failure(f"{title}: beside yours, {others[0]} of Triton ran", "own-reduce")


TASKS = [
    _puzzle("mask", "copy", _random((5,), (8,), (300,)), lambda x: x, _one_masked_block),
    _puzzle(
        "sum",
        "row_sum",
        _random((3, 5), (4, 300), (70, 5), (1, 1)),
        lambda x: x.sum(1),
        _row_for_each,
    ),
    _puzzle("blocks", "add", _pairs, lambda x, y: x + y, _consecutive, shown=1),
    _puzzle("tile", "scale", _tiles, lambda x, weight: x * weight, _tile_for_each),
    _puzzle(
        "mend",
        "double",
        _random((3, 5), (3, 16), (3, 300), (70, 5), (1, 1)),
        lambda x: 2 * x,
        _row_for_each_and_back,
    ),
    _puzzle(
        "reduce",
        "largest",
        _magnitudes,
        lambda x: x.abs().amax(1),
        _own_function,
        own_reduction=True,
    ),
    _puzzle("strides", "copy_strided", _strided, lambda x: x, _no_copy, shown=1),
    _puzzle(
        "total",
        "total",
        _random((11,), (LONG,)),
        lambda x: x.sum().reshape(1),
        _several_programs,
        shown=1,
    ),
]
