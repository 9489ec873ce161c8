"""Sources as they are declared: integers as times, selected columns, functions, tables, globs."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader

from capstan.capture.batch import classify
from capstan.capture.query.source_reconciliation import SourceDifference, reconcile
from capstan.capture.run import capture
from capstan.capture.source.source import read_source
from capstan.core.config import (
    ByColumn,
    ByKey,
    ByPartition,
    EpochTime,
    EventTime,
    LatePolicy,
    Source,
    Stream,
    load_config,
)
from capstan.core.config.models import TimeUnit
from capstan.errors import InvalidRequestError
from capstan.storage.lake import Lake, exists
from capstan.storage.tape.tape import newest_cut, open_tape
from capstan.telemetry.instrumentation import subscribe
from capstan.verify import verify
from tests.support.docs import blocks, page
from tests.support.kafka_broker import Broker, broker
from tests.support.kafka_topics import send
from tests.support.sample_streams import HOUR, START, lay, little_stream, rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

SECONDS = classify.since_epoch(START) // 10**6
YEAR_10000 = 253_402_300_800


class TestUnits:
    """Integers that count from 1970 are times, and those beyond all years are none."""

    def stream(self, folder: Path, counts: pa.Array, **time: object) -> Stream:
        folder.mkdir(exist_ok=True)
        table = pa.table({"n": range(len(counts)), "count": counts, "place": ["a"] * len(counts)})
        pq.write_table(table, folder / "0.parquet")
        return little_stream(
            folder,
            source=Source(format="parquet", path=str(folder)),
            time=EventTime(every=HOUR, lateness=2 * HOUR, **time),  # type: ignore[arg-type]
        )

    @pytest.mark.parametrize("unit", list(TimeUnit))
    @pytest.mark.parametrize("how", ["column", "expression"])
    def test_each_unit(
        self, spark: SparkSession, lake: Lake, tmp_path: Path, unit: TimeUnit, how: str
    ) -> None:
        item = 10**6 // unit.micros
        counts = [SECONDS * item, (SECONDS + 5400) * item, YEAR_10000 * item, None]
        counts += [2**63 - 1, -(2**62)]
        given = {"column": "count"} if how == "column" else {"expression": "count + 0"}
        stream = self.stream(tmp_path / "src", pa.array(counts, pa.int64()), unit=unit, **given)
        done = capture(spark, lake, stream)
        # In microseconds, that is a moment long before the year 1.
        before = {"below-minimum": 1} if unit is TimeUnit.MICROSECONDS else {}
        assert done.late == {"no-time": 4 - len(before), **before}
        tape = open_tape(lake, "little")
        times = pl.read_delta(tape.paths.records)["time"].struct.field("event").sort()
        assert times.to_list() == [START, START + HOUR]
        assert verify(spark, lake, tape, deep=True).valid
        with pytest.raises(InvalidRequestError, match=r"CAP-DECLARED.*time\.unit .*, but is"):
            other = next(item for item in TimeUnit if item is not unit)
            time = replace(stream.time, unit=other)  # type: ignore[type-var]
            capture(spark, lake, replace(stream, time=time))

    @pytest.mark.parametrize(
        ("kind", "time", "said"),
        [
            (pa.int32(), {"column": "count"}, r"count is integer .*time\.unit: s, ms or us"),
            (pa.int64(), {"column": "count"}, r"count is long .*time\.unit: s, ms or us"),
            (pa.timestamp("us", "UTC"), {"column": "count", "unit": "s"}, "is timestamp .*remove"),
            (pa.int64(), {"column": "gone", "unit": "s"}, "gone is not in the source"),
            (pa.int64(), {"expression": "count / 2", "unit": "s"}, "expression is double"),
            (pa.int64(), {"expression": "string(count)", "unit": "s"}, "is string, but time.unit"),
        ],
    )
    def test_other_types_are_refused(
        self,
        spark: SparkSession,
        lake: Lake,
        tmp_path: Path,
        kind: pa.DataType,
        time: dict[str, str],
        said: str,
    ) -> None:
        counts = pa.array([1], pa.int32()).cast(pa.int64()).cast(kind)
        stream = self.stream(tmp_path / "src", counts, **time)
        with pytest.raises(InvalidRequestError) as refused:
            capture(spark, lake, stream)
        assert refused.value.code == "CAP-TIME-COLUMN"
        assert re.search(said, f"{refused.value.message} {refused.value.hint}")
        assert not exists(lake.stream("little").root)

    def test_an_expression_that_fails_is_no_time(
        self, spark: SparkSession, lake: Lake, tmp_path: Path
    ) -> None:
        counts = pa.array([str(SECONDS), "rubbish", "", None])
        how = {"expression": "CAST(count AS BIGINT)", "unit": TimeUnit.SECONDS}
        stream = self.stream(tmp_path / "src", counts, **how)
        done = capture(spark, lake, replace(stream, late=LatePolicy.FAIL))
        assert (done.records, done.late) == (1, {"no-time": 3})


LINES = [
    '{"id":1,"kind":"order","at":"2024-05-01T00:10:00Z","amount":1.5}',
    '{"id":2,"kind":"visit","at":"2024-05-01T00:20:00Z"}',
    '{"id":3,"kind":"order","at":"2024-05-01T01:10:00Z","amount":"much"}',
    '{"id":4,"kind":"order","at":"2024-05-01T01:20:00Z","amount":2.5}',
    "rubbish",
    '{"id":5,"kind":"ord',
]
ORDER = "id BIGINT, kind STRING, at TIMESTAMP, amount DECIMAL(9, 2)"
DECODE = f"from_json(value, '{ORDER}')"


DECLARED_AVRO = """
streams:
  little:
    source:
      format: delta
      path: {place}
      select: >-
        from_avro(substring(value, 6), '{{"type": "record", "name": "visit", "fields": [
        {{"name": "id", "type": "long"}}, {{"name": "kind", "type": "string"}},
        {{"name": "at", "type": {{"type": "long", "logicalType": "timestamp-millis"}}}}]}}').*
    workers: {{by: column, column: kind}}
    time: {{domain: event, column: at, every: 1 hour, lateness: 2 hours}}
