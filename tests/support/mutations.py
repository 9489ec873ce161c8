"""Small changes of single statements of a module; the changed module still compiles."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Final

_FLIPPED: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_OTHER: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
}
_BLOCKS: Final = ("body", "orelse", "finalbody", "handlers", "cases")
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_DELETED: Final = (ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete)


@dataclass(frozen=True, slots=True)
class Spot:
    """A statement inside a function; for a compound statement, the part before its block.

    Attributes:
        function: The function, with its enclosing functions and classes.
        line: Its first line.
        text: Its text, as written by `ast`.
        number: Index among equal texts in the function.
        node: Its node.
    """

    function: str
    line: int
    text: str
    number: int
    node: ast.stmt


@dataclass(frozen=True, slots=True)
class Change:
    """A replacement for a part of a module.

    Attributes:
        kind: Kind of the change.
        start: Start of the part, in bytes.
        end: Its end.
        text: The new text.
    """

    kind: str
    start: int
    end: int
    text: str


def spots(source: str) -> list[Spot]:
    """The statements that can be changed, in their order."""
    counts: dict[tuple[str, str], int] = {}
    actual = []
    for function, node in _statements(ast.parse(source).body, "", inside=False):
        text = _text(node)
        number = counts.get((function, text), 0)
        counts[function, text] = number + 1
        actual.append(Spot(function, node.lineno, text, number, node))
    return [spot for spot in actual if _raw(spot.node)]


def changes(source: str, spot: Spot) -> list[Change]:
    """All changes of a statement; the same for the same text, in the same order."""
    starts = _line_starts(source)
    actual = []
    for kind, node, text in _raw(spot.node):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        actual.append(Change(kind, start, end, text))
    return actual


def changed(source: str, change: Change) -> str:
    """The module after a change."""
    whole = source.encode()
    made = (whole[: change.start] + change.text.encode() + whole[change.end :]).decode()
    compile(made, "changed", "exec")
    return made


def told(source: str, spot: Spot, change: Change) -> tuple[str, str]:
    """The statement before and after a change, each in one line."""
    starts, whole = _line_starts(source), source.encode()
    first = starts[spot.line - 1]
    parts = [spot.node] if not _blocks(spot.node) else list(_own(spot.node))
    last = max(starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0) for node in parts)
    before = whole[first:last]
    after = whole[first : change.start] + change.text.encode() + whole[change.end : last]
    return " ".join(before.decode().split()), " ".join(after.decode().split())


def _statements(body: list[ast.stmt], name: str, *, inside: bool) -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        within, here = inside, name
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            within, here = isinstance(node, _FUNCTIONS), f"{name}.{node.name}".lstrip(".")
        elif inside:
            yield name, node
        for block in _blocks(node):
            yield from _statements(block, here, inside=within)


def _blocks(node: ast.stmt) -> list[list[ast.stmt]]:
    actual: list[list[ast.stmt]] = []
    for part in [getattr(node, name, []) for name in _BLOCKS]:
        for item in part:
            actual += [item.body] if isinstance(item, ast.ExceptHandler | ast.match_case) else []
        actual += [part] if part and isinstance(part[0], ast.stmt) else []
    return actual


def _text(node: ast.stmt) -> str:
    bare = copy.copy(node)
    for name in _BLOCKS:
        if hasattr(bare, name):
            setattr(bare, name, [ast.Pass()] if name == "body" else [])
    return ast.unparse(ast.fix_missing_locations(bare))


def _own(node: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement itself, except annotations and asserts."""
    if isinstance(node, ast.Assert):
        return
    for name, value in ast.iter_fields(node):
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.withitem):
                yield item.context_expr
            elif isinstance(item, ast.expr) and name != "annotation":
                yield item


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """An expression and its parts; parts inside a string have no position of their own."""
    yield node
    if isinstance(node, ast.JoinedStr):
        return
    for child in ast.iter_child_nodes(node):
        type_of_cast = isinstance(node, ast.Call) and ast.unparse(node.func) == "cast"
        if not (type_of_cast and isinstance(node, ast.Call) and child is node.args[0]):
            yield from _walk(child)


def _raw(stmt: ast.stmt) -> list[tuple[str, ast.expr | ast.stmt, str]]:
    """Kind of each change, the changed node, and its replacement."""
    if isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Constant):
        return []
    actual: list[tuple[str, ast.expr | ast.stmt, str]] = []
    if _can_go(stmt):
        actual.append(("deleted", stmt, "pass"))
    if isinstance(stmt, ast.Return) and stmt.value and ast.unparse(stmt.value) != "None":
        actual.append(("returned nothing", stmt.value, "None"))
    tests = [stmt.test] if isinstance(stmt, ast.If | ast.While) else []
    for expression in _own(stmt):
        for node in _walk(expression):
            tests += [node.test] if isinstance(node, ast.IfExp) else []
            tests += node.ifs if isinstance(node, ast.comprehension) else []
            if isinstance(node, ast.expr):
                # Error messages are prose; their words to test are the code and the names.
                actual += [
                    (kind, node, text)
                    for kind, text in _instead(node)
                    if not (kind == "text" and isinstance(stmt, ast.Raise) and " " in text)
                ]
    negated = [test for test in tests if not isinstance(test, ast.UnaryOp)]
    return actual + [("not added", test, f"(not ({ast.unparse(test)}))") for test in negated]


def _can_go(stmt: ast.stmt) -> bool:
    if isinstance(stmt, ast.Expr):
        return not any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(stmt))
    if isinstance(stmt, ast.Assign):
        return all(isinstance(to, ast.Attribute | ast.Subscript) for to in stmt.targets)
    return isinstance(stmt, _DELETED)


def _instead(node: ast.expr) -> Iterator[tuple[str, str]]:
    """Replacements of an expression, each with its kind."""
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                for other in _FLIPPED[type(op)]:
                    flipped = [*ops[:place], other(), *ops[place + 1 :]]
                    yield "comparison", _with(node, ops=flipped)
        case ast.BoolOp(op=op):
            yield "and, or", _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.BinOp(op=op) if type(op) in _OTHER:
            yield "operator", _with(node, op=_OTHER[type(op)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not removed", f"({ast.unparse(operand)})"
        case ast.Call(args=[first, second, *rest]) if not _alike(first, second):
            yield "arguments", _with(node, args=[second, first, *rest])
        case ast.Constant() | ast.JoinedStr():
            yield from _another(node)


def _another(node: ast.Constant | ast.JoinedStr) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Constant(value=bool(value)):
            yield "constant", str(not value)
        case ast.Constant(value=int() | float() as value):
            yield "constant", str(value + 1)
        case ast.Constant(value=str(value)):
            yield "text", repr(f"{value}x")
        case ast.JoinedStr(values=values):
            yield "text", ast.unparse(ast.JoinedStr([*values, ast.Constant("x")]))


def _alike(first: ast.expr, second: ast.expr) -> bool:
    starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
    return starred or ast.dump(first) == ast.dump(second)


def _with(node: ast.expr, **fields: object) -> str:
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return f"({ast.unparse(made)})"


@cache
def _line_starts(source: str) -> list[int]:
    ends = [0]
    for line in source.encode().split(b"\n"):
        ends.append(ends[-1] + len(line) + 1)
    return [start for start, _ in pairwise(ends)]
