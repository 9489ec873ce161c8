"""The ledgers: what was claimed, done, covered, found, counted. Append only; read without a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from capstan.storage import arrow_writer, delta
from capstan.storage.arrow_scan import rows_of, rows_of_files
from capstan.storage.idempotent_write import Txn
from capstan.storage.lake import Lake, is_table
from capstan.storage.table_cache import cached, keeping

LEDGER_FORMAT = 1
PROPERTIES = {"capstan.format": str(LEDGER_FORMAT), "delta.appendOnly": "true"}

_TEXT, _LONG, _INT, MOMENT = StringType(), LongType(), IntegerType(), TimestampType()

SCHEMAS = {
    "runs": StructType(
        [
            StructField("run", _TEXT),
            StructField("identity", _TEXT),
            StructField("generation", _INT),
            StructField("attempt", _INT),
            StructField("step", _TEXT),
            StructField("stream", _TEXT),
            StructField("target", _TEXT),
            StructField("at", MOMENT),
            StructField("detail", _TEXT),
        ]
    ),
    "coverage": StructType(
        [
            StructField("target", _TEXT),
            StructField("stream", _TEXT),
            StructField("worker", _INT),
            StructField("since", _TEXT),
            StructField("until", _TEXT),
            StructField("region", _TEXT),
            StructField("run", _TEXT),
            StructField("generation", _INT),
            StructField("transform", _TEXT),
            StructField("code", _TEXT),
            StructField("cut", _LONG),
            StructField("target_version", _LONG),
            StructField("state", _TEXT),
            StructField("at", MOMENT),
        ]
    ),
    "claims": StructType(
        [
            StructField("claim", _LONG),
            StructField("kind", _TEXT),
            StructField("run", _TEXT),
            StructField("attempt", _INT),
            StructField("stream", _TEXT),
            StructField("target", _TEXT),
            StructField("workers", ArrayType(_INT)),
            StructField("region", _TEXT),
            StructField("at", MOMENT),
            StructField("expires", MOMENT),
        ]
    ),
    "findings": StructType(
        [
            StructField("run", _TEXT),
            StructField("attempt", _INT),
            StructField("at", MOMENT),
            StructField("stream", _TEXT),
            StructField("cut", _LONG),
            StructField("target", _TEXT),
            StructField("target_version", _LONG),
            StructField("audit", _TEXT),
            StructField("kind", _TEXT),
            StructField("code", _TEXT),
            StructField("check_name", _TEXT),
            StructField("total", _LONG),
            StructField("worker", _INT),
            StructField("time", _TEXT),
            StructField("expected", _TEXT),
            StructField("actual", _TEXT),
            StructField("sample", _TEXT),
        ]
    ),
    "snapshots": StructType(
        [
            StructField("pipeline", _TEXT),
            StructField("snapshot", _TEXT),
            StructField("at", MOMENT),
            StructField("event", _TEXT),
            StructField("peers", _INT),
            StructField("detail", _TEXT),
        ]
    ),
    "retired": StructType(
        [
            StructField("stream", _TEXT),
            StructField("tape", _TEXT),
            StructField("at", MOMENT),
            StructField("region", _TEXT),
            StructField("cut", _LONG),
            StructField("records", _LONG),
            StructField("state", _TEXT),
        ]
    ),
    "changes": StructType(
        [
            StructField("target", _TEXT),
            StructField("table", _TEXT),
            StructField("version", _LONG),
            StructField("operation", _TEXT),
            StructField("made", MOMENT),
            StructField("files", _TEXT),
            StructField("at", MOMENT),
        ]
    ),
    "metrics": StructType(
        [
            StructField("run", _TEXT),
            StructField("attempt", _INT),
            StructField("at", MOMENT),
            StructField("pipeline", _TEXT),
            StructField("stage", _INT),
            StructField("replay_worker", _INT),
            StructField("node", _TEXT),
            StructField("events_in", _LONG),
            StructField("events_out", _LONG),
            StructField("invocations", _LONG),
            StructField("total_time_ns", _LONG),
            StructField("rows_in", _LONG),
            StructField("rows_out", _LONG),
            StructField("late_rows", _LONG),
            StructField("side_rows", _LONG),
            StructField("timers_fired", _LONG),
        ]
    ),
}

_MOST_BYTES = 64 << 20

# Rows of these ledgers change what was said before with the same value of a column. They are read
# by `at`, which therefore goes on where the clock jumps back, or is another machine's.
_FOLLOWS = {"runs": "run", "coverage": "run", "snapshots": "pipeline", "retired": "stream"}


def now() -> datetime:
    """The present moment, UTC."""
    return datetime.now(UTC)


def read_rows(
    lake: Lake,
    ledger: str,
    columns: Sequence[str] | None = None,
    ranges: Mapping[str, tuple[object, object]] | None = None,
    /,
    **equal: object,
) -> list[dict[str, object]]:
    """Rows of a ledger with these column values, by `at`; claims by their ordinal.

    Times of the ledger's `at` columns come as aware datetimes. No rows while there is no ledger.

    Args:
        lake: The lake.
        ledger: Its name.
        columns: Those that are needed; all by default. Certificates are large.
        ranges: The least value of a column and the first one that is too great, or None for no
            such bound. Bounds of moments are to leave a second: files have them in milliseconds.
        equal: What columns must have; a tuple stands for any of its values, of which None is one.
    """
    path = lake.ledger(ledger)
    if not is_table(path):
        return []
    condition = None
    for part in _parts(equal, ranges or {}):
        condition = part if condition is None else condition & part
    order = "claim" if ledger == "claims" else "at"
    read = None if columns is None else list(dict.fromkeys([*columns, order]))
    if keeping():
        files = cached("rows", path, lambda: _rows(path))
    else:
        files = _rows(path, _chosen(path, equal, ranges or {}))
    table = files.to_table(columns=read, filter=condition)
    table = table.sort_by(order)
    rows: list[dict[str, object]] = table.select(columns or table.column_names).to_pylist()
    return rows


def _parts(
    equal: Mapping[str, object], ranges: Mapping[str, tuple[object, object]]
) -> Iterator[dataset.Expression]:
    for column, value in equal.items():
        field = dataset.field(column)
        yield field.isin(list(value)) if isinstance(value, tuple) else field == value
    for column, (least, end) in ranges.items():
        if least is not None:
            yield dataset.field(column) >= least
        if end is not None:
            yield dataset.field(column) < end


def _chosen(
    path: str, equal: Mapping[str, object], ranges: Mapping[str, tuple[object, object]]
) -> list[str]:
    """The files of a ledger whose bounds do not rule out what is asked for."""
    files = pa.table(delta.open_table(path).get_add_actions(flatten=True))
    bounds = {column: _ends(value) for column, value in equal.items()}
    for column, (least, most) in {**bounds, **ranges}.items():
        low, high = f"min.{column}", f"max.{column}"
        if least is not None and high in files.column_names:
            files = files.filter(pc.fill_null(pc.greater_equal(files[high], least), True))
        if most is not None and low in files.column_names:
            files = files.filter(pc.fill_null(pc.less_equal(files[low], most), True))
    found: list[str] = files["path"].to_pylist()
    return found


def _ends(value: object) -> tuple[object, object]:
    """The least and the greatest value that a column may have; None where it may be null."""
    values = value if isinstance(value, tuple) else (value,)
    return (None, None) if None in values or not values else (min(values), max(values))


def _rows(path: str, chosen: list[str] | None = None) -> dataset.Dataset:
    """The rows of a ledger, of some of its files or of all.

    All of them stay in memory where pages are shown and they are not too many.
    """
    if chosen is not None:
        return rows_of_files(path, chosen)
    files = rows_of(path)
    rows = files.to_table()
    return dataset.dataset(rows) if rows.nbytes <= _MOST_BYTES else files


def make_ledger(lake: Lake, ledger: str) -> str:
    """Make a ledger where it is not there; its path."""
    path = lake.ledger(ledger)
    arrow_writer.create_table(path, SCHEMAS[ledger], properties=PROPERTIES)
    return path


def append_rows(
    lake: Lake,
    ledger: str,
    rows: Sequence[Mapping[str, object]],
    txn: Txn | None = None,
) -> bool:
    """Append rows to a ledger in one commit, making it where it is not there.

    Returns:
        False when the table already has this transaction: nothing was appended.
    """
    moment = _moment(lake, ledger, rows)
    path = make_ledger(lake, ledger)
    stamped = [{"at": moment, **row} for row in rows]
    table = pa.Table.from_pylist(stamped, schema=arrow_writer.arrow_schema(SCHEMAS[ledger]))
    return arrow_writer.append(path, table, txn=txn, note={"ledger": ledger})


def _moment(lake: Lake, ledger: str, rows: Sequence[Mapping[str, object]]) -> datetime:
    """The present; where rows follow upon others, a moment after those."""
    moment, column = now(), _FOLLOWS.get(ledger)
    if column is None:
        return moment
    values = {row[column] for row in rows}
    # Of many at once one reading, not one of each.
    only = {column: next(iter(values))} if len(values) == 1 else {}
    named = column, "at"
    for before in read_rows(lake, ledger, named, **only) if values else ():
        last = before["at"]
        assert isinstance(last, datetime)
        if before[column] in values:
            moment = max(moment, last + timedelta(microseconds=1))
    return moment


def as_text(value: object) -> str:
    """JSON text for a ledger's column: sorted keys, so that equal values are equal texts."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
