"""Rules of a merge by sequence: which change of a key wins, and what a table keeps of the others.

The semantics are those of `AUTO CDC` in Spark's declarative pipelines (`SEQUENCE BY`, `APPLY AS
DELETE WHEN`, `STORED AS SCD TYPE 2`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from capstan.core.config.sequences import SequenceColumn
from capstan.core.config.sql_rules import normalised

DELETED = "_capstan_deleted"
"""The column of a change that tells whether it deletes its key, or is a truncate."""

TRUNCATES = "_capstan_truncates"
"""The column of a change that tells whether it is a truncate; only where a rule has a condition."""

OPTIONS = ("delete_when", "truncate_when", "unchanged", "history")
"""The settings of a merge by sequence beside its keys and `sequence_by`."""

_LATER = ("truncate_when", "unchanged")
"""Those that stored requests and rules have only when they are set."""

VALID_FROM, VALID_TO, CURRENT = "valid_from", "valid_to", "current"
"""The columns that a history adds to each version of a row."""


@dataclass(frozen=True, slots=True)
class ChangeRule:
    """The rule by which the changes of a key become rows of a table; conditions are SQL.

    Attributes:
        sequence_by: The columns whose greatest values make a change win, the most significant
            first; each perhaps with its kind, as `version as number`.
        delete_when: When a change deletes its key; None for never.
        history: Whether the table keeps every version of a key, and not only the last one.
        truncate_when: When a change removes the rows of all keys whose sequence is before its own,
            and is no row itself; None for never.
        unchanged: The text of a column that a change does not tell, and that keeps the value of the
            previous change of the key; None when every change is whole.
    """

    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    delete_when: str | None = None
    history: bool = False
    truncate_when: str | None = None
    unchanged: str | None = None

    @classmethod
    def of(cls, keys: tuple[str, ...], given: Any) -> Self | None:
        """The rule of a request with these keys; None unless it merges by sequence."""
        if not given.sequence_by:
            return None
        return cls(keys, given.sequence_by, **{name: getattr(given, name) for name in OPTIONS})

    @property
    def sequence(self) -> tuple[SequenceColumn, ...]:
        """The columns that order the changes, with their kinds."""
        return tuple(map(SequenceColumn.of, self.sequence_by))

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that identify a row of the table."""
        ordering = (each.column for each in self.sequence) if self.history else ()
        return (*self.keys, *ordering)

    @property
    def added(self) -> tuple[str, ...]:
        """The columns of the table that the changes do not have."""
        return (VALID_FROM, VALID_TO, CURRENT) if self.history else ()

    @property
    def flags(self) -> tuple[str | None, str | None]:
        """What decides which changes delete and truncate; not how columns get their values."""
        return _normal(self.delete_when), _normal(self.truncate_when)

    @property
    def shape(self) -> tuple[object, ...]:
        """What all runs into a table have in common."""
        return self.keys, self.sequence_by, self.history, self.unchanged

    def to_json(self) -> dict[str, object]:
        """The rule without the keys, as a run's identity includes it."""
        delete_when, truncate_when = self.flags
        value: dict[str, object] = {
            "sequence_by": list(self.sequence_by),
            "delete_when": delete_when,
            "history": self.history,
        }
        later = {"truncate_when": truncate_when, "unchanged": self.unchanged}
        return value | {name: text for name, text in later.items() if text is not None}


def stored_options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request without options of a merge that a stored request lacks."""
    absent = {name for name in _LATER if fields[name] is None}
    if not fields["sequence_by"]:
        absent |= {"sequence_by", *OPTIONS}
    return {name: value for name, value in fields.items() if name not in absent}


def problem_without_sequence(given: Any) -> str | None:
    """The reason why settings have no effect without `sequence_by`, or None."""
    name = next((name for name in OPTIONS if getattr(given, name) not in (None, False)), None)
    lacks = name is not None and not given.sequence_by
    return f"{name} needs sequence_by, the order of the changes" if lacks else None


def _normal(condition: str | None) -> str | None:
    return None if condition is None else normalised(condition)
