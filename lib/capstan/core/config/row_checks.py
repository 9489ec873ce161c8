"""Declared checks: what every row that a replay puts out must meet.

A check is one of four: an SQL predicate, columns that are unique together, columns that are never
null, a column's range. It is declared text, trusted like a transform's; no request brings one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator, model_validator
from pydantic.dataclasses import dataclass

from capstan.core.config.durations import parse_instant
from capstan.core.config.fields import CONFIG, Column, Columns, Declared, Text, name_of
from capstan.core.config.sql_rules import normalised, problem_with_expression

Limit = Decimal | datetime
"""A bound of a column's values: a number, or an instant."""

_KINDS = ("sql", "unique", "not_null", "range")
_LONGEST_NAME = 64
# What a DECIMAL can hold.
_DIGITS = 38


def _predicate(text: str) -> str:
    problem = problem_with_expression(text)
    if problem:
        raise ValueError(problem)
    return text


def _limit(value: object) -> object:
    if isinstance(value, bool | datetime) or not isinstance(value, str | int | float | Decimal):
        return value
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        return parse_instant(str(value))
    if not number.is_finite() or abs(number.adjusted()) > _DIGITS:
        raise ValueError(f"{value!r} is no number to compare with")
    return Decimal(format(number, "f"))


@dataclass(frozen=True, slots=True, config=CONFIG)
class Range(Declared):
    """The values that a column may have, both bounds included; null is not a value.

    Attributes:
        column: A column of numbers, dates or timestamps.
        min: The least value; None for no bound. A number, or an instant (UTC when it names none).
        max: The greatest value; None for no bound.
    """

    column: Column
    min: Annotated[Limit, BeforeValidator(_limit)] | None = None
    max: Annotated[Limit, BeforeValidator(_limit)] | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        low, high = self.min, self.max
        if low is None and high is None:
            raise ValueError("needs a min, a max, or both")
        if low is None or high is None:
            return self
        if isinstance(low, Decimal) != isinstance(high, Decimal):
            raise ValueError("has a number and an instant; write two of a kind")
        if low > high:  # type: ignore[operator]
            raise ValueError("has a min beyond its max, so that no value is inside")
        return self


@dataclass(frozen=True, slots=True, kw_only=True, config=CONFIG)
class Check(Declared):
    """Something that every row must meet; exactly one of the four is set.

    Attributes:
        name: What certificates and errors call it; made of kind and columns where none is given.
        sql: A predicate over the output's columns. A row for which it is null does not meet it.
        unique: Columns that no two rows share, among the rows of a run; null is a value here.
        not_null: Columns that are never null.
        range: A column's range. A null is passed over.
    """

    # It stands in a list, so no key names it.
    NAMED_BY_KEY: ClassVar[bool] = False

    name: Annotated[str, name_of("check")] | None = None
    sql: Annotated[Text, AfterValidator(_predicate)] | None = None
    unique: Columns | None = None
    not_null: Columns | None = None
    range: Range | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Check:
        given = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"needs exactly one of {', '.join(_KINDS)}")
        if self.name is not None:
            return self
        if self.sql is not None:
            raise ValueError("needs a name, as its sql makes none")
        words = "_".join((given[0], *self.columns)).lower()
        name = re.sub(r"[^a-z0-9_]", "_", words)[:_LONGEST_NAME]
        object.__setattr__(self, "name", name)
        return self

    @property
    def title(self) -> str:
        """The name, which there always is."""
        return self.name or ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names; none of an SQL predicate."""
        named = (self.range.column,) if self.range is not None else ()
        return self.unique or self.not_null or named

    @property
    def rule(self) -> str:
        """The rule as a person reads it: `0 <= amount <= 100`."""
        if self.sql is not None:
            return normalised(self.sql)
        if self.range is None:
            return f"{'unique' if self.unique else 'not null'}: {', '.join(self.columns)}"
        low, high = self.range.min, self.range.max
        before = "" if low is None else f"{_shown(low)} <= "
        return f"{before}{self.range.column}" + ("" if high is None else f" <= {_shown(high)}")


def _shown(limit: Limit) -> str:
    return limit.isoformat() if isinstance(limit, datetime) else format(limit, "f")


def twice(checks: Sequence[Check]) -> str | None:
    """The first name that two of `checks` have, or None."""
    seen: set[str] = set()
    for check in checks:
        if check.title in seen:
            return check.title
        seen.add(check.title)
    return None


def _distinct(checks: tuple[Check, ...]) -> tuple[Check, ...]:
    name = twice(checks)
    if name is not None:
        raise ValueError(f"has two checks named {name!r}; give one of them another name")
    return checks


Checks = Annotated[tuple[Check, ...], AfterValidator(_distinct)]
