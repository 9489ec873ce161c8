"""Event times that cannot be read: whatever gives them, such rows are late and break no capture."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capstan.capture.batch import classify
from capstan.capture.run import capture
from capstan.core.config import ByKey, EventTime, LatePolicy, Source
from capstan.errors import InvalidRequestError
from capstan.storage.tape.tape import open_tape
from capstan.verify import verify
from tests.support.sample_streams import HOUR, little_stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from capstan.storage.lake import Lake

MAY = datetime(2024, 5, 1, 9, 30, tzinfo=UTC)
DAY = timedelta(days=1)
MICROS = classify.since_epoch(MAY)
MOST, LEAST = 2**63 - 1, -(2**63)
YEAR_10000 = 253_402_300_800_000_000
UTC_US = pa.timestamp("us", "UTC")
# Those that can be read are of the same time and come first.
COLUMNS = {
    "text": pa.array(
        [
            "2024-05-01 09:30:00", " 2024-05-01T11:30:00+02:00",
            "rubbish", "", "09:30", "T09:30", "+200000-01-01", "2024-13-01", "now", None,
        ],
        pa.string(),
    ),
    "odd": pa.array(["2024-05-01 09:30:00", "rubbish", None], pa.string()),
    "dated": pa.array([19_844, 2**31 - 1, -(2**31), 2_932_897, None], pa.int32()).cast(pa.date32()),
    "moment": pa.array([MICROS, MOST, YEAR_10000, None], UTC_US),
    "local": pa.array([MICROS, MOST, None], pa.timestamp("us")),
    "number": pa.array([MICROS, MOST, None], pa.int64()),
    "zero": pa.array([1, 0, None], pa.int64()),
}  # fmt: skip
PATTERN = "to_timestamp(text, 'yyyy-MM-dd HH:mm:ss')"
# The declared column or expression, the column that it reads, and how many rows have a time by it.
FORMS = [
    ("text", "text", 2),
    ("dated", "dated", 1),
    ("moment", "moment", 1),
    ("local", "local", 1),
    ("concat('', text)", "text", 2),
    ("CAST(odd AS TIMESTAMP)", "odd", 1),
    (PATTERN, "text", 1),
    ("make_timestamp(2024, CAST(substr(text, 6, 2) AS INT), 1, 9, 30, 0)", "text", 1),
    ("array(moment)[CAST(dayofmonth(moment) AS INT) - 1]", "moment", 1),
    ("CAST(dated AS TIMESTAMP)", "dated", 1),
    ("moment + INTERVAL '1' DAY - INTERVAL '1' DAY", "moment", 1),
    ("timestamp_micros(number)", "number", 1),
    ("timestamp_millis(number)", "number", 0),
    ("number * 1000000", "number", 0),
    (f"timestamp_micros(CAST({MICROS} / zero AS BIGINT))", "zero", 1),
    ("CAST(raise_error(text) AS TIMESTAMP)", "text", 0),
]
COMPILED = [FORMS[i] for i in (0, 6, 10, 14)]


def timed(how: str) -> EventTime:
    """Times by the hour from a column, or from an expression."""
    source = {"column": how} if how in COLUMNS else {"expression": how}
    return EventTime(domain="event", every=HOUR, lateness=2 * HOUR, **source)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Parquet for each of the columns, its rows numbered."""
    root = tmp_path_factory.mktemp("sources")
    for name, values in COLUMNS.items():
        (root / name).mkdir()
        table = pa.table({"n": range(len(values)), name: values})
        pq.write_table(table, root / name / "rows.parquet")
    return root


@contextmanager
def compiling(spark: SparkSession, asked: bool) -> Iterator[None]:
    """Queries are compiled, or interpreted."""
    expected = {
        "spark.sql.codegen.factoryMode": "CODEGEN_ONLY" if asked else "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": str(asked).lower(),
    }
    before = {name: spark.conf.get(name) for name in expected}
    try:
        for name, value in expected.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


@pytest.mark.parametrize(
    ("form", "compiled"),
    [(form, False) for form in FORMS] + [(form, True) for form in COMPILED],
    ids=str,
)
def test_what_is_no_time_is_late(
    spark: SparkSession, sources: Path, form: tuple[str, str, int], compiled: bool
) -> None:
    how, name, readable = form
    stream = little_stream(sources, time=timed(how))
    with compiling(spark, compiled):
        rows = spark.read.parquet(str(sources / name)).selectExpr("*", "'a' AS place")
        prepared = classify.prepare(rows, stream)
        held = prepared.selectExpr(
            "0 AS worker", f"{LEAST} AS frontier", "data", "raw", "no_row", "at"
        )
        classified = classify.classify_rows(held, stream, 0).orderBy("data.n")
        actual = classified.selectExpr("reason", "unix_micros(time.event) AS event").collect()
    own = MICROS - MICROS % classify.micros(HOUR)
    if "dated" in how:
        own -= 9 * classify.micros(HOUR)
    in_time = [(None, own)] * readable
    assert [tuple(row) for row in actual] == [
        *in_time,
        *[("no-time", None)] * (len(COLUMNS[name]) - readable),
    ]