"""


def avro(number: int, kind: str, seconds: int) -> bytes:
    """A record with a long, a string, and a time some seconds after the start, as Avro has it."""
    millis = (SECONDS + seconds) * 1000
    return avro_long(number) + avro_long(len(kind)) + kind.encode() + avro_long(millis)


def avro_long(number: int) -> bytes:
    """Zigzag, then seven bits a byte, the least first."""
    rest, out = number << 1 if number >= 0 else (-number << 1) - 1, bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


def text_stream(folder: Path, *lines: str, **source: object) -> Stream:
    """A stream of lines of text, one file for each call."""
    folder.mkdir(exist_ok=True)
    number = len(list(folder.iterdir()))
    (folder / f"{number}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    given = {"select": (f"{DECODE}.*",), **source}
    return Stream(
        name="little",
        source=Source(format="text", path=str(folder), **given),  # type: ignore[arg-type]
        workers=ByColumn("kind"),
        time=EventTime(column="at", every=HOUR, lateness=2 * HOUR),
    )


def records(lake: Lake, *columns: str) -> list[tuple[object, ...]]:
    """Columns of the records on the tape, in order."""
    data = pl.read_delta(lake.stream("little").records)["data"].struct.unnest()
    return sorted(data.select(columns).rows())


def compared(spark: SparkSession, lake: Lake, stream: Stream) -> list[tuple[int, int, bool]]:
    """Records, differences and agreement with the source, by number and by content."""
    tape = open_tape(lake, "little")
    actual = [reconcile(spark, tape, stream, deep=deep) for deep in (False, True)]
    return [(item.records, item.differing, item.agrees) for item in actual]


class TestSelect:
    """Columns are made of the source's before workers and times are found."""

    def test_text_is_decoded_and_what_does_not_parse_is_kept(
        self, spark: SparkSession, lake: Lake, tmp_path: Path
    ) -> None:
        stream = text_stream(tmp_path / "src", *LINES)
        done = capture(spark, lake, stream)
        assert (done.fed, done.records, done.late) == (6, 3, {"malformed": 3})
        assert records(lake, "id", "kind") == [(1, "order"), (2, "visit"), (4, "order")]
        late = pl.read_delta(lake.stream("little").late)
        assert sorted(late["raw"]) == sorted([LINES[2], *LINES[4:]])
        assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid
        assert compared(spark, lake, stream) == [(6, 0, True)] * 2

    @pytest.mark.parametrize(
        "select",
        [
            (f"{DECODE}.id AS id", f"{DECODE}.kind AS kind", f"{DECODE}.at AS at"),
            f"inline(array({DECODE}))",
            f"{DECODE} . *, length(value) AS size, -- of all, of course\n upper(value) AS text",
        ],
        ids=["fields", "inline", "list"],
    )
    def test_where_leaves_out_no_malformed_record(
        self, spark: SparkSession, lake: Lake, tmp_path: Path, select: str | tuple[str, ...]
    ) -> None:
        # By a column of the result, and by one of the source.
        where = "kind = 'order' AND value NOT LIKE '%4,%'"
        stream = text_stream(tmp_path / "src", *LINES, select=select, where=where)
        done = capture(spark, lake, stream)
        assert (done.fed, done.records) == (4, 1)
        late = pl.read_delta(lake.stream("little").late)
        assert set(late["reason"]) == {"malformed"}
        assert sorted(late["raw"]) == sorted([LINES[2], *LINES[4:]])
        assert records(lake, "id", "kind") == [(1, "order")]
        assert compared(spark, lake, stream) == [(4, 0, True)] * 2
        tape = open_tape(lake, "little")
        spark.sql(f"DELETE FROM delta.`{tape.paths.records}` WHERE data.id = 1")
        assert [kind for *_, kind in compared(spark, lake, stream)] == [False, False]

    @pytest.mark.parametrize(
        "select",
        [
            (f"{DECODE} AS read", "read.id AS id", "read.kind AS kind", "read.at AS at"),
            (
                "upper(value) AS text",
                "length(text) AS size",
                f"inline(array({DECODE}))",
                "size + 1 AS more",
            ),
        ],
        ids=["fields", "beside a generator"],
    )
    def test_an_expression_may_use_the_names_before_it(
        self, spark: SparkSession, lake: Lake, tmp_path: Path, select: tuple[str, ...]
    ) -> None:
        stream = text_stream(tmp_path / "src", *LINES, select=select)
        assert capture(spark, lake, stream).late == {"malformed": 3}
        assert records(lake, "id", "kind") == [(1, "order"), (2, "visit"), (4, "order")]

    @pytest.mark.nightly
    def test_avro_is_decoded(self, spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
        sent = [(1, "order", 0), (2, "visit", 90), (-70, "order", 3600)]
        values = [b"\x00\x00\x00\x00\x07" + avro(*item) for item in sent]
        place = str(tmp_path / "src")
        deltalake.write_deltalake(place, pa.table({"value": values}))
        text = DECLARED_AVRO.format(place=place)
        (tmp_path / "streams.yaml").write_text(text, encoding="utf-8")
        stream = load_config(tmp_path / "streams.yaml", lake=lake.root).streams["little"]
        assert capture(spark, lake, stream).records == 3
        times = [START + timedelta(seconds=seconds) for *_, seconds in sent]
        expected = sorted(zip((1, 2, -70), ("order", "visit", "order"), times, strict=True))
        assert records(lake, "id", "kind", "at") == expected
        assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid

        # What follows a value is not decoded, so the value is no record.
        followed = values[0] + avro(2, "lost", 0)
        deltalake.write_deltalake(place, pa.table({"value": [followed]}), mode="append")
        assert capture(spark, lake, stream).late == {"malformed": 1}
        late = pl.read_delta(open_tape(lake, "little").paths.late)
        assert late["raw"].to_list() == [followed[5:].hex().upper()]

        # A value that is no such record ends the capture, or is null where that is asked for.
        more = pa.table({"value": [values[0][:7], values[1]]})
        deltalake.write_deltalake(place, more, mode="append")
        with pytest.raises(InvalidRequestError, match=r"CAP-SELECT.*from_avro cannot decode"):
            capture(spark, lake, stream)
        assert len(records(lake, "id")) == 3
        assert stream.source.select is not None
        permissive = "}', map('mode', 'PERMISSIVE')).*"
        select = tuple(text.replace("}').*", permissive) for text in stream.source.select)
        assert select != stream.source.select
        source = replace(stream.source, select=select)
        done = capture(spark, lake, replace(stream, source=source))
        assert (done.records, done.late) == (1, {"unknown-worker": 1})

    def test_rows_of_arrays_and_columns_of_parquet(
        self, spark: SparkSession, lake: Lake, tmp_path: Path
    ) -> None:
        baskets = pa.table({"n": [1, 2], "place": ["a", "b"], "at": [START, START + HOUR],
                            "items": [["x", "y"], []]})  # fmt: skip
        (tmp_path / "src").mkdir()
        pq.write_table(baskets, tmp_path / "src" / "0.parquet")
        source = Source(
            format="parquet",
            path=str(tmp_path / "src"),
            schema="n BIGINT, place STRING, at TIMESTAMP, items ARRAY<STRING>",
            select=("* EXCEPT (items, at)", "at AS bought", "explode(items) AS item"),
        )
        time = EventTime(column="bought", every=HOUR, lateness=HOUR)
        stream = little_stream(tmp_path, source=source, time=time, workers=ByPartition())
        assert capture(spark, lake, stream).records == 2
        assert records(lake, "n", "item") == [(1, "x"), (1, "y")]
        # Partitions are those of the source, whatever columns are left.
        labels = pl.read_delta(lake.stream("little").workers)["label"].to_list()
        assert labels == ["src"]
        assert compared(spark, lake, stream) == [(2, 0, True)] * 2
        pq.write_table(baskets.rename_columns(["n", "place", "when", "items"]),
                       tmp_path / "src" / "1.parquet")  # fmt: skip
        retyped = baskets.set_column(0, "n", pa.array(["1", "2"]))
        pq.write_table(retyped, tmp_path / "src" / "2.parquet")
        with pytest.raises(InvalidRequestError, match=r"CAP-SCHEMA.*2\.parquet has n as string"):
            capture(spark, lake, stream)

    def test_a_changed_selection_continues_without_comparison(
        self, spark: SparkSession, lake: Lake, tmp_path: Path
    ) -> None:
        capture(spark, lake, text_stream(tmp_path / "src", *LINES[:2]))
        more = (f"{DECODE}.*", "length(value) AS size")
        stream = text_stream(tmp_path / "src", LINES[3], select=more)
        assert capture(spark, lake, stream).records == 1
        assert records(lake, "id", "size")[-1] == (4, len(LINES[3]))
        actual = reconcile(spark, open_tape(lake, "little"), stream, deep=True)
        assert (actual.agrees, actual.batches, actual.records, actual.otherwise) == (True, 1, 1, 1)
        with pytest.raises(InvalidRequestError, match=r"CAP-SCHEMA: .*column amount is no longer"):
            fewer = f"{DECODE.replace(', amount DECIMAL(9, 2)', '')}.*"
            capture(spark, lake, text_stream(tmp_path / "src", select=fewer))
        some = replace(stream, source=replace(stream.source, where="id > 0"))
        actual = reconcile(spark, open_tape(lake, "little"), some)
        assert (actual.batches, actual.records, actual.otherwise) == (0, 0, 2)

    @pytest.mark.parametrize(
        ("source", "code", "said"),
        [
            ({"select": ("value AS kind",)}, "CAP-TIME-COLUMN", "at is not in the source"),
            ({"select": ("CAST(value AS TIMESTAMP) AS at",)}, "CAP-COLUMN", "column kind"),
            ({"select": ("1 AS a", "2 AS A")}, "CAP-COLUMN", "the same name"),
            ({"select": ("1 AS `a b`",)}, "CAP-COLUMN", "allows no name"),
            ({"select": ("valeu",)}, "CAP-SELECT", "cannot be computed: .*valeu"),
            ({"select": ("value +",)}, "CAP-SELECT", "cannot be computed: .*[Ss]yntax error"),
            ({"select": ("max(value)",)}, "CAP-SELECT", "more than one record .* by Aggregate"),
            ({"select": ("lag(value) OVER (ORDER BY value)",)}, "CAP-SELECT", "by Window"),
            ({"select": ("(TABLE numbers) AS n",)}, "CAP-SELECT", "has a subquery"),
            ({"select": ("luck(value)",)}, "CAP-SELECT", "differs whenever it is computed: luck"),
            ({"where": "luck(value) > 'x'"}, "CAP-SELECT", "differs whenever it is computed"),
            ({"where": "DATE(value) < 'today'"}, "CAP-SELECT", "the moment 'today'"),
            ({"where": "value"}, "CAP-SELECT", "cannot be computed"),
            ({"select": ("length(value).*",)}, "CAP-SELECT", "opens with .* what is int"),
            (
                {"select": ("transform(array(value), x -> from_json(x, 'a INT')) AS a",)},
                "CAP-SELECT",
                "no value of the source's record",
            ),
        ],
    )
    def test_what_cannot_be_selected_is_refused_and_changes_nothing(
        self,
        spark: SparkSession,
        lake: Lake,
        tmp_path: Path,
        source: dict[str, object],
        code: str,
        said: str,
    ) -> None:
        spark.udf.register("luck", F.udf(str).asNondeterministic())
        spark.range(1).createOrReplaceTempView("numbers")
        stream = text_stream(tmp_path / "src", *LINES, **source)
        with pytest.raises(InvalidRequestError, match=f"(?s){code}: stream little: .*{said}"):
            capture(spark, lake, stream)
        assert not exists(lake.stream("little").root)

    def test_a_failing_expression_captures_nothing_of_its_batch(
        self, spark: SparkSession, lake: Lake, tmp_path: Path
    ) -> None:
        capture(spark, lake, text_stream(tmp_path / "src", *LINES[:2]))
        before = newest_cut(open_tape(lake, "little"))
        strict = (f"{DECODE}.*", "CAST(get_json_object(value, '$.amount') AS INT) AS whole")
        stream = text_stream(tmp_path / "src", LINES[2], select=strict)
        with pytest.raises(InvalidRequestError, match="CAP-SELECT.*fails for .*CAST_INVALID_INPUT"):
            capture(spark, lake, stream)
        assert newest_cut(open_tape(lake, "little")) == before
        failfast = DECODE[:-1] + ", map('mode', 'FAILFAST'))"
        with pytest.raises(InvalidRequestError, match="CAP-MALFORMED.*mode is FAILFAST"):
            capture(spark, lake, text_stream(tmp_path / "src", select=(f"{failfast}.*",)))
        assert newest_cut(open_tape(lake, "little")) == before
        assert capture(spark, lake, text_stream(tmp_path / "src", *LINES[3:4])).records == 1

    def test_a_batch_that_is_half_done_ends_with_its_own_selection(
        self, spark: SparkSession, lake: Lake, tmp_path: Path
    ) -> None:
        def stop(point: str, facts: Mapping[str, object]) -> None:
            if point == "capture.records":
                raise RuntimeError("killed")

        stream = text_stream(tmp_path / "src", *LINES[:2])
        other = replace(stream, source=replace(stream.source, where="id > 1"))
        with subscribe(stop), pytest.raises(StreamingQueryException, match="killed"):
            capture(spark, lake, stream)
        with pytest.raises(InvalidRequestError, match="CAP-HALF-DONE.*a changed declaration"):
            capture(spark, lake, other)
        assert capture(spark, lake, stream).records == 2
        assert compared(spark, lake, stream) == [(2, 0, True)] * 2
        assert capture(spark, lake, other).batches == 0

    def test_the_corrupt_record_column_is_kept_on_request(
        self, spark: SparkSession, lake: Lake, tmp_path: Path
    ) -> None:
        own = f"from_json(value, '{ORDER}, _corrupt_record STRING')"
        stream = text_stream(tmp_path / "src", *LINES[:5], select=(f"{own}.*",))
        done = capture(spark, lake, replace(stream, time=EpochTime(), workers=ByKey(("id",), 2)))
        assert (done.records, done.late) == (5, {})
        data = pl.read_delta(lake.stream("little").records)["data"].struct.unnest()
        assert sorted(data["_corrupt_record"].drop_nulls()) == sorted([LINES[2], LINES[4]])

    def test_malformed_text_of_a_format_is_kept_as_well(
        self, spark: SparkSession, lake: Lake, tmp_path: Path
    ) -> None:
        (tmp_path / "src").mkdir()
        lines = ["1,a,2024-05-01", "x,b,2024-05-01", "3,c,2024-05-01"]
        (tmp_path / "src" / "0.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        stream = Stream(
            name="little",
            source=Source(
                format="csv",
                path=str(tmp_path / "src"),
                schema="n INT, kind STRING, day DATE",
                select="n + 1 AS m, to_json(struct(*)) AS whole",
                where="m > 2",
            ),
            workers=ByKey(("whole",), 2),
            time=EpochTime(),
        )
        done = capture(spark, lake, stream)
        assert (done.fed, done.records, done.late) == (2, 1, {"malformed": 1})
        assert records(lake, "m", "whole") == [(4, '{"n":3,"kind":"c","day":"2024-05-01"}')]
        assert pl.read_delta(lake.stream("little").late)["raw"].to_list() == [lines[1]]
        assert compared(spark, lake, stream) == [(2, 0, True)] * 2


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("kafka") / "broker", partitions=2) as actual:
        yield actual


