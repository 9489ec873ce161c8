"""What a preset stands for: expressions of the source, and the rule by which replays merge."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Preset:
    """The declarations that a preset stands for.

    Attributes:
        select: The expressions of `source.select`.
        where: The condition of `source.where`.
        sequence_by: The columns that order the changes of a key.
        truncate_when: The condition that a change deletes all rows before it; None when none does.
        unchanged: The text for a value that stays as it was; None when there is none.
    """

    keys: tuple[str, ...]
    select: tuple[str, ...]
    where: str
    sequence_by: tuple[str, ...]
    delete_when: str
    truncate_when: str | None = None
    unchanged: str | None = None
    options: tuple[tuple[str, str], ...] = ()


def known_only(problem: str) -> str:
    """The condition that a record has no problem.

    A text that is no JSON makes its record malformed, so that it is late with that text.

    Args:
        problem: SQL for the text of the problem; null for a record without one.
    """
    return f"from_json({problem}, 'ok INT') IS NULL"