def test_the_least_moment_is_below_every_minimum(spark: SparkSession, tmp_path: Path) -> None:
    moments = pa.array([LEAST, LEAST + classify.micros(2 * HOUR)], UTC_US)
    pq.write_table(pa.table({"moment": moments, "place": ["a", "a"]}), tmp_path / "x.parquet")
    stream = little_stream(tmp_path, time=timed("moment"))
    prepared = classify.prepare(spark.read.parquet(str(tmp_path)), stream)
    held = prepared.selectExpr("0 AS worker", f"{LEAST} AS frontier", "data", "raw", "no_row", "at")
    classified = classify.classify_rows(held, stream, 0).orderBy("at")
    # The hour in which the first one lies begins before all that a BIGINT can tell.
    assert classified.select("reason", "time.event").collect() == [
        ("no-time", None),
        ("below-minimum", None),
    ]


@pytest.mark.parametrize(
    ("how", "policy"), [("text", LatePolicy.ADVANCE), (PATTERN, LatePolicy.FAIL)]
)
def test_a_capture_goes_on(
    spark: SparkSession, lake: Lake, tmp_path: Path, how: str, policy: LatePolicy
) -> None:
    folder = tmp_path / "source"
    folder.mkdir()

    def lay(name: str, *times: str | None) -> None:
        lines = [f"{name}{i},a,{'' if time is None else time}\n" for i, time in enumerate(times)]
        (folder / f"{name}.csv").write_text("".join(lines), encoding="utf-8")

    schema = "id STRING, place STRING, text STRING"
    source = Source(format="csv", path=str(folder), schema=schema)
    stream = little_stream(tmp_path, source=source, time=timed(how), late=policy)
    lay("0", "rubbish", "2024-05-01 09:30:00", None)
    first = capture(spark, lake, stream)
    lay("1", "10:30", "2024-05-01 10:30:00", "+99999-01-01 00:00:00")
    second = capture(spark, lake, stream)

    assert (first.fed, first.records, first.late) == (3, 1, {"no-time": 2})
    assert (second.fed, second.records, second.late) == (3, 1, {"no-time": 2})
    assert second.frontier == ["2024-05-01T08:00:00.000000Z"]
    tape = open_tape(lake, "little")
    late = pl.read_delta(tape.paths.late)
    assert late["time"].struct.field("event").null_count() == 4
    kept = late["data"].struct.field("text").to_list()
    assert set(kept) == {"rubbish", None, "10:30", "+99999-01-01 00:00:00"}
    assert verify(spark, lake, tape, deep=True).valid


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("momnt", "momnt"),
        ("moment +", "Syntax error"),
        ("array(moment)", "ARRAY<TIMESTAMP>"),
        ("max(moment)", "GROUP BY"),
        ("explode(array(moment))", "generator"),
        ("no_such_function(moment)", "no_such_function"),
        ("coalesce(moment, 'now')", "takes the moment 'now'"),
    ],
)
def test_an_expression_that_cannot_be_computed(
    spark: SparkSession, lake: Lake, sources: Path, expression: str, said: str
) -> None:
    source = Source(format="parquet", path=str(sources / "moment"))
    stream = little_stream(sources, source=source)
    time = replace(stream.time, column=None, expression=expression)
    with pytest.raises(InvalidRequestError, match=r"CAP-TIME-COLUMN: stream little: ") as refused:
        capture(spark, lake, replace(stream, time=time, workers=ByKey(columns=("n",), count=1)))
    assert said in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.hint
    assert lake.streams() == []


def test_what_lies_behind_a_gap_and_in_the_future_is_ahead(spark: SparkSession) -> None:
    time = EventTime(domain="event", column="at", every=HOUR, max_ahead=5 * DAY)
    day = classify.micros(DAY)

    def ahead(days: list[int], seen: int | None, begun: int | None) -> int | None:
        """The first day that is ahead; all are counted from May."""
        rows = spark.createDataFrame([(MAY + item * DAY,) for item in days], "at TIMESTAMP")
        known = [None if item is None else MICROS + item * day for item in (seen, begun)]
        actual = classify.ahead_from(rows, time, *known)
        return None if actual is None else round((actual - MICROS) / day)

    # A backlog is not ahead of itself, whether the clock has come to it or not.
    backlog = list(range(0, 90, 3))
    assert [ahead(backlog, None, begun) for begun in (None, -900, 900)] == [None] * 3
    assert ahead([*backlog, 97], None, None) == 97
    assert ahead([*backlog, 97], None, 91) == 97
    assert ahead([*backlog, 97], None, 93) is None
    assert ahead([*backlog, 97, 900], None, 93) == 900
    assert ahead([50, 51], 40, -900) == 50
    assert ahead([50, 51], 40, 46) is None
    # Behind a gap all is ahead, though nothing up to the present is.
    assert ahead([50, 61, 62], 40, 50) == 61
