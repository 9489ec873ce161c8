"""The site's page of all error codes.

Messages, remedies and exit codes come from the source text of the package; the sentences that say
when an error is raised are written by hand, in `error_codes.toml`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from capstan import errors

_PACKAGE = Path(__file__).parents[2] / "lib" / "capstan"
_CODE = re.compile(r"CAP-[A-Z0-9-]+")
_EXIT_CODES = {
    name: each.exit_code
    for name, each in vars(errors).items()
    if isinstance(each, type) and issubclass(each, errors.CapstanError)
}
# Calls that only render their argument; a placeholder is named after the argument.
_RENDERING = {"dumps", "format_duration", "join", "map", "render", "shown", "sorted", "str", "sum"}
_HEAD = """# Error codes

[Errors](errors.md) says how to read an error.

In the tables below, `{name}` stands for a value, `{...}` for a longer text, and square brackets
for parts that some messages lack. Errors without a table are recorded in a ledger, or carry the
text of another program.

In a clone, `make setup`, `make kafka`, `make s3` and `make avro` take the place of `capstan setup`
and of `pip install`; the hints of a clone name these.
"""


@dataclass(frozen=True, slots=True)
class Raised:
    """A place that raises an error: its texts with placeholders, or None if they vary."""

    message: str | None
    remedy: str | None


@dataclass(slots=True)
class Entry:
    """An error code: its exit codes, and the places that raise it."""

    exit_codes: set[int] = field(default_factory=set)
    raised: list[Raised] = field(default_factory=list)


@cache
def catalogue() -> dict[str, Entry]:
    """The error codes of the package in alphabetical order, each with the places that raise it."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(_PACKAGE.rglob("*.py"))}
    modules = {path: ast.parse(text) for path, text in texts.items() if "CAP-" in text}
    shared: dict[str, str] = {}
    for module in modules.values():
        shared |= _constants(module, shared)
    classes = _coded_classes(modules.values(), shared)
    made = re.compile(rf"\b(?:{'|'.join(classes)})\.")
    modules |= {p: ast.parse(text) for p, text in texts.items() if made.search(text)}
    entries: dict[str, Entry] = {}
    for module in modules.values():
        _read(module, shared | _constants(module, shared), classes, entries)
    for path, module in modules.items():
        for code in _handed_on(module) & entries.keys():
            beside = [m for p, m in modules.items() if p.parent == path.parent]
            known = entries[code].exit_codes
            known |= set() if known else _made_of([module]) or _made_of(beside)
    bases = {base for item in classes.values() for base in item.bases}
    for name, item in classes.items():
        # A base class is never raised itself.
        if name not in bases:
            entries.setdefault(item.code, Entry()).exit_codes.add(item.exit_code)
        elif not entries[item.code].raised:
            del entries[item.code]
    return dict(sorted(entries.items()))


def sentences() -> dict[str, str]:
    """By code, the sentence that says when the error is raised."""
    return tomllib.loads(Path(__file__).with_name("error_codes.toml").read_text(encoding="utf-8"))


def page() -> str:
    """The page as Markdown."""
    when, parts = sentences(), [_HEAD]
    for code, entry in catalogue().items():
        codes = " or ".join(map(str, sorted(entry.exit_codes)))
        kind = f"Exit code {codes}. " if codes else ""
        parts.append(f"## {code}\n\n{kind}{when[code]}\n")
        rows = sorted({(r.message or "{...}", r.remedy or "{...}") for r in entry.raised})
        if rows:
            cells = "".join(f"| {_cell(message)} | {_cell(remedy)} |\n" for message, remedy in rows)
            parts.append(f"| message | what to do |\n| --- | --- |\n{cells}")
    return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class _Class:
    code: str
    hint: str
    exit_code: int
    bases: tuple[str, ...]


