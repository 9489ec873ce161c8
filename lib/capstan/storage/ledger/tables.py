"""The ledgers: append-only tables of runs, claims, coverage, findings and counters.

They are read and written without a JVM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyarrow import dataset
from pyspark.sql import types as T

from capstan.storage.delta import arrow_writer, delta
from capstan.storage.delta.arrow_scan import read_columns, rows_of, rows_of_files
from capstan.storage.delta.arrow_writer import struct
from capstan.storage.delta.data_files import prune
from capstan.storage.delta.idempotent_write import Txn
from capstan.storage.delta.incremental_read import Parts, read_incrementally
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.delta.table_cache import cached, is_enabled
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.table_places import IN_LAKE, Place, Places

LEDGER_FORMAT = 1
PROPERTIES = {"capstan.format": str(LEDGER_FORMAT), "delta.appendOnly": "true"}

LedgerRow = dict[str, Any]
"""A row by column; timestamps are aware datetimes."""

_TEXT, _LONG, _INT, _BOOL, _MOMENT = "string", "long", "integer", "boolean", "timestamp"

SCHEMAS: Final = {
    "runs": struct(
        run=_TEXT, identity=_TEXT, generation=_INT, attempt=_INT, step=_TEXT, stream=_TEXT,
        target=_TEXT, at=_MOMENT, detail=_TEXT,
    ),
    "coverage": struct(
        target=_TEXT, stream=_TEXT, worker=_INT, since=_TEXT, until=_TEXT, region=_TEXT,
        run=_TEXT, generation=_INT, transform=_TEXT, code=_TEXT, cut=_LONG,
        target_version=_LONG, state=_TEXT, at=_MOMENT, table=_TEXT,
    ),
    "claims": struct(
        claim=_LONG, kind=_TEXT, run=_TEXT, attempt=_INT, stream=_TEXT, target=_TEXT,
        workers=T.ArrayType(T.IntegerType()), region=_TEXT, at=_MOMENT, expires=_MOMENT,
    ),
    "verified": struct(
        stream=_TEXT, tape=_TEXT, worker=_INT, commit=_LONG, events=_LONG, records=_LONG,
        holdings=_TEXT, at=_MOMENT, valid=_BOOL,
    ),
    "findings": struct(
        run=_TEXT, attempt=_INT, at=_MOMENT, stream=_TEXT, cut=_LONG, target=_TEXT,
        target_version=_LONG, audit=_TEXT, kind=_TEXT, code=_TEXT, check_name=_TEXT,
        total=_LONG, worker=_INT, time=_TEXT, expected=_TEXT, actual=_TEXT, sample=_TEXT,
    ),
    "metrics": struct(
        run=_TEXT, attempt=_INT, at=_MOMENT, pipeline=_TEXT, stage=_INT, replay_worker=_INT,
        node=_TEXT, events_in=_LONG, events_out=_LONG, invocations=_LONG,
        total_time_ns=_LONG, rows_in=_LONG, rows_out=_LONG, late_rows=_LONG,
        side_rows=_LONG, timers_fired=_LONG,
    ),
    "snapshots": struct(
        pipeline=_TEXT, snapshot=_TEXT, at=_MOMENT, event=_TEXT, peers=_INT, detail=_TEXT,
    ),
    "retired": struct(
        stream=_TEXT, tape=_TEXT, at=_MOMENT, region=_TEXT, cut=_LONG, records=_LONG,
        state=_TEXT,
    ),
    "changes": struct(
        target=_TEXT, table=_TEXT, version=_LONG, operation=_TEXT, made=_MOMENT,
        files=_TEXT, at=_MOMENT,
    ),
    "tables": struct(target=_TEXT, path=_TEXT, table=_TEXT, name=_TEXT, at=_MOMENT),
    "pauses": struct(replay=_TEXT, paused=_BOOL, by=_TEXT, because=_TEXT, at=_MOMENT),
}  # fmt: skip
"""The columns of each ledger, by name."""

# Larger ledgers are not cached in memory.
_MAX_CACHED_BYTES = 64 << 20
_ROWS, _TOO_MANY = "rows", "too many"
_MOST_CHUNKS = 64

# In these ledgers a row supersedes earlier rows with the same value in this column. They are read
# in order of `at`, so `at` must increase even if the clock jumps back or belongs to another host.
_SUPERSEDES = {
    "runs": "run",
    "coverage": "run",
    "snapshots": "pipeline",
    "retired": "stream",
    "tables": "target",
    "pauses": "replay",
}


def now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


def read_rows(
    lake: Lake,
    ledger: str,
    columns: Sequence[str] | None = None,
    ranges: Mapping[str, tuple[object, object]] | None = None,
    /,
    **equal: object,
) -> list[LedgerRow]:
    """Rows of a ledger with these column values, in order of `at`; claims by ordinal.

    A ledger that does not exist has no rows. A `target` is the present path of the table. Name the
    columns to read, because certificates are large. A tuple in `equal` means any of its values,
    which may include None. `ranges` have inclusive lower and exclusive upper bounds, None for
    unbounded. Leave a margin of a second in bounds of timestamps, because files have them in
    milliseconds.
    """
    places = read_places(lake) if _has_targets(ledger) else Places()
    rows: list[LedgerRow] = _found(lake, ledger, columns, ranges, places, **equal).to_pylist()
    if places and (columns is None or "target" in columns):
        for row in rows:
            row["target"] = row["target"] and places.path_of(row["target"])
    return rows


def read_values(lake: Lake, ledger: str, columns: Sequence[str], /, **equal: object) -> pa.Table:
    """Columns of the rows of `read_rows`, other than `target`, without an object for each."""
    places = read_places(lake) if _has_targets(ledger) else Places()
    return _found(lake, ledger, columns, None, places, **equal)


def _found(
    lake: Lake,
    ledger: str,
    columns: Sequence[str] | None,
    ranges: Mapping[str, tuple[object, object]] | None,
    places: Places,
    /,
    **equal: object,
) -> pa.Table:
    path = lake.ledger(ledger)
    if not is_table(path):
        return arrow_writer.arrow_schema(SCHEMAS[ledger]).empty_table().select(columns or [])
    if places and "target" in equal:
        equal = {**equal, "target": _stored(places, equal["target"])}
    condition = None
    for part in _conditions(ranges or {}, **equal):
        condition = part if condition is None else condition & part
    order = "claim" if ledger == "claims" else "at"
    selected = None if columns is None else list(dict.fromkeys([*columns, order]))
    if is_enabled():
        files = cached("rows", path, lambda: _all_rows(path))
    else:
        table = delta.open_table(path)
        files = rows_of_files(path, table, _matching_files(table, ranges or {}, **equal))
    found = files.to_table(columns=selected, filter=condition).sort_by(order)
    return found.select(columns or found.column_names)


def read_places(lake: Lake) -> Places:
    """The present places of tables that ledgers name by another path."""
    columns = ("target", "path", "table", "name")
    return Places(tuple(Place(**row) for row in read_rows(lake, "tables", columns)))


def stored_target(lake: Lake, path: str) -> str:
    """The name in ledgers and in run identities of the table at a path."""
    return read_places(lake).target_of(path)


def kept_changes_path(lake: Lake, path: str) -> str:
    """The path of the changes kept beside the table at a path, wherever that was before."""
    places = read_places(lake)
    target = places.target_of(path)
    in_lake = IN_LAKE.search(target)
    if in_lake is None:
        return lake.kept_changes(target)
    own = lake.table(in_lake[1])
    named = lake.kept_changes(own)
    # A lake that was moved has them under the name that the table had in it.
    if not any(other != own for other in places.of_lake(in_lake[1])):
        return named if target == own else lake.kept_changes(target)
    apart = lake.kept_changes(f"{target};2" if target == own else target)
    if is_table(apart):
        return apart
    if not is_table(named):
        return named if own in (target, path) else apart
    kept = {value for part in delta.open_table(named).partitions() for value in part.values()}
    runs = {row["run"] for row in read_rows(lake, "runs", ("run",), target=path)}
    return named if any(name.rpartition("-")[0] in runs for name in kept) else apart


def _has_targets(ledger: str) -> bool:
    return ledger != "tables" and "target" in SCHEMAS[ledger].names


def _stored(places: Places, value: object) -> object:
    """The names in ledgers for a required path, or for any of several; None and '' as they are."""
    if isinstance(value, tuple):
        return tuple(_stored(places, each) for each in value)
    return places.target_of(str(value)) if value else value


def _conditions(
    ranges: Mapping[str, tuple[object, object]], /, **equal: object
) -> Iterator[dataset.Expression]:
    for column, value in equal.items():
        field = dataset.field(column)
        yield field.isin(list(value)) if isinstance(value, tuple) else field == value
    for column, (least, end) in ranges.items():
        if least is not None:
            yield dataset.field(column) >= least
        if end is not None:
            yield dataset.field(column) < end


def _matching_files(
    table: OpenedTable, ranges: Mapping[str, tuple[object, object]], /, **equal: object
) -> list[str]:
    """Files of a ledger that may have matching rows, by their column bounds."""
    files = table.files()
    bounds = {column: _value_bounds(value) for column, value in equal.items()}
    for column, (least, most) in {**bounds, **ranges}.items():
        files = prune(files, column, least, most)
    paths: list[str] = files["path"].to_pylist()
    return paths


def _value_bounds(value: object) -> tuple[object, object]:
    """The smallest and largest required value of a column; None if null is among them."""
    values = value if isinstance(value, tuple) else (value,)
    return (None, None) if None in values or not values else (min(values), max(values))


def _all_rows(path: str) -> dataset.Dataset:
    """All rows of a ledger, in memory unless there are too many."""
    parts = read_incrementally("rows", path, _add_rows)
    return dataset.dataset(parts[_ROWS]) if _ROWS in parts else rows_of(path)


def _add_rows(earlier: Parts, opened: OpenedTable, files: Sequence[str]) -> Parts:
    """The rows of a ledger with those of more files; `_TOO_MANY` from some size on."""
    if _TOO_MANY in earlier:
        return earlier
    columns = pa.schema(opened.schema().to_arrow()).names
    added = read_columns(opened.path, columns, opened, files)
    rows = pa.concat_tables([earlier[_ROWS], added]) if _ROWS in earlier else added
    if rows.nbytes > _MAX_CACHED_BYTES:
        return {_TOO_MANY: rows.slice(0, 0)}
    return {_ROWS: rows.combine_chunks() if rows["at"].num_chunks > _MOST_CHUNKS else rows}


def make_ledger(lake: Lake, ledger: str) -> str:
    """Create a ledger unless it exists, and return its path."""
    path = lake.ledger(ledger)
    arrow_writer.create_table(path, SCHEMAS[ledger], properties=PROPERTIES)
    return path


def append_rows(
    lake: Lake,
    ledger: str,
    rows: Sequence[LedgerRow],
    txn: Txn | None = None,
    unless: Txn | None = None,
    **note: object,
) -> bool:
    """Append rows to a ledger, created if needed, in one commit.

    False if it already has `txn`, or `unless`. `at` is added. A `target` is the present path of the
    table.
    """
    moment = _append_time(lake, ledger, rows)
    if _has_targets(ledger) and (places := read_places(lake)):
        rows = [{**row, "target": _stored(places, row.get("target"))} for row in rows]
    path = make_ledger(lake, ledger)
    stamped = [{"at": moment, **row} for row in rows]
    table = pa.Table.from_pylist(stamped, schema=arrow_writer.arrow_schema(SCHEMAS[ledger]))
    note = {"ledger": ledger, **note}
    return arrow_writer.append(path, table, txn=txn, note=note, unless=unless)


def _append_time(lake: Lake, ledger: str, rows: Sequence[LedgerRow]) -> datetime:
    """The current time, but later than all rows that the new rows supersede."""
    moment, column = now(), _SUPERSEDES.get(ledger)
    if column is None:
        return moment
    values = {row[column] for row in rows}
    known = read_rows(lake, ledger, ("at",), **{column: tuple(values)}) if values else ()
    for previous in known:
        moment = max(moment, previous["at"] + timedelta(microseconds=1))
    return moment


def as_text(value: object) -> str:
    """JSON text for a ledger column. Keys are sorted, so equal values have equal texts."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
