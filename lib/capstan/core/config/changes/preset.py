"""What a preset stands for: expressions of the source, and the rule by which replays merge."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Preset:
    """The declarations that a preset stands for."""

    keys: tuple[str, ...]
    select: tuple[str, ...]
    where: str
    sequence_by: tuple[str, ...]  # order the changes of a key
    delete_when: str
    truncate_when: str | None = None  # a change deletes all rows before it; None for never
    unchanged: str | None = None  # text for a value that stays as it was
    options: tuple[tuple[str, str], ...] = ()


def known_only(problem: str) -> str:
    """The condition that a record has no `problem`, which is SQL for its text, or null.

    A text that is no JSON makes its record malformed, so that it is late with that text.
    """
    return f"from_json({problem}, 'ok INT') IS NULL"