def _constants(module: ast.Module, shared: Mapping[str, str]) -> dict[str, str]:
    """The text constants of a module, by name."""
    actual: dict[str, str] = {}
    for node in module.body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            target: ast.expr = node.target
            value = node.value
        elif isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
        else:
            continue
        text = _text(value, {**shared, **actual})
        if isinstance(target, ast.Name) and text is not None:
            actual[target.id] = text
    return actual


def _coded_classes(modules: Iterable[ast.Module], shared: Mapping[str, str]) -> dict[str, _Class]:
    """The error classes that have a code of their own, by name."""
    actual: dict[str, _Class] = {}
    for module in modules:
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                texts = _constants(ast.Module(node.body, []), shared)
                bases = tuple(b.id for b in node.bases if isinstance(b, ast.Name))
                known = [actual[b].exit_code for b in bases if b in actual]
                known += [_EXIT_CODES[b] for b in bases if b in _EXIT_CODES]
                if "CODE" in texts:
                    hint = texts.get("HINT", "")
                    actual[node.name] = _Class(texts["CODE"], hint, min(known), bases)
    return actual


def _read(
    module: ast.Module,
    constants: Mapping[str, str],
    classes: Mapping[str, _Class],
    entries: dict[str, Entry],
) -> None:
    """Add all errors that a module raises to `entries`."""
    for node in ast.walk(module):
        # A code that is only compared is raised elsewhere.
        if isinstance(node, ast.Constant) and _CODE.fullmatch(str(node.value)):
            entries.setdefault(str(node.value), Entry())
    for scope, call in _calls(module):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        name = call.func.id if isinstance(call.func, ast.Name) else name
        owner = getattr(getattr(call.func, "value", None), "id", "")
        if owner in classes and call.args:
            coded = classes[owner]
            entry = entries.setdefault(coded.code, Entry())
            entry.exit_codes.add(coded.exit_code)
            entry.raised += [Raised(m, coded.hint) for m in _texts(call.args[0], scope, constants)]
            continue
        first = _text(call.args[0], constants) if call.args else None
        if first is None or not _CODE.match(first):
            continue
        if not isinstance(call.args[0], ast.Constant) or name in {"get", "startswith"}:
            continue
        code, _, rest = first.partition(": ")
        entry = entries.setdefault(code, Entry())
        if rest:  # An error of Airflow's, which is one line.
            message, _, remedy = rest.rstrip(")").partition(" (")
            entry.raised.append(Raised(message, remedy))
            continue
        entry.exit_codes |= {_EXIT_CODES[name]} if name in _EXIT_CODES else _made_of([module])
        messages = _texts(call.args[1], scope, constants) if call.args[1:] else [None]
        remedies = _texts(call.args[2], scope, constants) if call.args[2:] else [None]
        if len(messages) == len(remedies):
            pairs = list(zip(messages, remedies, strict=True))
        else:
            pairs = [(message, remedy) for message in messages for remedy in remedies]
        entry.raised += [Raised(message, remedy) for message, remedy in pairs]


def _handed_on(module: ast.Module) -> set[str]:
    """The codes that a module passes to another function, which makes the error."""
    return {
        str(child.value)
        for node in ast.walk(module)
        if isinstance(node, ast.Call | ast.IfExp)
        for child in ast.iter_child_nodes(node)
        if isinstance(child, ast.Constant) and _CODE.fullmatch(str(child.value))
    }


def _made_of(modules: Iterable[ast.Module]) -> set[int]:
    """The exit codes of errors that modules raise with the code in a variable."""
    return {
        _EXIT_CODES[call.func.id]
        for module in modules
        for _, call in _calls(module)
        if isinstance(call.func, ast.Name) and call.func.id in _EXIT_CODES
        if call.args and isinstance(call.args[0], ast.Attribute | ast.Name)
    }


def _calls(node: ast.AST, scope: ast.AST | None = None) -> Iterator[tuple[ast.AST, ast.Call]]:
    """All calls, each with its innermost enclosing function."""
    scope = scope or node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield scope, child
        inner = child if isinstance(child, ast.FunctionDef) else scope
        yield from _calls(child, inner)


