"""A compacted topic of Kafka: the message key is the key of the row, no value deletes it."""

from __future__ import annotations

from capstan.core.config.changes.columns import RowColumn, struct_type
from capstan.core.config.changes.model import Changes
from capstan.core.config.changes.preset import Preset, known_only
from capstan.core.sql_names import text_literal


def preset(changes: Changes) -> Preset:
    """The declarations for a compacted topic, whose keys are text or JSON objects of columns.

    A key of several columns is an object of them; one of one column is its text, or an object.
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
