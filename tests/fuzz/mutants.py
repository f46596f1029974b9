"""One small change of a function: a swapped comparison, a number one off, a statement left out."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef

_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@dataclass(frozen=True, slots=True)
class Mutant:
    """`text`: of the whole file, changed; `change`: the line before and after."""

    path: Path
    function: str
    line: int
    change: str
    text: str


def functions(tree: ast.Module) -> list[tuple[str, Function]]:
    """Functions and methods of a module by their names; those inside of others belong to these."""
    found: list[tuple[str, Function]] = []

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, Function):
                found.append((prefix + node.name, node))
            elif isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")

    visit(tree.body, "")
    return found


def mutant(path: Path, source: str, function: str, rng: random.Random) -> Mutant | None:
    """One of the changes that the function allows; None where there is none."""
    tree = ast.parse(source)
    node = dict(functions(tree))[function]
    changes = list(_changes(node))
    if not changes:
        return None
    statement, change = rng.choice(changes)
    before = ast.unparse(statement).partition("\n")[0]
    line = statement.lineno
    change()
    ast.fix_missing_locations(tree)
    after = ast.unparse(statement).partition("\n")[0]
    told = f"{before} → {'(left out)' if before == after else after}"
    return Mutant(path, function, line, told, ast.unparse(tree))


def _changes(function: Function) -> Iterator[tuple[ast.stmt, Callable[[], None]]]:
    """Statements and what changes them in place; texts of errors and annotations stay."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    for statement in _statements(body):
        if _may_go(statement):
            yield statement, partial(_leave_out, function, statement)
        if not isinstance(statement, ast.Raise | ast.Assert | Function | ast.ClassDef):
            for node in _expressions(statement):
                yield from ((statement, change) for change in _of_node(node))


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for field in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, field, []))
        for case in getattr(statement, "cases", []):
            yield from _statements(case.body)


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    """Parts of a statement that are no statements, no text of an f-string, no annotation."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "keywords" if _is_message(node) else ""):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.stmt | ast.JoinedStr):
                continue
            if isinstance(child, ast.expr | ast.comprehension | ast.keyword | ast.withitem):
                yield child
                yield from _expressions(child)


def _is_message(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Error")


def _of_node(node: ast.AST) -> Iterator[Callable[[], None]]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in _SWAPPED:
            yield lambda: setattr(node, "ops", [_SWAPPED[type(op)]()])
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in _SWAPPED:
            yield lambda: setattr(node, "op", _SWAPPED[type(op)]())
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            yield lambda: setattr(node, "value", value + 1)
        case ast.Constant(value=bool() as value):
            yield lambda: setattr(node, "value", not value)
        case ast.IfExp(body=yes, orelse=no):
            yield lambda: vars(node).update(body=no, orelse=yes)


def _may_go(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            return True
        case ast.If(body=[*_, last], orelse=[]):
            return isinstance(last, _ENDS)
    return False


def _leave_out(function: Function, statement: ast.stmt) -> None:
    for node in ast.walk(function):
        for field in ("body", "orelse", "finalbody"):
            held = getattr(node, field, None)
            if isinstance(held, list) and statement in held:
                held[held.index(statement)] = ast.Pass()
