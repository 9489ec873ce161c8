"""Positions of changes in the logs of databases, as the envelopes of Debezium tell them."""

from __future__ import annotations

from dataclasses import dataclass

_HEXADECIMAL = "^[0-9A-Fa-f]{8}:[0-9A-Fa-f]{8}:[0-9A-Fa-f]{4}$"


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a change in the log of a database.

    What a snapshot reads may have none; it is then before all changes.

    Attributes:
        fields: The fields of `source` that tell it. All are read as text, because their types
            differ between versions of Debezium.
        columns: The columns that order changes, each with SQL over the envelope `e`.
    """

    fields: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    known: str
    always: bool = False


def number(sql: str) -> str:
    """A number that is written as text or as a number; null for anything else."""
    return f"try_cast({sql} AS BIGINT)"


def _number_or_zero(sql: str) -> str:
    return f"coalesce({number(sql)}, 0)"


def _lsn(field: str) -> str:
    """The number of `0000002a:00000758:0005`, which has 80 bits."""
    first, second, third = (
        f"coalesce(CAST(conv(split_part(e.source.{field}, ':', {part}), 16, 10) "
        "AS DECIMAL(20, 0)), 0)"
        for part in (1, 2, 3)
    )
    return f"CAST(({first} * 4294967296 + {second}) * 65536 + {third} AS DECIMAL(38, 0))"


# Files of the log are numbered: binlog.000999 is followed by binlog.001000, and by 1000000.
_BINLOG = "substring_index(e.source.file, '.', -1)"
_MYSQL = Position(
    fields=("file", "pos", "row"),
    columns=(
        ("__binlog", _number_or_zero(_BINLOG)),
        ("__pos", _number_or_zero("e.source.pos")),
        ("__row", _number_or_zero("e.source.row")),
    ),
    known=f"{number(_BINLOG)} IS NOT NULL AND {number('e.source.pos')} IS NOT NULL",
)
POSITIONS = {
    "postgresql": Position(
        fields=("lsn",),
        columns=(("__lsn", _number_or_zero("e.source.lsn")),),
        known=f"{number('e.source.lsn')} IS NOT NULL",
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "sqlserver": Position(
        fields=("commit_lsn", "change_lsn", "event_serial_no"),
        columns=(
            ("__commit_lsn", _lsn("commit_lsn")),
            ("__change_lsn", _lsn("change_lsn")),
            ("__event_serial_no", _number_or_zero("e.source.event_serial_no")),
        ),
        known=f"e.source.commit_lsn RLIKE '{_HEXADECIMAL}' "
        f"AND e.source.change_lsn RLIKE '{_HEXADECIMAL}'",
    ),
    "mongodb": Position(
        fields=("ord",),
        columns=(
            ("__source_ts_ms", number("e.source.ts_ms")),
            ("__ord", _number_or_zero("e.source.ord")),
        ),
        known=f"{number('e.source.ts_ms')} IS NOT NULL",
        always=True,
    ),
}
"""The position in the log of each database."""
