"""Envelopes of Debezium as JSON, with and without their schema.

An envelope makes no row (a tombstone, a message, an event of the schema, of a transaction or of the
heartbeat), one row, or two: a change of the key deletes the row before it. An envelope that is none
of these is late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from capstan.core.config.changes.model import Changes, RowColumn, parsed, struct_type
from capstan.core.config.changes.presets import Preset, known_only

MARKER = "__debezium_unavailable_value"
"""The text that Debezium sends for a value that PostgreSQL did not write to its log."""

_SIDES = ("before", "after")
# With the field for text that does not parse, a key of another format makes no record malformed.
_CORRUPT = RowColumn("_corrupt_record", "STRING")
# All fields of an event that tells the bounds of a transaction, and of a heartbeat.
_TRANSACTION = "'status', 'id', 'event_count', 'data_collections', 'ts_ms', 'ts_us', 'ts_ns'"
_HEARTBEAT = "'ts_ms', 'ts_us', 'ts_ns'"
_WRITES = "e.op IN ('c', 'r', 'u')"


def debezium_preset(changes: Changes) -> Preset:
    """The declarations for envelopes of Debezium."""
    position = POSITIONS[changes.database or ""]
    envelope = _Envelope(changes, position)
    further = {"__offset": changes.offset, "__timestamp": changes.timestamp}
    order = [name for name, _ in position.columns]
    return Preset(
        keys=changes.keys,
        select=(envelope.rows(), *(f"{at} AS {name}" for name, at in further.items() if at)),
        where=known_only(envelope.problem()),
        sequence_by=(*order, *(["__offset"] if changes.offset else [])),
        delete_when="__op = 'd'",
        truncate_when=None if changes.database == "mongodb" else "__op = 't'",
        unchanged=changes.unchanged or (MARKER if changes.database == "postgresql" else None),
    )


def _texts(*names: str) -> tuple[RowColumn, ...]:
    return tuple(RowColumn(name, "STRING") for name in names)


@dataclass(frozen=True, slots=True)
class _Envelope:
    """The SQL over a message, read once as `m`; `e` is its envelope, and its key and text."""

    changes: Changes
    position: Position

    @property
    def _keys(self) -> tuple[RowColumn, ...]:
        return tuple(column for column in self.changes.rows if column.name in self.changes.keys)

    @property
    def _text(self) -> str:
        return f"CAST({self.changes.value} AS STRING)"

    @property
    def _documents(self) -> bool:
        """Whether a row is a text that has a JSON document in it."""
        return self.changes.database == "mongodb"

    def rows(self) -> str:
        """The expression that makes the rows of a message."""
        before, after = self._row("'d'", self._gone), self._row("e.op", lambda c: f"e.after.{c}")
        nothing = self._row("e.op", lambda _: "NULL")
        cases = (
            (self._skipped, f"slice(array({nothing}), 1, 0)"),
            ("e.op = 'd'", f"array({before})"),
            (f"{_WRITES} AND {self._moved}", f"array({before}, {after})"),
            (_WRITES, f"array({after})"),
        )
        return f"inline(flatten({self._each(_case(cases, f'array({nothing})'))}))"

    def problem(self) -> str:
        """The text of what is wrong with a message; null when nothing is."""
        known = "'c', 'r', 'u', 'd'" if self._documents else "'c', 'r', 'u', 'd', 't'"
        lost = f"NOT ({self.position.known})"
        if not self.position.always:
            lost += " AND e.op != 'r' AND coalesce(e.source.snapshot, 'false') = 'false'"
        cases = (
            (self._skipped, "NULL"),
            ("e.op IS NULL", "'no op'"),
            (f"e.op NOT IN ({known})", "concat('unknown op ', e.op)"),
            (f"{_WRITES} AND NOT {self._has('after')}", "'no key in after'"),
            (f"e.op = 'd' AND NOT {self._has('before')} AND NOT {self._has('key')}", "'no key'"),
            (f"coalesce({lost}, true)", "'no position in source'"),
        )
        return f"concat({self._each(_case(cases, 'NULL'))}[0], ': ', {self._text})"

    def _each(self, result: str) -> str:
        """The result, SQL over `e`, as an array of one."""
        envelope = f"transform(array({self._message()}), m -> {self._unwrapped()})"
        return f"transform({envelope}, e -> {result})"

    def _message(self) -> str:
        """The parsed message and its key; parsers read columns, and no variable such as `m`."""
        row = "STRING" if self._documents else struct_type(self.changes.rows)
        source = struct_type(_texts(*self.position.fields, "ts_ms", "snapshot"))
        fields = (
            *(RowColumn(side, row) for side in _SIDES),
            *_texts("op", "status", "ddl", "tableChanges"),
            RowColumn("ts_ms", "BIGINT"),
            RowColumn("source", source),
        )
        value = parsed(self._text, _wrapped(fields))
        parts = [f"{value} AS value", f"{self._text} AS text", f"{self._key()} AS key"]
        for side in _SIDES if self._documents else ():
            document = f"coalesce({value}.payload.{side}, {value}.{side})"
            parts.append(f"{parsed(document, struct_type(self.changes.rows))} AS {side}")
        return f"struct({', '.join(parts)})"

    def _key(self) -> str:
        """The key of the message: that of a row without `before`."""
        if self.changes.key is None:
            return f"CAST(NULL AS {struct_type(self._keys)})"
        fields = _texts("id") if self._documents else self._keys
        key = parsed(f"CAST({self.changes.key} AS STRING)", _wrapped(fields, _CORRUPT))
        if self._documents:
            identity = f"coalesce({key}.payload.id, {key}.id)"
            text = f"concat('{{\"{self._keys[0].name}\": ', {identity}, '}}')"
            key = parsed(text, struct_type((*self._keys, _CORRUPT)))
            return f"struct({', '.join(f'{key}.{c} AS {c}' for c in _names(self._keys))})"
        parts = (f"coalesce({key}.payload.{c}, {key}.{c}) AS {c}" for c in _names(self._keys))
        return f"struct({', '.join(parts)})"

    def _unwrapped(self) -> str:
        """The envelope, whether or not its schema is around it."""
        fields = ["op", "status", "ddl", "tableChanges", "ts_ms", "source"]
        fields += [] if self._documents else _SIDES
        parts = [f"coalesce(m.value.payload.{each}, m.value.{each}) AS {each}" for each in fields]
        parts += [f"m.{side} AS {side}" for side in _SIDES if self._documents]
        return f"struct({', '.join(parts)}, m.key AS key, m.text AS text)"

    def _row(self, op: str, value: Callable[[str], str]) -> str:
        columns = [f"CAST({value(c.quoted)} AS {c.kind}) AS {c.quoted}" for c in self.changes.rows]
        own = {"__op": op, "__ts_ms": "e.ts_ms", "__source_ts_ms": number("e.source.ts_ms")}
        own |= dict(self.position.columns)
        return (
            f"struct({', '.join([*columns, *(f'{sql} AS {name}' for name, sql in own.items())])})"
        )

    def _gone(self, column: str) -> str:
        """The value of a row that is deleted: that of the key, if there is no row before it."""
        key = f" ELSE e.key.{column}" if column in _names(self._keys) else ""
        return f"CASE WHEN {self._has('before')} THEN e.before.{column}{key} END"

    def _has(self, side: str) -> str:
        """Whether the row on this side has a key."""
        return "(" + " OR ".join(f"e.{side}.{c} IS NOT NULL" for c in _names(self._keys)) + ")"

    @property
    def _moved(self) -> str:
        same = " AND ".join(f"e.before.{c} <=> e.after.{c}" for c in _names(self._keys))
        return f"{self._has('before')} AND NOT ({same})"

    @property
    def _skipped(self) -> str:
        """Whether a message tells nothing of a row; without an op it must be nothing else."""
        payload = "array_contains(json_object_keys(e.text), 'payload')"
        inner = "get_json_object(e.text, '$.payload')"
        keys = f"json_object_keys(CASE WHEN {payload} THEN {inner} ELSE e.text END)"
        bounds = f"size(array_except({keys}, array({_TRANSACTION}))) = 0"
        others = (
            f"{payload} AND {inner} IS NULL",
            "e.source IS NOT NULL AND (e.ddl IS NOT NULL OR e.tableChanges IS NOT NULL)",
            f"e.status IN ('BEGIN', 'END') AND {bounds}",
            f"e.ts_ms IS NOT NULL AND size(array_except({keys}, array({_HEARTBEAT}))) = 0",
        )
        other = " OR ".join(f"({each})" for each in others)
        return f"(e.text IS NULL OR e.op <=> 'm' OR e.op IS NULL AND coalesce({other}, false))"


def _wrapped(fields: tuple[RowColumn, ...], *further: RowColumn) -> str:
    """The type of an object with these fields, or with a payload that has them."""
    return struct_type((*fields, RowColumn("payload", struct_type(fields)), *further))


def _names(columns: tuple[RowColumn, ...]) -> tuple[str, ...]:
    return tuple(column.quoted for column in columns)


def _case(cases: tuple[tuple[str, str], ...], otherwise: str) -> str:
    whens = " ".join(f"WHEN {when} THEN {then}" for when, then in cases)
    return f"CASE {whens} ELSE {otherwise} END"


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
