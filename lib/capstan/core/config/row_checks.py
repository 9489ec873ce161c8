"""Declared checks for every row that a replay publishes.

A check is an SQL predicate, a unique combination of columns, a set of columns without nulls, or a
range of a column. Its text is declared and trusted like that of a transform; requests cannot
contain checks.
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
from capstan.core.config.fields import (
    CONFIG,
    Column,
    Columns,
    Declared,
    Text,
    name_of,
    without_problem,
)
from capstan.core.config.sql_rules import normalised, problem_with_expression

Limit = Decimal | datetime
"""A bound of a column's values: a number, or an instant."""

_KINDS = ("sql", "unique", "not_null", "range")
_MAX_NAME = 64
# The digits of a DECIMAL.
_DIGITS = 38


def _limit(value: object) -> object:
    if isinstance(value, bool | datetime) or not isinstance(value, str | int | float | Decimal):
        return value
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        return parse_instant(str(value))
    if not number.is_finite() or abs(number.adjusted()) > _DIGITS:
        raise ValueError(f"{value!r} is not a number that values can be compared with")
    return Decimal(format(number, "f"))


@dataclass(frozen=True, slots=True, config=CONFIG)
class Range(Declared):
    """The allowed values of a column, bounds included; nulls are ignored.

    Attributes:
        column: A column of numbers, dates or timestamps.
        min: The smallest value; None for no bound. A number, or an instant (UTC by default).
        max: The largest value; None for no bound.
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
            raise ValueError("has a number and an instant; both must be of the same kind")
        if low > high:  # type: ignore[operator]
            raise ValueError("has a min above its max, so that no value is allowed")
        return self


@dataclass(frozen=True, slots=True, kw_only=True, config=CONFIG)
class Check(Declared):
    """A condition for every row; exactly one of the four kinds is set.

    Attributes:
        name: The name in certificates and errors; by default made from kind and columns.
        sql: A predicate over the output's columns. A row for which it is null fails.
        unique: Columns whose combination is unique among the rows of a run; null counts as a value.
        not_null: Columns without nulls.
        range: The range of a column; nulls pass.
    """

    # It is an item of a list, so no key is its name.
    NAMED_BY_KEY: ClassVar[bool] = False

    name: Annotated[str, name_of("check")] | None = None
    sql: Annotated[Text, without_problem(problem_with_expression)] | None = None
    unique: Columns | None = None
    not_null: Columns | None = None
    range: Range | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Check:
        kinds = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise ValueError(f"needs exactly one of {', '.join(_KINDS)}")
        if self.name is not None:
            return self
        if self.sql is not None:
            raise ValueError("needs a name, because an sql check has no default name")
        words = "_".join((kinds[0], *self.columns)).lower()
        name = re.sub(r"[^a-z0-9_]", "_", words)[:_MAX_NAME]
        object.__setattr__(self, "name", name)
        return self

    @property
    def title(self) -> str:
        """The name, which is always set after validation."""
        return self.name or ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the check; none for an SQL predicate."""
        named = (self.range.column,) if self.range is not None else ()
        return self.unique or self.not_null or named

    @property
    def rule(self) -> str:
        """The rule in readable form: `0 <= amount <= 100`."""
        if self.sql is not None:
            return normalised(self.sql)
        if self.range is None:
            return f"{'unique' if self.unique else 'not null'}: {', '.join(self.columns)}"
        low, high = self.range.min, self.range.max
        before = "" if low is None else f"{_shown(low)} <= "
        return f"{before}{self.range.column}" + ("" if high is None else f" <= {_shown(high)}")


def _shown(limit: Limit) -> str:
    return limit.isoformat() if isinstance(limit, datetime) else format(limit, "f")


def duplicate_name(checks: Sequence[Check]) -> str | None:
    """The first name that two checks share, or None."""
    names = [check.title for check in checks]
    return next((name for i, name in enumerate(names) if name in names[:i]), None)


def _distinct(checks: tuple[Check, ...]) -> tuple[Check, ...]:
    name = duplicate_name(checks)
    if name is not None:
        raise ValueError(f"has two checks named {name!r}; rename one of them")
    return checks


Checks = Annotated[tuple[Check, ...], AfterValidator(_distinct)]