class TestKafka:
    """Records of a topic are decoded before they are captured."""

    def test_the_example_of_the_documentation_decodes_json(
        self, spark: SparkSession, kafka: Broker, tmp_path: Path
    ) -> None:
        (example,) = (block for block in blocks(page("configuration"), "yaml") if "decode" in block)
        file = tmp_path / "streams.yaml"
        file.write_text(example.replace("broker:9092", kafka.address), encoding="utf-8")
        lake = Lake.at(tmp_path / "lake")
        (stream,) = load_config(file, lake=lake.root).streams.values()
        order = '{{"id": {}, "customer": "c{}", "at": {}, "amount": "{}.50", "status": "{}"}}'
        first = SECONDS * 1000
        values = [
            order.format(n, n % 3, first + n * 600_000, n, "paid" if n % 4 else "open")
            for n in range(20)
        ]
        rows = [("orders", n % 2, value) for n, value in enumerate([*values, "rubbish", "{"])]
        columns = "topic STRING, partition INT, value STRING"
        send(kafka.address, spark.createDataFrame([*rows, ("orders", 0, None)], columns))
        done = capture(spark, lake, stream)
        # The one without a value has no status, and is left out by the condition.
        assert (done.fed, done.records, done.late) == (17, 15, {"malformed": 2})
        tape = open_tape(lake, stream.name)
        records = pl.read_delta(tape.paths.records)
        data = records["data"].struct.unnest()
        assert data.columns == ["id", "customer", "at", "amount", "status", "offset"]
        assert sorted(data["id"]) == [n for n in range(20) if n % 4]
        assert data["amount"].sum() == sum(n + 0.5 for n in range(20) if n % 4)
        assert records["time"].struct.field("event").min() == START
        labels = set(pl.read_delta(tape.paths.workers)["label"])
        assert labels == {"orders/0", "orders/1"}
        assert sorted(pl.read_delta(tape.paths.late)["raw"]) == ["rubbish", "{"]
        for deep in (False, True):
            actual = reconcile(spark, tape, stream, deep=deep)
            assert (actual.agrees, actual.records, actual.gone) == (True, 17, 0)
        spark.sql(f"DELETE FROM delta.`{tape.paths.records}` WHERE data.id = 3")
        actual = reconcile(spark, tape, stream)
        assert actual.findings == (SourceDifference(0, None, "missing", 17, 16),)


