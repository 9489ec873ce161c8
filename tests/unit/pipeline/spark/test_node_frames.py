"""Tables beside a stream, and the form in which rows travel."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from capstan.core.times import Antichain, Box, Kind, TimeType
from capstan.errors import InvalidRequestError
from capstan.pipeline import TIME, OperatorNodeMetrics, Pipeline, SideTable, Sink, reach_of
from capstan.pipeline.definition import register
from capstan.pipeline.spark.node_frames import side_rows
from capstan.pipeline.spark.wire_format import (
    NodeMetrics,
    NoteKind,
    noted,
    packed,
    row_text,
    unpacked,
    wire_schema,
)

SCHEMA = pa.schema([(TIME, pa.int64()), ("name", pa.string()), ("size", pa.int64())])


def rows_of(
    times: pa.Array, kind: Kind, since: int | None, until: int | None, frontier: int, back: int = 0
) -> list[tuple[int, object]]:
    """What is read of a table with these times and the numbers 0, 1, 2 and so on as `size`."""
    count = len(times)
    table = pa.table(
        {"at": times, "size": pa.array(range(count), pa.int32()), "name": ["n"] * count}
    )
    register("tables:give", lambda: table)
    side = SideTable("side", "tables:give", "at")
    law = Pipeline("p", "a:b", (Sink("out"),), tables=(side,), lookback=back)
    time_type = TimeType.of(t=kind)
    reach = reach_of(law, time_type, Box((since,), (until,)), Antichain.of([(frontier,)]))
    actual = side_rows(law, side, SCHEMA, reach).to_pylist()
    assert all(item["p0"] | {TIME: item["time"], "name": "n"} == item["p0"] for item in actual)
    return [(item["time"], item["p0"]["size"]) for item in actual]


def test_only_what_the_run_reads_is_read() -> None:
    times = pa.array([1, 5, 9, None, 10, 14, 15], pa.int64())
    assert rows_of(times, Kind.BIGINT, 5, 10, 100) == [(5, 1), (9, 2)]
    assert rows_of(times, Kind.BIGINT, 5, 10, 100, back=4) == [(1, 0), (5, 1), (9, 2)]
    # Up to the frontier, as a stream would be.
    assert rows_of(times, Kind.BIGINT, None, None, 10) == [(1, 0), (5, 1), (9, 2)]


def test_times_are_integers_of_the_coordinate() -> None:
    moment = datetime(2013, 1, 1, 6, tzinfo=UTC)
    micros = 1_357_020_000_000_000
    for kind in (pa.timestamp("us", tz="UTC"), pa.timestamp("s"), pa.timestamp("ms", tz="UTC")):
        naive = moment.replace(tzinfo=None) if kind.tz is None else moment
        times = pa.array([naive], kind)
        assert rows_of(times, Kind.TIMESTAMP, None, None, 2 * micros) == [(micros, 0)]
    days = pa.array([date(1970, 1, 3)], pa.date32())
    assert rows_of(days, Kind.DATE, None, None, 100) == [(2, 0)]


@pytest.mark.parametrize(
    ("give", "said"),
    [
        (3, "not an Arrow table"),
        (pa.table({"at": [1], "name": ["a"]}), "without size"),
        (pa.table({"size": [1], "name": ["a"]}), "without at"),
        (pa.table({"at": [1], "name": ["a"], "size": ["big"]}), "with other types"),
    ],
)
def test_other_tables_are_refused(give: object, said: str) -> None:
    register("tables:give", lambda: give)
    side = SideTable("side", "tables:give", "at")
    law = Pipeline("p", "a:b", (Sink("out"),), tables=(side,))
    reach = reach_of(law, TimeType.of(t=Kind.BIGINT), Box((None,), (None,)), Antichain())
    with pytest.raises(InvalidRequestError, match=said):
        side_rows(law, side, SCHEMA, reach)


def test_rows_travel_in_the_struct_of_their_part() -> None:
    other = pa.schema([("text", pa.string())])
    schema = wire_schema([SCHEMA, other])
    assert schema.names == ["time", "kind", "note", "blob", "p0", "p1"]
    rows = pa.RecordBatch.from_arrays([[4, 7], ["a", None], [None, 2]], schema=SCHEMA)
    texts = pa.RecordBatch.from_arrays([["x"]], schema=other)
    sent = pa.concat_batches(
        [
            packed(schema, 0, pa.array([4, 7], pa.int64()), rows),
            noted(schema, NoteKind.MARK, [{"node": "n", "watermark": 3}]),
            packed(schema, 1, pa.array([5], pa.int64()), texts),
        ]
    )
    assert sent.column("time").to_pylist() == [4, 7, None, 5]
    assert sent.column("kind").to_pylist() == [None, None, "mark", None]
    actual = unpacked(sent, 0, SCHEMA)
    assert actual is not None
    assert actual.equals(rows)
    # Rows that are all null in their columns are rows.
    nothing = pa.RecordBatch.from_arrays([[None]], schema=other)
    alone = packed(schema, 1, pa.array([0], pa.int64()), nothing)
    actual = unpacked(alone, 1, other)
    assert actual is not None
    assert actual.to_pylist() == [{"text": None}]
    assert unpacked(alone, 0, SCHEMA) is None


def test_a_row_is_one_line_of_json() -> None:
    row = {
        "n": 2**60, "f": 0.1, "nan": float("nan"), "at": datetime(2013, 1, 1, tzinfo=UTC),
        "d": Decimal("1.50"), "b": b"\x01\xff", "l": [float("inf"), None], "s": "a\nb",
    }  # fmt: skip
    text = row_text(row)
    assert "\n" not in text
    assert json.loads(text) == {
        "n": 2**60, "f": 0.1, "nan": "nan", "at": "2013-01-01T00:00:00+00:00", "d": "1.50",
        "b": "01ff", "l": ["inf", None], "s": "a\nb",
    }  # fmt: skip


def test_metrics_come_back_as_they_were() -> None:
    metrics = NodeMetrics(2, 5, "n", OperatorNodeMetrics(events_in=3, rows_out=7, late_rows=1))
    assert NodeMetrics.from_json(json.loads(json.dumps(metrics.to_json()))) == metrics