def _texts(node: ast.expr, scope: ast.AST, constants: Mapping[str, str]) -> list[str | None]:
    """The possible texts of an argument; for a local variable, all that are assigned to it."""
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body, scope, constants), *_texts(node.orelse, scope, constants)]
    text = _text(node, constants)
    if text is None and isinstance(node, ast.Name):
        # Only assignments after the previous error count, since one name may serve several errors.
        raises = [item.end_lineno or 0 for item in ast.walk(scope) if isinstance(item, ast.Raise)]
        since = max((line for line in raises if line < node.lineno), default=0)
        given = [
            item.value
            for item in ast.walk(scope)
            if isinstance(item, ast.Assign) and since < item.lineno < node.lineno
            if any(isinstance(t, ast.Name) and t.id == node.id for t in item.targets)
        ]
        actual = [t for value in given for t in _texts(value, ast.Module([], []), constants)]
        return actual or [None]
    return [text]


def _text(node: ast.expr, constants: Mapping[str, str]) -> str | None:
    """A text with placeholders, or None if the expression is not a literal."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.JoinedStr):
        return "".join(_piece(value, constants) for value in node.values)
    if isinstance(node, ast.Call):
        return _command(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _piece(node.left, constants), _piece(node.right, constants)
        # Without a literal on either side it may be a sum of numbers.
        literals = [_text(node.left, constants), _text(node.right, constants)]
        return None if literals == [None, None] else left + right
    return None


def _command(node: ast.Call) -> str | None:
    """A command that differs between a clone and an installed package, as for the package."""
    called = getattr(node.func, "id", "")
    if called not in {"set_up", "packages"}:
        return None
    given = node.args[0] if node.args else ast.Constant("")
    name = str(given.value) if isinstance(given, ast.Constant) else f"{{{_name(given)}}}"
    if called == "packages":
        return f"run `pip install 'capstan-replay[{name}]'`"
    return f"`capstan setup {name}`".replace(" `", "`")


def _piece(node: ast.expr, constants: Mapping[str, str]) -> str:
    """A part of a text: its literal, or a placeholder."""
    if isinstance(node, ast.FormattedValue):
        return _piece(node.value, constants)
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("command", "shell_line"):
        words = " ".join(_piece(word, constants) for word in node.args)
        return f"`capstan {words}`" if getattr(node.func, "id", "") == "command" else words
    if isinstance(node, ast.IfExp):
        one, other = _piece(node.body, constants), _piece(node.orelse, constants)
        if not one or not other:
            return f"[{one or other}]"
        return "{...}" if one == other else f"[{one}|{other}]"
    text = _text(node, constants)
    return f"{{{_name(node)}}}" if text is None else text


def _name(node: ast.expr) -> str:
    """The name of a placeholder: the last name of the expression."""
    actual = "..."
    if isinstance(node, ast.Name):
        actual = node.id
    elif isinstance(node, ast.Attribute):
        of = _name(node.value) if node.attr == "name" else "self"
        actual = node.attr if of == "self" else of
    elif isinstance(node, ast.Subscript):
        key = node.slice
        named = isinstance(key, ast.Constant) and isinstance(key.value, str)
        actual = str(key.value) if named and isinstance(key, ast.Constant) else _name(node.value)
    elif isinstance(node, ast.Call):
        called = getattr(node.func, "attr", getattr(node.func, "id", "")).strip("_")
        rendered = called in _RENDERING and node.args
        actual = _name(node.args[-1]) if rendered else called or "..."
    return "..." if actual in {"said", "what", "told", "found", "problem"} else actual.strip("_")


def _cell(text: str) -> str:
    """A text as a cell of a table: one line, its pipes escaped."""
    return " ".join(text.split()).replace("|", "\\|")