FUNCTIONS = """
from pyspark.sql import SparkSession

LOADED = True
number = 7


def orders(spark, folder, least="0"):
    rows = spark.readStream.schema("id BIGINT, place STRING, at TIMESTAMP").json(folder)
    return rows.where(f"id >= {least}").withColumn("double", rows.id * 2)


def both(**options):
    spark = SparkSession.getActiveSession()
    one, other = (orders(spark, options[key]) for key in ("one.folder", "other.folder"))
    return one.union(other)


def batch(spark):
    return spark.range(3)


def nothing():
    pass


def text():
    return "orders"


def fails(path):
    raise KeyError("shop")


def counted(spark, folder):
    return orders(spark, folder).groupBy("place").count()


def sorted_rows(spark, folder):
    return orders(spark, folder).orderBy("id")


def once(spark, folder):
    return orders(spark, folder).withWatermark("at", "1 day").dropDuplicatesWithinWatermark(["id"])
"""


class TestFunctions:
    """The module beside the declarations has a function that makes the source."""

    @pytest.fixture
    def module(self, tmp_path: Path) -> Iterator[str]:
        name = f"sources_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(FUNCTIONS, encoding="utf-8")
        yield name
        sys.path[:] = [path for path in sys.path if path != str(tmp_path)]
        sys.modules.pop(name, None)

    def declared(self, tmp_path: Path, function: str, **more: object) -> Stream:
        source = {"function": function, **more}
        text = {
            "streams": {
                "little": {
                    "source": source,
                    "workers": {"by": "column", "column": "place"},
                    "time": {"domain": "event", "column": "at", "every": "1 hour"},
                }
            }
        }
        file = tmp_path / "streams.yaml"
        file.write_text(yaml.safe_dump(text), encoding="utf-8")
        return load_config(file, lake="/lake").stream("little")

    def lay(self, folder: Path, *ids: int) -> None:
        folder.mkdir(exist_ok=True)
        lines = [
            json.dumps({"id": n, "place": "ab"[n % 2], "at": str(START + n * HOUR)}) for n in ids
        ]
        (folder / f"{ids[0]}.json").write_text("\n".join(lines), encoding="utf-8")

    def test_its_rows_are_captured_and_go_on(
        self, spark: SparkSession, lake: Lake, tmp_path: Path, module: str
    ) -> None:
        folder = str(tmp_path / "src")
        self.lay(tmp_path / "src", 1, 2, 3)
        options = {"folder": folder, "least": 2}
        stream = self.declared(tmp_path, f"{module}:orders", options=options)
        # Nothing of the module runs until its stream is captured.
        assert module not in sys.modules
        assert capture(spark, lake, stream).records == 2
        self.lay(tmp_path / "src", 4, 5)
        assert capture(spark, lake, stream).records == 2
        assert records(lake, "id", "double") == [(n, 2 * n) for n in (2, 3, 4, 5)]
        tape = open_tape(lake, "little")
        assert verify(spark, lake, tape, deep=True).valid
        details = [json.loads(d) for d in pl.read_delta(tape.paths.feed).sort("batch")["detail"]]
        assert [detail["offsets"] for detail in details] == [[{"logOffset": 0}], [{"logOffset": 1}]]
        with pytest.raises(InvalidRequestError, match="CAP-NO-FEED: .*only the function knows"):
            reconcile(spark, tape, stream)

    def test_it_may_have_several_sources_a_selection_and_state(
        self, spark: SparkSession, lake: Lake, tmp_path: Path, module: str
    ) -> None:
        for number, name in enumerate(["one", "other"]):
            self.lay(tmp_path / name, 2 * number, 2 * number + 1)
        options = {f"{name}.folder": str(tmp_path / name) for name in ("one", "other")}
        stream = self.declared(
            tmp_path,
            f"{module}:both",
            options=options,
            select=["* EXCEPT (double)"],
            where="id > 0",
        )
        assert capture(spark, lake, stream).records == 3
        self.lay(tmp_path / "other", 4)
        assert capture(spark, lake, stream).records == 1
        assert records(lake, "id", "place") == [(n, "ab"[n % 2]) for n in (1, 2, 3, 4)]
        lake = Lake.at(tmp_path / "distinct")
        self.lay(tmp_path / "twice", 1, 1, 2)
        options = {"folder": str(tmp_path / "twice")}
        stream = self.declared(tmp_path, f"{module}:once", options=options)
        assert capture(spark, lake, stream).records == 2
        self.lay(tmp_path / "twice", 2, 3)
        assert capture(spark, lake, stream).records == 1
        assert records(lake, "id") == [(1,), (2,), (3,)]

    @pytest.mark.parametrize(
        ("function", "options", "said"),
        [
            ("no_such_module:orders", {}, "cannot be imported: ModuleNotFoundError"),
            ("{}:missing", {}, "cannot be imported: AttributeError"),
            ("{}:number", {}, "is a int"),
            ("{}:orders", {}, "does not take the declared options: missing a required .*folder"),
            ("{}:nothing", {"a": "1"}, "does not take the declared options: .*'a'"),
            ("{}:nothing", {}, "returns None"),
            ("{}:text", {}, "returns a str"),
            ("{}:batch", {}, "returns a DataFrame that is not streaming"),
            ("{}:fails", {"path": "x"}, "fails: KeyError: 'shop'"),
            ("{}:orders", {"folder": "/no/such/folder"}, "fails: AnalysisException: .*PATH_NOT_F"),
            ("{}:counted", {"folder": "{}"}, "rows that Spark cannot append"),
            ("{}:sorted_rows", {"folder": "{}"}, "rows that Spark cannot append"),
        ],
    )
    def test_what_is_no_source_is_refused_and_changes_nothing(
        self,
        spark: SparkSession,
        lake: Lake,
        tmp_path: Path,
        module: str,
        function: str,
        options: dict[str, str],
        said: str,
    ) -> None:
        self.lay(tmp_path / "src", 1)
        given = {key: value.format(tmp_path / "src") for key, value in options.items()}
        stream = self.declared(tmp_path, function.format(module), options=given)
        with pytest.raises(InvalidRequestError, match=f"(?s)CAP-SOURCE: .*{said}"):
            capture(spark, lake, stream)
        assert not exists(lake.stream("little").root)

    def test_the_example_of_the_documentation_is_captured(
        self, spark: SparkSession, lake: Lake, tmp_path: Path, module: str
    ) -> None:
        (program,) = blocks(page("configuration"), "python")
        (example,) = (b for b in blocks(page("configuration"), "yaml") if "shop_sources" in b)
        (tmp_path / f"{module}.py").write_text(program, encoding="utf-8")
        (tmp_path / "src").mkdir()
        order = '{{"id": {}, "at": "2024-05-01T00:00:00Z", "amount": {}}}\n'
        lines = "".join(
            order.format(n % 4, amount) for n, amount in enumerate([5, 10, 20, 30, 15, 10])
        )
        (tmp_path / "src" / "0.json").write_text(lines, encoding="utf-8")
        text = example.replace("shop_sources", module).replace("/data/orders", f"{tmp_path}/src")
        (tmp_path / "streams.yaml").write_text(text, encoding="utf-8")
        stream = load_config(tmp_path / "streams.yaml", lake=lake.root).stream("orders")
        assert capture(spark, lake, stream).records == 4

    def test_a_module_that_does_not_load_is_named(
        self, spark: SparkSession, lake: Lake, tmp_path: Path, module: str
    ) -> None:
        (tmp_path / f"{module}.py").write_text("def orders(:\n", encoding="utf-8")
        stream = self.declared(tmp_path, f"{module}:orders")
        with pytest.raises(InvalidRequestError, match="CAP-SOURCE: .*imported: SyntaxError"):
            capture(spark, lake, stream)


