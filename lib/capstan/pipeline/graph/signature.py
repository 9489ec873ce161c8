"""Signatures of operators, which detect a state that another operator saved.

A signature lists the operator's settings one by one, so that errors can name the change. Settings
count by their values. Code counts by a digest of its source, without comments, docstrings and
layout: functions with their closures, and classes outside Capstan. Code that it calls elsewhere
does not count, nor does code without source.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.graph.errors import StateChanged
from capstan.pipeline.graph.operator import Key, OperatorSpec

Signature = Mapping[str, str]
"""Settings as text, by name. Names that begin with # are not settings of the operator."""

Signatures = Mapping[str, Signature]
"""Known signatures, by operator."""

FORM: Final = "#form"
CODE: Final = "#code"
_OWN: Final = (
    "capstan.pipeline.engine.",
    "capstan.pipeline.graph.",
    "capstan.pipeline.keyed.",
    "capstan.pipeline.operators.",
    "capstan.pipeline.state.",
)
_SHOWN_CHARS: Final = 80
_SCALARS: Final = (bool, int, float, str, bytes, Decimal, date, datetime, time)
_ARROW: Final = (pa.DataType, pa.Field, pa.Scalar, pc.Expression)


def signature_of(
    spec: OperatorSpec, key: Key | None, inputs: Sequence[tuple[str, pa.Schema]]
) -> Signature:
    """Compute an operator's signature: what its state, or without state its output, depends on.

    Args:
        key: Key of its state; None when it has none.
        inputs: Name and columns of the node upstream of each port.
    """
    renderer = _Renderer()
    form = ""
    if key is not None:
        operator = spec.create([schema for _, schema in inputs])
        form = operator.form
        renderer.code_of(type(operator))
    signature = {
        "#operator": type(spec).__qualname__,
        FORM: form,
        "#key": "none" if key is None else str(key),
        "#inputs": "; ".join(f"{name} ({_columns(schema)})" for name, schema in inputs),
    }
    renderer.code_of(type(spec))
    signature |= {name: renderer.text(value) for name, value in _settings(spec)}
    return signature | {CODE: renderer.digest()}


def require_unchanged(saved: Signatures, current: Signatures, *, whole: bool = False) -> None:
    """Check saved signatures against the current ones, where both are known.

    If both cover `whole` graphs, each must have the operators of the other.
    """
    for name in sorted({*saved, *current}):
        before, after = saved.get(name), current.get(name)
        if before is not None and after is not None:
            reason = _change(before, after)
        else:
            reason = "it is new" if before is None else "it was removed"
            reason = reason if whole else ""
        if reason:
            text = f"{name} has changed since the state was saved: {reason}"
            raise StateChanged.create(text, node=name, reason=reason)


def _change(before: Signature, after: Signature) -> str:
    """Describe the change between two signatures; empty when the state can be used."""
    # Code does not matter when the format of the state differs: then the operator itself migrates
    # the state, or refuses it.
    migrates = before.get(FORM) != after.get(FORM)
    for name in sorted({*before, *after} - {FORM, CODE}):
        if before.get(name) != after.get(name):
            old, new = (str(s.get(name, "nothing"))[:_SHOWN_CHARS] for s in (before, after))
            return f"{name.lstrip('#')} was {old}, and is {new}"
    if migrates or before.get(CODE) == after.get(CODE):
        return ""
    return "its code has changed"


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)


def _settings(value: object) -> list[tuple[str, object]]:
    """Return the fields of a dataclass, or the attributes of another object, with their names."""
    if is_dataclass(value):
        return [(declared.name, getattr(value, declared.name)) for declared in fields(value)]
    attributes = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                attributes[name] = getattr(value, name)
    return sorted(attributes.items())


def _is_builtin(cls: type) -> bool:
    module = cls.__module__
    return module.startswith(_OWN) or module.partition(".")[0] in sys.stdlib_module_names


@dataclass(slots=True)
class _Renderer:
    """Renders settings as text, and collects the code among them."""

    _parts: list[str] = field(default_factory=list)
    _open: set[int] = field(default_factory=set)

    def digest(self) -> str:
        """Digest of all code so far; empty without code."""
        if not self._parts:
            return ""
        return hashlib.blake2b("\0".join(self._parts).encode(), digest_size=8).hexdigest()

    def text(self, value: object) -> str:
        """Render a setting as text; collect the code in it."""
        plain = _plain(value)
        if plain is not None:
            return plain
        if isinstance(value, Mapping):
            pairs = (f"{self.text(key)}: {self.text(entry)}" for key, entry in value.items())
            return f"{{{', '.join(pairs)}}}"
        if isinstance(value, AbstractSet):
            return f"{{{', '.join(sorted(map(self.text, value)))}}}"
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(self.text, value))}]"
        if is_dataclass(value) and not isinstance(value, type) and _is_builtin(type(value)):
            settings = (f"{name}={self.text(setting)}" for name, setting in _settings(value))
            return f"{type(value).__name__}({', '.join(settings)})"
        self.code_of(value)
        return "code"

    def code_of(self, value: object) -> None:
        """Collect the code that decides the behaviour of a function, class or other object."""
        if id(value) in self._open:
            return
        self._open.add(id(value))
        if isinstance(value, type):
            custom = [cls for cls in value.__mro__ if not _is_builtin(cls)]
            self._parts += [_source(cls) or cls.__qualname__ for cls in custom]
        elif isinstance(value, FunctionType):
            self._parts.append(_source(value.__code__) or value.__qualname__)
            cells = [_content(cell) for cell in value.__closure__ or ()]
            self._parts.append(self.text([cells, value.__defaults__, value.__kwdefaults__]))
        elif isinstance(value, partial):
            self.code_of(value.func)
            self._parts.append(self.text([value.args, value.keywords]))
        elif isinstance(value, MethodType):
            self.code_of(value.__func__)
            self.code_of(value.__self__)
        elif isinstance(value, BuiltinFunctionType):
            self._parts.append(value.__qualname__)
        else:
            self.code_of(type(value))
            self._parts += [f"{name}={self.text(setting)}" for name, setting in _settings(value)]
        self._open.discard(id(value))


def _plain(value: object) -> str | None:
    """Render an atomic value as text; None for any other."""
    if isinstance(value, timedelta):
        return str(value // timedelta(microseconds=1))
    if isinstance(value, Enum):
        return str(value.value)
    if value is None or isinstance(value, _SCALARS):
        return repr(value)
    if isinstance(value, pa.Schema):
        return _columns(value)
    return str(value) if isinstance(value, _ARROW) else None


def _content(cell: object) -> object:
    # A cell is empty until the enclosing function has assigned its variable.
    return getattr(cell, "cell_contents", None)


@lru_cache(maxsize=1024)
def _source(code: type | CodeType) -> str | None:
    """Return the normalized source of a class or function; None when there is none."""
    try:
        text = textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError):
        return None
    try:
        tree = ast.parse(text)
    except SyntaxError:
        # The source of a lambda is only the lines that it is on.
        return " ".join(text.split())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
