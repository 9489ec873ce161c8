"""What the state of an operator depends on, so that no other operator goes on from it unnoticed.

A signature is told setting by setting, for errors that say what was changed. Settings count as they
are. Code counts by a digest of its text, without comments, docstrings and layout: functions with
what they close over, and classes that are not Capstan's own. What code calls elsewhere does not
count, and neither does code of which there is no text.
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
"""By setting its value as text. Names that begin with # are no settings of the operator's own."""

Signatures = Mapping[str, Signature]
"""By operator, of those whose signature is known."""

FORM: Final = "#form"
CODE: Final = "#code"
_OWN: Final = (
    "capstan.pipeline.engine.",
    "capstan.pipeline.graph.",
    "capstan.pipeline.keyed.",
    "capstan.pipeline.live.",
    "capstan.pipeline.operators.",
    "capstan.pipeline.state.",
)
_SHOWN: Final = 80
_SCALARS: Final = (bool, int, float, str, bytes, Decimal, date, datetime, time)
_ARROW: Final = (pa.DataType, pa.Field, pa.Scalar, pc.Expression)


def signature_of(
    spec: OperatorSpec, key: Key | None, inputs: Sequence[tuple[str, pa.Schema]]
) -> Signature:
    """What the state of an operator depends on, or the rows that it makes where it has none.

    Args:
        spec: The operator.
        key: What its state is kept by; None where it has none.
        inputs: By port the node that feeds it, and that node's columns.
    """
    reader = _Reader()
    form = ""
    if key is not None:
        operator = spec.create([schema for _, schema in inputs])
        form = operator.form
        reader.code_of(type(operator))
    found = {
        "#operator": type(spec).__qualname__,
        FORM: form,
        "#key": "none" if key is None else str(key),
        "#inputs": "; ".join(f"{name} ({_columns(schema)})" for name, schema in inputs),
    }
    reader.code_of(type(spec))
    found |= {name: reader.text(value) for name, value in _settings(spec)}
    return found | {CODE: reader.digest()}


def require_unchanged(kept: Signatures, now: Signatures, *, whole: bool = False) -> None:
    """Check that what was kept is of operators with these signatures, as far as both are known.

    Args:
        kept: The signatures that were kept with the state.
        now: Those of the operators that are to go on from it.
        whole: Whether both are of whole graphs: then each has to have the other's operators.

    Raises:
        StateChanged: Naming the first operator of which it is not.
    """
    for name in sorted({*kept, *now}):
        was, becomes = kept.get(name), now.get(name)
        if was is not None and becomes is not None:
            reason = _why_changed(was, becomes)
        else:
            reason = "it was not there" if was is None else "it is there no more"
            reason = reason if whole else ""
        if reason:
            text = f"{name} is not as it was when the state was kept: {reason}"
            raise StateChanged.create(text, node=name, reason=reason)


def _why_changed(was: Signature, now: Signature) -> str:
    """What tells two signatures apart, in words; empty where the one's state is the other's.

    Code makes no difference where the form of the state is told to be another one: then the
    operator itself has to migrate it, or to refuse.
    """
    migrates = was.get(FORM) != now.get(FORM)
    for name in sorted({*was, *now} - {FORM, CODE}):
        if was.get(name) != now.get(name):
            shown = [str(each.get(name, "nothing"))[:_SHOWN] for each in (was, now)]
            return f"{name.lstrip('#')} was {shown[0]}, and is {shown[1]}"
    if migrates or was.get(CODE) == now.get(CODE):
        return ""
    return "its code was another"


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)


def _settings(value: object) -> list[tuple[str, object]]:
    """The fields of a dataclass, or what else an object has, by name."""
    if is_dataclass(value):
        return [(each.name, getattr(value, each.name)) for each in fields(value)]
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                found[name] = getattr(value, name)
    return sorted(found.items())


def _is_own(kind: type) -> bool:
    module = kind.__module__
    return module.startswith(_OWN) or module.partition(".")[0] in sys.stdlib_module_names


@dataclass(slots=True)
class _Reader:
    """Reads settings as text, and gathers the code among them."""

    _parts: list[str] = field(default_factory=list)
    _within: set[int] = field(default_factory=set)

    def digest(self) -> str:
        """Of all code so far; empty where there is none."""
        if not self._parts:
            return ""
        return hashlib.blake2b("\0".join(self._parts).encode(), digest_size=8).hexdigest()

    def text(self, value: object) -> str:
        """A setting as text; the code in it is gathered."""
        plain = _plain(value)
        if plain is not None:
            return plain
        if isinstance(value, Mapping):
            pairs = (f"{self.text(key)}: {self.text(each)}" for key, each in value.items())
            return f"{{{', '.join(pairs)}}}"
        if isinstance(value, AbstractSet):
            return f"{{{', '.join(sorted(map(self.text, value)))}}}"
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(self.text, value))}]"
        if is_dataclass(value) and not isinstance(value, type) and _is_own(type(value)):
            own = (f"{name}={self.text(each)}" for name, each in _settings(value))
            return f"{type(value).__name__}({', '.join(own)})"
        self.code_of(value)
        return "code"

    def code_of(self, value: object) -> None:
        """Gather what decides what a function, a class or any other object does."""
        if id(value) in self._within:
            return
        self._within.add(id(value))
        if isinstance(value, type):
            users = [kind for kind in value.__mro__ if not _is_own(kind)]
            self._parts += [_source(kind) or kind.__qualname__ for kind in users]
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
            self._parts += [f"{name}={self.text(each)}" for name, each in _settings(value)]
        self._within.discard(id(value))


def _plain(value: object) -> str | None:
    """A value without parts as text; None for any other."""
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
    # A cell is empty while the function that fills it has not come so far.
    return getattr(cell, "cell_contents", None)


@lru_cache(maxsize=1024)
def _source(of: type | CodeType) -> str | None:
    """The text of a class or a function as it is parsed; None where there is none."""
    try:
        text = textwrap.dedent(inspect.getsource(of))
    except (OSError, TypeError):
        return None
    try:
        tree = ast.parse(text)
    except SyntaxError:
        # Of a lambda there are only the lines that it is on.
        return " ".join(text.split())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