class TestTables:
    """A table of a catalog is read by its name."""

    @pytest.fixture
    def table(self, spark: SparkSession, tmp_path: Path) -> Iterator[str]:
        spark.sql("CREATE DATABASE IF NOT EXISTS shop")
        yield "shop.orders"
        spark.sql("DROP DATABASE shop CASCADE")

    def make(self, spark: SparkSession, table: str, location: Path, ids: range) -> None:
        spark.sql(f"CREATE TABLE {table} (id BIGINT, place STRING, at TIMESTAMP) USING delta "
                  f"LOCATION '{location}'")  # fmt: skip
        self.add(spark, table, ids)

    def add(self, spark: SparkSession, table: str, ids: range) -> None:
        rows = spark.range(ids.start, ids.stop).selectExpr(
            "id", "'a' AS place", f"timestamp_seconds({SECONDS} + id * 3600) AS at"
        )
        rows.write.insertInto(table)

    def test_it_is_captured_and_one_that_was_made_anew_is_noticed(
        self, spark: SparkSession, lake: Lake, tmp_path: Path, table: str
    ) -> None:
        self.make(spark, table, tmp_path / "first", range(3))
        options = {"maxFilesPerTrigger": "1"}
        source = Source(table=table, options=options, select=("*", "id + 1 AS next"))
        stream = little_stream(tmp_path, source=source)
        assert capture(spark, lake, stream).records == 3
        self.add(spark, table, range(3, 5))
        quoted = replace(stream, source=replace(source, table="`shop`.`orders`"))
        assert capture(spark, lake, quoted).records == 2
        assert records(lake, "id", "next") == [(n, n + 1) for n in range(5)]
        tape = open_tape(lake, "little")
        assert verify(spark, lake, tape, deep=True).valid
        with pytest.raises(InvalidRequestError, match="CAP-NO-FEED.*neither files nor offsets"):
            reconcile(spark, tape, stream)
        cut = newest_cut(tape)
        spark.sql(f"DROP TABLE {table}")
        self.make(spark, table, tmp_path / "second", range(10, 12))
        with pytest.raises(InvalidRequestError, match="CAP-SOURCE-OTHER: .*table was recreated"):
            capture(spark, lake, stream)
        assert newest_cut(open_tape(lake, "little")) == cut
        assert capture(spark, lake, stream, reseat=True).records == 2

    def test_what_is_no_table_to_read_is_refused_and_changes_nothing(
        self, spark: SparkSession, lake: Lake, tmp_path: Path, table: str
    ) -> None:
        files = tmp_path / "files"
        spark.sql(f"CREATE TABLE shop.files (id BIGINT) USING parquet LOCATION '{files}'")
        spark.sql("CREATE VIEW shop.few AS SELECT * FROM shop.files")
        for name, printed in {
            "shop.missing": "cannot be read: .*shop.*missing",
            "nowhere.shop.orders": "cannot be read: .*nowhere",
            "shop.files": "is a folder of files in the format (?i:parquet)",
            "shop.few": "few",
        }.items():
            stream = little_stream(tmp_path, source=Source(table=name))
            with pytest.raises(InvalidRequestError, match=f"CAP-SOURCE: .*{printed}") as refused:
                capture(spark, lake, stream)
            assert (str(files) in refused.value.hint) == (name == "shop.files")
            assert not exists(lake.stream("little").root)


