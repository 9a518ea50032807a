"""Loops with very many turns, shortened to their first and last ones.

``for`` goes through ``short``. The interpreter rewrites kernels before it runs them, and ``Rewriter`` adds a line to
each ``while`` whose condition has one variable that the loop changes: ``Turns`` may take it forward.
"""

from __future__ import annotations

import ast
import builtins
import copy
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from triton.runtime import interpreter

TURNS = 2  # of a long loop, at its beginning and at its end
FURTHEST = 1 << 40  # turns


def short(first: Any, end: Any = None, step: Any = 1, **_: Any) -> Iterator[Any]:
    """A loop's first and last turns. As in a compiled kernel, its variable is an int32, which may wrap around."""
    bounds = (0, first, step) if end is None else (first, end, step)
    turns = builtins.range(*(one.__index__() for one in bounds))
    chosen = [*turns[:TURNS], *turns[-TURNS:]] if len(turns) > 2 * TURNS else turns
    for turn in chosen:
        yield interpreter.interpreter_semantic.to_tensor(turn, False)


class Turns:
    """The turns of one ``while``, whose counter grows by the same number in each."""

    shortened: ClassVar[bool] = False

    def __init__(self) -> None:
        self.values: list[int] = []

    def next(self, counter: Any, goes_on: Callable[[Any], Any]) -> Any:
        """The counter of this turn. goes_on: the loop's condition."""
        if not self.shortened or len(self.values) > TURNS:
            return counter
        try:
            self.values.append(operator.index(counter))
        except TypeError:
            return counter
        if len(self.values) <= TURNS:
            return counter
        first, second, now = self.values[-3:]
        step = now - second
        if not step or step != second - first:
            return counter

        def ahead(turns: int) -> Any:
            return interpreter.interpreter_semantic.to_tensor(now + turns * step, False)

        beyond = 1
        while beyond < FURTHEST and goes_on(ahead(beyond)):
            beyond *= 2
        inside = beyond // 2
        while beyond - inside > 1:
            middle = (inside + beyond) // 2
            inside, beyond = (middle, beyond) if goes_on(ahead(middle)) else (inside, middle)
        leap = inside - (TURNS - 1)
        if leap <= 0 or beyond >= FURTHEST:
            return counter
        there = ahead(leap)
        kind = getattr(counter, "dtype", there.dtype)
        return there if kind == there.dtype else there.to(kind)


class Rewriter(interpreter.ASTTransformer):  # type: ignore[misc]
    """The interpreter's own, and ``while`` loops that may be shortened."""

    def visit_While(self, node: ast.While) -> Any:
        counters = {one.id for one in ast.walk(node.test) if isinstance(one, ast.Name)}
        counters &= {
            one.id
            for line in node.body
            for one in ast.walk(line)
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
        }
        self.generic_visit(node)
        if len(counters) != 1:
            return node
        (counter,) = counters
        turns = f"_turns_{node.lineno}_{node.col_offset}"
        before = ast.parse(f"{turns} = {Turns.__name__}()").body[0]
        line = ast.parse(f"{counter} = {turns}.next({counter}, lambda {counter}: 0)").body[0]
        for one in (*ast.walk(before), *ast.walk(line)):
            ast.copy_location(one, node)
        for one in ast.walk(line):
            if isinstance(one, ast.Lambda):
                one.body = copy.deepcopy(node.test)
        node.body.insert(0, line)
        return [before, node]


@contextmanager
def short_loops(function: Any) -> Iterator[None]:
    """Shorten the loops of a kernel and of the functions that it calls."""
    spaces = {id(function.__globals__): function.__globals__}
    for value in list(function.__globals__.values()):
        if isinstance(value, interpreter.InterpretedFunction):
            spaces[id(value.fn.__globals__)] = value.fn.__globals__
    shortened = [space for space in spaces.values() if "range" not in space]
    for space in shortened:
        space["range"] = short
    Turns.shortened = True
    try:
        yield
    finally:
        Turns.shortened = False
        for space in shortened:
            del space["range"]
