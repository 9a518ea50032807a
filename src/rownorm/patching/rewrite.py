"""The forward of a block with residual add and norm in one call, made from its source.

The pattern is an assignment of a sum, then assignments of one name to another, then a statement that calls a norm of
the block with the sum:

    h = residual + h                            y, h = self.rownorm_add_norm(self.norm, residual, h)
    residual = h                                residual = h
    h = self.norm(h)                            h = y

Nothing else changes. A norm has no side effects, so it may be called a statement earlier. The source is trusted only if
compiling it gives the code that runs.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import nn

from .candidates import LeftAlone

METHOD = "rownorm_add_norm"  # of a rewritten block
RESULT = "rownorm_y"  # the variable for the result of the norm
# Statements that evaluate their expressions exactly once, so that a call in them is certain to happen.
PLAIN_STATEMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)
# Expressions that may not evaluate a part of themselves, or evaluate it more than once, or bind names.
UNCERTAIN = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.NamedExpr, ast.comprehension, ast.Compare)


class Rewritten(NamedTuple):
    """A forward in which these norms, attributes of the block, are called together with the add before them."""

    forward: Callable[..., Any]
    norms: tuple[str, ...]


def rewritten(block_class: type[nn.Module], norms: frozenset[str]) -> Rewritten:
    """The rewritten forward of a class whose attributes ``norms`` are norms; the same forward if it has no pattern.

    Raises LeftAlone if there is a pattern that cannot be rewritten.
    """
    forward: Any = block_class.forward
    inner = inspect.unwrap(forward)
    if not isinstance(inner, types.FunctionType):
        return Rewritten(forward, ())
    try:
        lines, _ = inspect.findsource(inner)
        module = ast.parse("".join(lines))
    except (OSError, TypeError, SyntaxError, IndexError):
        raise LeftAlone(f"the source of {_name(block_class)} was not found") from None
    tree = _definition(module, inner.__code__)
    if tree is None or _code(module, inner.__code__) != inner.__code__:
        raise LeftAlone(f"the source of {_name(block_class)} is not that of the code that runs")
    arguments = tree.args.posonlyargs + tree.args.args
    found = tuple(_rewrite(tree, arguments[0].arg, norms)) if arguments else ()
    if not found:
        return Rewritten(forward, ())
    if inner is not forward:
        raise LeftAlone(f"{_name(block_class)} has a decorator")
    return Rewritten(_function(forward, _code(module, forward.__code__)), found)


def _name(block_class: type[nn.Module]) -> str:
    return f"{block_class.__name__}.forward"


def _definition(module: ast.Module, code: types.CodeType) -> ast.FunctionDef | None:
    """The definition that a function was compiled from, by name and line."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def _code(module: ast.Module, code: types.CodeType) -> types.CodeType | None:
    """The code of the function of the same name and line, compiled with its module, as Python compiles it."""
    future = code.co_flags & _future_flags()
    compiled = compile(module, code.co_filename, "exec", flags=future, dont_inherit=True)
    pending = [compiled]
    while pending:
        one = pending.pop()
        # Lines of the rewritten code are those of the original, so that errors show it.
        if (one.co_name, one.co_firstlineno) == (code.co_name, code.co_firstlineno):
            return one
        pending += [constant for constant in one.co_consts if isinstance(constant, types.CodeType)]
    return None


def _future_flags() -> int:
    return sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


def _function(forward: types.FunctionType, code: types.CodeType | None) -> Callable[..., Any]:
    """``forward`` with other code, which has the same variables of outer functions."""
    if code is None:
        raise LeftAlone("its rewritten forward was not found")
    made = types.FunctionType(
        code,
        forward.__globals__,
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    made.__kwdefaults__ = forward.__kwdefaults__
    made.__qualname__, made.__module__ = forward.__qualname__, forward.__module__
    made.__doc__, made.__annotations__ = forward.__doc__, forward.__annotations__
    return made


def _rewrite(tree: ast.FunctionDef, self_name: str, norms: frozenset[str]) -> Iterator[str]:
    """Rewrite every occurrence of the pattern in place; the names of its norms."""
    for body in _bodies(tree):
        for i, statement in enumerate(body):
            total = _sum(statement)
            if total is None:
                continue
            name, left, right = total
            end, names = _skip_renamings(body, i + 1, name)
            call = _norm_call(body[end : end + 1], names, self_name, norms)
            if call is None:
                continue
            norm: ast.Attribute = call.func  # type: ignore[assignment]
            yield norm.attr
            method = ast.Attribute(ast.Name(self_name, ast.Load()), METHOD, ast.Load())
            results = ast.Tuple(
                [ast.Name(RESULT, ast.Store()), ast.Name(name, ast.Store())], ast.Store()
            )
            fused = ast.Assign([results], ast.Call(method, [norm, left, right], []))
            body[i] = _located(fused, statement)
            result = _located(ast.Name(RESULT, ast.Load()), call)
            body[end] = _Replace(call, result).visit(body[end])


def _bodies(tree: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    """Every list of statements of a function, but not those of functions and classes in it."""
    pending: list[Any] = [tree]
    while pending:
        node = pending.pop()
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                yield statements
                skipped = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
                pending += [one for one in statements if not isinstance(one, skipped)]


def _sum(statement: ast.stmt) -> tuple[str, ast.expr, ast.expr] | None:
    """(name, left, right) of ``name = left + right``, or None."""
    match statement:
        case ast.Assign([ast.Name(name)], ast.BinOp(left, ast.Add(), right)):
            return name, left, right
    return None


def _skip_renamings(body: list[ast.stmt], start: int, name: str) -> tuple[int, set[str]]:
    """(the first statement from start on that is not ``a = b``, the names that the value of name has there)."""
    names = {name}
    for i in range(start, len(body)):
        statement = body[i]
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Name):
            return i, names
        if not all(isinstance(target, ast.Name) for target in statement.targets):
            return i, names
        targets = {target.id for target in statement.targets}  # type: ignore[attr-defined]
        names = names | targets if statement.value.id in names else names - targets
    return len(body), names


def _norm_call(
    statements: list[ast.stmt], names: set[str], self_name: str, norms: frozenset[str]
) -> ast.Call | None:
    """The call ``self.norm(name)`` in a statement, if it is certain to be evaluated, once."""
    if not statements or not isinstance(statements[0], PLAIN_STATEMENTS):
        return None
    nodes = list(ast.walk(statements[0]))
    if any(isinstance(node, UNCERTAIN) for node in nodes):
        return None
    for node in nodes:
        match node:
            case ast.Call(ast.Attribute(ast.Name(owner), attribute), [ast.Name(argument)], []):
                if owner == self_name and attribute in norms and argument in names:
                    return node
    return None


class _Replace(ast.NodeTransformer):
    """Puts one expression in the place of another."""

    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self._new if node is self._old else super().generic_visit(node)


def _located(node: Any, place: ast.AST) -> Any:
    """A new node with the lines of another."""
    return ast.fix_missing_locations(ast.copy_location(node, place))