class TestPlaces:
    """Paths with wildcards, and formats that know their own columns."""

    def test_a_pattern_without_matches_is_refused_at_first(
        self, spark: SparkSession, lake: Lake, tmp_path: Path
    ) -> None:
        (tmp_path / "eu").mkdir()
        pattern = f"{tmp_path}/*/orders"
        source = replace(little_stream(tmp_path).source, path=pattern)
        stream = little_stream(tmp_path, source=source)
        for given in (source, replace(source, schema=None), Source("delta", path=pattern)):
            with pytest.raises(InvalidRequestError, match="CAP-SOURCE: ") as refused:
                capture(spark, lake, replace(stream, source=given))
            assert not exists(lake.stream("little").root)
        assert "cannot be read" in refused.value.message
        lay(tmp_path / "eu" / "orders", "0", rows(range(4)))
        assert capture(spark, lake, stream).records == 4
        lay(tmp_path / "us" / "orders", "0", rows(range(4, 6)))
        assert capture(spark, lake, stream).records == 2
        # Files that were read may go.
        for folder in ("eu", "us"):
            shutil.rmtree(tmp_path / folder)
        assert capture(spark, lake, stream).batches == 0

    def test_only_files_are_given_columns(
        self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given: list[str] = []
        own = DataStreamReader.schema

        def schema(reader: DataStreamReader, columns: StructType) -> DataStreamReader:
            given.extend(columns.names)
            return own(reader, columns)

        monkeypatch.setattr(DataStreamReader, "schema", schema)

        def read(source: Source) -> list[str]:
            given.clear()
            return read_source(spark, little_stream(tmp_path, source=source)).columns

        assert read(Source("rate-micro-batch", options={"rowsPerBatch": "1"})) == [
            "timestamp",
            "value",
        ]
        assert given == []
        # A format of files that Capstan does not know: Spark asks for its columns.
        (tmp_path / "0.json").write_text('{"id": 1, "place": "a"}', encoding="utf-8")
        package = "org.apache.spark.sql.execution.datasources.json.JsonFileFormat"
        assert read(Source(package, path=str(tmp_path))) == ["id", "place"]
        assert given == ["id", "place"]
