"""Registered transforms: computations that a replay can apply to its records."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import field
from datetime import timedelta
from types import CodeType, FunctionType
from typing import Annotated

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from capstan.core.config.fields import (
    CONFIG,
    Column,
    Columns,
    Declared,
    PositiveLength,
    Reference,
    Text,
    imported,
    name_of,
    without_problem,
)
from capstan.core.config.sql_rules import normalised, problem_with_query
from capstan.core.protocol.events import STAMP
from capstan.errors import InvalidRequestError

TOLERANCE = 1e-9
"""The default tolerance for sums of floats; sums of 4 million values of one sign stay within it."""

_STAMP = re.compile(rf"(?<!\w){STAMP}(?!\w)", re.IGNORECASE)

# DataFrame to DataFrame; `object`, because this package does not import Spark.
TransformFunction = Callable[..., object]

# Functions registered in Python, by `module:function`; some cannot be imported.
_registered: dict[str, TransformFunction] = {}


@dataclass(frozen=True, slots=True, config=CONFIG)
class Transform(Declared):
    """A computation over the records of a replay, registered by name.

    It reads a view named `records` (a function gets it as its only argument) with `_worker INT`,
    `_time STRUCT<...>` (a field per coordinate: `epoch`, `event`), `_label STRING` (the worker's
    label) and the stream's own columns. If its code names `_stamp`, they have that column as well,
    `ARRAY<STRUCT<...>>`: the elements of the stamp under which a record was sent, `_time` being the
    first. The same records must always give the same rows, in whatever order they come.

    Attributes:
        name: The name used in requests.
        description: One line for people.
        sql: One SELECT over `records`; or
        function: `package.module:function`, DataFrame to DataFrame. Exactly one of the two is set.
        time: The output column with the time, or None if the output has none: then it can only be
            published by `append`, `merge` or a full replacement.
        grain: Ranges must be multiples of this length; None to allow any range.
        worker: The output column with the captured worker's number, or None if output rows combine
            workers: then all workers must be selected.
        keys: Columns that identify an output row within a time, for audits and `merge`.
        tolerance: The last digits of float sums depend on the order of the records. Audits treat
            two sums `a` and `b` as equal up to `tolerance * max(1, |a|, |b|)`; with 0 such sums
            are rejected. It is not part of `code_hash`, because it changes no output.
    """

    name: Annotated[str, name_of("transform")]
    description: str = ""
    sql: Annotated[Text, without_problem(problem_with_query)] | None = None
    function: Reference | None = None
    time: Column | None = None
    grain: PositiveLength | None = None
    worker: Column | None = None
    keys: Columns = field(default=())
    tolerance: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = TOLERANCE

    @model_validator(mode="after")
    def _consistent(self) -> Transform:
        if (self.sql is None) == (self.function is None):
            raise ValueError("needs either sql or function, and not both")
        if self.grain is not None and self.time is None:
            raise ValueError("has a grain but no time; name the output column of the time")
        return self

    def resolve(self) -> TransformFunction | None:
        """The function, or None for SQL."""
        if self.function is None:
            return None
        if self.function in _registered:
            return _registered[self.function]
        try:
            function = imported(self.function)
        except (ImportError, AttributeError) as error:
            raise self._unusable(f"cannot be imported: {error}") from error
        if not callable(function):
            raise self._unusable("is not a function")
        return function

    @property
    def code_hash(self) -> str:
        """SHA-256, in hex, of everything that determines the output: code and settings.

        For SQL, comments and whitespace are ignored. For a function, the hash covers its source
        and the functions and plain constants of its own module that it uses; objects of other
        modules are ignored.
        """
        code = self._code
        settings = {
            "code": code[0] if self.function is None else code,
            "time": self.time,
            "grain": None if self.grain is None else self.grain // timedelta(microseconds=1),
            "worker": self.worker,
            "keys": self.keys,
        }
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    @property
    def reads_stamp(self) -> bool:
        """Whether its code has the word `_stamp` anywhere: the records then have such a column."""
        return any(map(_STAMP.search, self._code))

    @property
    def _code(self) -> list[str]:
        """The text of its SQL, or the sources of its function."""
        function = self.resolve()
        if function is None:
            return [normalised(self.sql or "")]
        try:
            return sorted(_sources(function))
        except (OSError, TypeError) as error:
            raise self._unusable("has no source to hash; keep it in a file") from error

    def _unusable(self, problem: str) -> InvalidRequestError:
        return InvalidRequestError(
            "CAP-TRANSFORM",
            f"transform {self.name}: {self.function} {problem}",
            "give a function of an importable module as package.module:function",
            transform=self.name,
        )


def register(reference: str, function: TransformFunction) -> None:
    """Make `Transform.resolve` return `function` for `reference` without an import."""
    _registered[reference] = function


def _sources(function: TransformFunction) -> Iterator[str]:
    """Sources of `function` and of the objects it uses from its module, each once, in no order."""
    waiting, seen = [inspect.unwrap(function)], set()
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        yield inspect.getsource(current)
        if not isinstance(current, FunctionType):
            continue
        for name in _names(current.__code__):
            value = current.__globals__.get(name)
            if isinstance(value, FunctionType) and value.__module__ == current.__module__:
                waiting.append(value)
            elif isinstance(value, str | int | float | bytes | tuple):
                yield f"{name} = {value!r}"


def _names(code: CodeType) -> Iterator[str]:
    """Global names in `code` and in the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
