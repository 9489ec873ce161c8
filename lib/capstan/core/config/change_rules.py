"""Rules of a merge by sequence: which change of a key wins, and what a table keeps of the others.

The semantics are those of `AUTO CDC` in Spark's declarative pipelines (`SEQUENCE BY`, `APPLY AS
DELETE WHEN`, `STORED AS SCD TYPE 2`).
"""

from __future__ import annotations

from dataclasses import dataclass

from capstan.core.config.sql_rules import normalised

DELETED = "_capstan_deleted"
"""The column of a change that tells whether it deletes its key."""

VALID_FROM, VALID_TO, CURRENT = "valid_from", "valid_to", "current"
"""The columns that a history adds to each version of a row."""


@dataclass(frozen=True, slots=True)
class ChangeRule:
    """The rule by which the changes of a key become rows of a table.

    Attributes:
        keys: The columns that identify a key.
        sequence_by: The columns whose greatest values make a change win, the most significant
            first.
        delete_when: The SQL condition that a change deletes its key; None when none does.
        history: Whether the table keeps every version of a key, and not only the last one.
    """

    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    delete_when: str | None = None
    history: bool = False

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that identify a row of the table."""
        return (*self.keys, *self.sequence_by) if self.history else self.keys

    @property
    def added(self) -> tuple[str, ...]:
        """The columns of the table that the changes do not have."""
        return (VALID_FROM, VALID_TO, CURRENT) if self.history else ()

    def to_json(self) -> dict[str, object]:
        """The rule without the keys, as a run's identity includes it."""
        return {
            "sequence_by": list(self.sequence_by),
            "delete_when": None if self.delete_when is None else normalised(self.delete_when),
            "history": self.history,
        }


def problem_with_changes(
    *, merges: bool, sequence_by: tuple[str, ...], delete_when: str | None, history: bool
) -> str | None:
    """The reason why a replay cannot merge by these settings, or None."""
    if not sequence_by:
        name = "history" if history else "delete_when" if delete_when is not None else None
        return None if name is None else f"{name} needs sequence_by, the order of the changes"
    return None if merges else "sequence_by needs mode merge"
