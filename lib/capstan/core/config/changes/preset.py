"""What a preset stands for: expressions of the source, and the rule by which replays merge."""

from __future__ import annotations

from dataclasses import dataclass, replace

from capstan.core.config.changes.model import Changes


@dataclass(frozen=True, slots=True)
class Preset:
    """The declarations that a preset stands for.

    Attributes:
        select: The expressions of `source.select`.
        where: The condition of `source.where`.
        sequence_by: The columns that order the changes of a key.
        delete_when: The condition that a change deletes its key.
        truncate_when: The condition that a change deletes all rows before it; None when none does.
        unchanged: The text for a value that stays as it was; None when there is none.
        options: Options that the source needs.
    """

    select: tuple[str, ...]
    where: str
    sequence_by: tuple[str, ...]
    delete_when: str
    truncate_when: str | None = None
    unchanged: str | None = None
    options: tuple[tuple[str, str], ...] = ()


def preset_of(changes: Changes, *, kafka: bool) -> Preset:
    """The declarations that a preset stands for.

    Args:
        changes: The preset.
        kafka: Whether the source is a topic of Kafka.
    """
    from capstan.core.config.changes import debezium, delta_feed, kafka_topic

    if changes.format == "delta":
        return delta_feed.preset()
    if kafka:
        changes = replace(
            changes,
            key=changes.key or "key",
            offset=changes.offset or "offset",
            timestamp=changes.timestamp or "timestamp",
        )
    return (kafka_topic if changes.format == "kafka" else debezium).preset(changes)


def known_only(problem: str) -> str:
    """The condition that a record has no problem.

    A text that is no JSON makes its record malformed, so that it is late with that text.

    Args:
        problem: SQL for the text of the problem; null for a record without one.
    """
    return f"from_json({problem}, 'ok INT') IS NULL"
