"""The declarations that a preset stands for, and those of a change feed and of a Kafka topic."""

from __future__ import annotations

from dataclasses import dataclass

from capstan.core.config.changes.model import Changes, RowColumn, struct_type
from capstan.core.sql_names import text_literal

_KNOWN = "'insert', 'update_preimage', 'update_postimage', 'delete'"
_DELETES = "('delete', 'update_preimage')"


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


def delta_feed_preset(changes: Changes) -> Preset:
    """The declarations for the change feed of a Delta table.

    An update is a delete of the row before it and an insert of the row after it, so a change of the
    key needs nothing else. Both have the version of their commit, in which all deletes come first.
    """
    return Preset(
        keys=changes.keys,
        select=(
            "* EXCEPT (_change_type, _commit_version, _commit_timestamp)",
            "_change_type AS __change_type",
            "_commit_version AS __commit_version",
            f"CASE WHEN _change_type IN {_DELETES} THEN 0 ELSE 1 END AS __part",
            "_commit_timestamp AS __commit_timestamp",
        ),
        where=known_only(
            f"CASE WHEN _change_type IN ({_KNOWN}) THEN NULL "
            "ELSE concat('unknown _change_type: ', coalesce(_change_type, 'none')) END"
        ),
        sequence_by=("__commit_version", "__part"),
        delete_when=f"__change_type IN {_DELETES}",
        options=(("readChangeFeed", "true"),),
    )


def kafka_topic_preset(changes: Changes) -> Preset:
    """The declarations for a compacted topic, whose keys are text or JSON objects of columns.

    The message key is the key of the row, and no value deletes it. A key of several columns is an
    object of them; one of one column is its text, or an object.
    """
    text = f"CAST({changes.key or 'key'} AS STRING)"
    keys = tuple(column for column in changes.rows if column.name in changes.keys)
    rest = tuple(column for column in changes.rows if column.name not in changes.keys)
    value = f"CAST({changes.value} AS STRING)"
    of_key = {column: _of_key(text, keys, column) for column in keys}
    missing = " AND ".join(f"{sql} IS NULL" for sql in of_key.values())
    opened = (
        f"from_json({value}, {text_literal(', '.join(f'{c.quoted} {c.kind}' for c in rest))}).*"
    )
    return Preset(
        keys=changes.keys,
        select=(
            *(f"{sql} AS {column.quoted}" for column, sql in of_key.items()),
            *([opened] if rest else []),
            f"{changes.value} IS NULL AS __deleted",
            f"{changes.offset or 'offset'} AS __offset",
            *([f"{changes.timestamp} AS __timestamp"] if changes.timestamp else []),
        ),
        where=known_only(
            f"CASE WHEN {missing} THEN concat('no key: ', coalesce({text}, 'none'), ' ', "
            f"coalesce({value}, '')) WHEN {_of_others(value, rest)} "
            f"THEN concat('none of the columns: ', {value}) END"
        ),
        sequence_by=("__offset",),
        delete_when="__deleted",
    )


def _of_key(text: str, keys: tuple[RowColumn, ...], column: RowColumn) -> str:
    # A key that is no object must not make a record malformed where its text is the value.
    within = struct_type((*keys, RowColumn("_corrupt_record", "STRING")))
    field = f"from_json({text}, {text_literal(within)}).{column.quoted}"
    return field if len(keys) > 1 else f"coalesce({field}, try_cast({text} AS {column.kind}))"


def _of_others(value: str, columns: tuple[RowColumn, ...]) -> str:
    """Whether a value has fields, but none of these: it is an envelope, or another row."""
    names = ", ".join(text_literal(column.name) for column in columns)
    keys = f"json_object_keys({value})"
    return f"size({keys}) > 0 AND NOT arrays_overlap({keys}, array({names}))" if names else "false"
