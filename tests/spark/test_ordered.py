"""What of a transform's output depends on the order of rows: told, compared closely, or refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from capstan.audit import FloatTolerance, Shape, cells
from capstan.audit.float_tolerance import exceeding
from capstan.audit.row_diff import Side, row_differences
from capstan.audit.row_view import table_view
from capstan.capture.run import capture, close
from capstan.core.config import EventTime, Transform
from capstan.core.times import Kind, TimeType
from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.maintenance.run import maintain
from capstan.replay.execution import attempt
from capstan.replay.order.causes import Grade, examine
from capstan.replay.order.spark_plan import plan_of
from capstan.replay.output import rows as rows_of_output
from capstan.replay.planning.planner import make_plan
from capstan.replay.publish.diff import difference
from capstan.replay.standalone_audit import audit_run
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims
from capstan.storage.ledger.runs import read_history
from capstan.storage.ledger.tables import read_rows
from capstan.storage.tape.tape import open_tape
from tests.support.replay_harness import Play
from tests.support.sample_streams import HOUR, NAME, declared, lay, little_stream, rows

DAY = 24 * HOUR
COLUMNS = (
    "id BIGINT, k INT, i INT, x DOUBLE, s STRING, at TIMESTAMP, _time STRUCT<event: TIMESTAMP>"
)
SUMS = "SELECT k, i, sum(x) AS x FROM records GROUP BY k, i"

# Aggregates by k that are the same in any order of the rows.
SURE = (
    "count(*)", "sum(id)", "avg(i)", "max(x)", "min(s)", "count(DISTINCT x)", "median(x)",
    "percentile(x, 0.3)", "approx_count_distinct(x)", "sum(CAST(x AS DECIMAL(30, 9)))",
    "bool_or(x > 1)", "count_if(x > 1)", "sort_array(collect_list(x))", "size(collect_list(x))",
    "array_sort(collect_set(x))", "array_join(sort_array(collect_set(s)), ',')",
    "aggregate(sort_array(collect_list(x)), 0D, (a, v) -> a + v)",
    "sort_array(transform(collect_list(x), v -> v + 1))", "max_by(x, struct(at, x))",
    "min_by(struct(x, s), struct(at, x, s))", "mode(x, true)", "mode() WITHIN GROUP (ORDER BY i)",
    "listagg(s) WITHIN GROUP (ORDER BY s)", "round(sum(i) / nullif(count(i), 0), 2)",
)  # fmt: skip
# Those whose last digits are not.
CLOSE = (
    "sum(x)", "avg(x)", "try_sum(x)", "avg(id)", "stddev(x)", "var_pop(x)", "sum(x) / count(*)",
    "sum(x) / nullif(sum(x * x), 0)", "coalesce(sum(x), 0)", "sum(x) FILTER (WHERE i > 1)",
    "CASE WHEN count(*) > 1 THEN sum(x) END", "greatest(sum(x), 0)",
)  # fmt: skip
# Those of which the elements alone are sure.
SHUFFLED = (
    "collect_list(x)", "collect_set(s)", "array_agg(i)", "array_join(collect_list(s), ',')",
    "collect_list(x)[0]",
)  # fmt: skip
# Those of which nothing, or not the value, is sure.
FREE = (
    "first(x)", "last(x)", "any_value(x)", "mode(x)", "listagg(s)", "approx_percentile(x, 0.5)",
    "histogram_numeric(x, 3)", "round(sum(x), 2)", "CAST(sum(x) AS STRING)",
    "CAST(sum(x) AS DECIMAL(20, 2))", "sum(x) > 100", "IF(sum(x) > 1, 'a', 'b')",
    "CAST(sum(x) AS FLOAT)", "sort_array(array(sum(x)))[0] > 1",
)  # fmt: skip
# Those that are sure of some rows and not of others: the audit compares them.
AUDITED = (
    "max_by(x, at)", "array_sort(collect_list(x), (a, b) -> 0)", "hll_sketch_agg(id)",
    "listagg(s) WITHIN GROUP (ORDER BY i)",
)  # fmt: skip
GRADED = (
    *((each, None) for each in (*SURE, *AUDITED)),
    *((each, Grade.LAST_DIGITS) for each in CLOSE),
    *((each, Grade.ELEMENTS) for each in SHUFFLED),
    *((each, Grade.VALUE) for each in FREE),
)
# Queries, and what of their output depends on the order: columns by grade, or * for its rows.
QUERIES: dict[str, dict[str, Grade]] = {
    "SELECT * FROM records ORDER BY x": {},
    "SELECT k, id FROM records ORDER BY k, id LIMIT 3": {},
    "SELECT k, count(*) AS n FROM records GROUP BY k ORDER BY n DESC, k LIMIT 3": {},
    "SELECT k, x FROM records ORDER BY x LIMIT 3": {},
    "SELECT k FROM records LIMIT 3": {},
    "SELECT count(*) AS n FROM records LIMIT 3": {},
    "SELECT * FROM records TABLESAMPLE (10 PERCENT)": {},
    "SELECT DISTINCT k FROM records": {},
    f"SELECT DISTINCT k, x FROM ({SUMS})": {"x": Grade.LAST_DIGITS, "*": Grade.VALUE},
    f"SELECT k, i, x FROM ({SUMS}) WHERE x > 10": {"x": Grade.LAST_DIGITS, "*": Grade.VALUE},
    f"SELECT k, i, x FROM ({SUMS}) WHERE x IS NOT NULL": {"x": Grade.LAST_DIGITS},
    f"SELECT k, count(*) AS n FROM ({SUMS}) GROUP BY k": {},
    f"SELECT x, count(*) AS n FROM ({SUMS}) GROUP BY x": {"x": Grade.LAST_DIGITS, "*": Grade.VALUE},
    f"SELECT k, sum(x) - max(x) AS x FROM ({SUMS}) GROUP BY k": {"x": Grade.LAST_DIGITS},
    f"SELECT k, sort_array(collect_list(x)) AS x FROM ({SUMS}) GROUP BY k": {"x": Grade.VALUE},
    f"WITH c AS ({SUMS}) SELECT a.k, b.x FROM c a JOIN c b ON a.k = b.k": {"x": Grade.LAST_DIGITS},
    f"WITH c AS ({SUMS}) SELECT a.k FROM c a JOIN c b ON a.x = b.x": {"*": Grade.VALUE},
    f"SELECT k, x FROM ({SUMS}) UNION ALL SELECT 1, 2D": {"x": Grade.LAST_DIGITS},
    "SELECT k, i, sum(x) AS x FROM records GROUP BY CUBE (k, i)": {"x": Grade.LAST_DIGITS},
    "SELECT * FROM (SELECT k, id, x FROM records) PIVOT (sum(x) FOR k IN (1))": {
        "1": Grade.LAST_DIGITS,
    },
    "SELECT id FROM records WHERE x > (SELECT avg(x) FROM records)": {"*": Grade.VALUE},
    "SELECT id, (SELECT avg(i) FROM records) AS a FROM records": {},
    "SELECT explode(l) AS e FROM (SELECT collect_list(x) AS l FROM records)": {},
    "SELECT posexplode(l) FROM (SELECT collect_list(x) AS l FROM records)": {"*": Grade.VALUE},
    "SELECT k, at FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY at) AS r FROM records)"
    " WHERE r = 1": {},
    "SELECT k, x FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY at) AS r FROM records)"
    " WHERE r = 1": {"*": Grade.VALUE},
    "SELECT k, n, row_number() OVER (ORDER BY n, k) AS r FROM"
    " (SELECT k, count(*) AS n FROM records GROUP BY k)": {},
    "SELECT d, n, row_number() OVER (ORDER BY n, d) AS r FROM"
    " (SELECT date_trunc('DAY', at) AS d, count(*) AS n FROM records GROUP BY 1)": {},
    "SELECT k, n, lead(n) OVER (ORDER BY n, k) AS l, sum(n) OVER (ORDER BY n, k) AS s FROM"
    " (SELECT k, count(*) AS n FROM records GROUP BY k)": {},
    "SELECT k, at, row_number() OVER w AS r, sum(i) OVER w AS s FROM records"
    " WINDOW w AS (PARTITION BY k ORDER BY at)": {},
    "SELECT k, x, rank() OVER (ORDER BY x) AS r FROM records": {},
    f"SELECT k, rank() OVER (ORDER BY x) AS r FROM ({SUMS})": {"r": Grade.VALUE},
    "SELECT k, x, lag(x) OVER (PARTITION BY k ORDER BY at) AS l FROM records": {"l": Grade.VALUE},
    "SELECT k, at, lag(at) OVER (PARTITION BY k ORDER BY at) AS l FROM records": {},
    "SELECT k, at, sum(i) OVER (PARTITION BY k ORDER BY at) AS r FROM records": {},
    "SELECT k, at, x, sum(i) OVER (PARTITION BY k ORDER BY at ROWS UNBOUNDED PRECEDING) AS r"
    " FROM records": {"r": Grade.VALUE},
    "SELECT k, x, sum(x) OVER (PARTITION BY k) AS t FROM records": {"t": Grade.LAST_DIGITS},
    "SELECT id, rand(5) AS r, uuid() AS u, monotonically_increasing_id() AS m, input_file_name() "
    "AS f, current_timestamp() AS t, spark_partition_id() AS p FROM records":
        dict.fromkeys("rumftp", Grade.VALUE),
}  # fmt: skip


@pytest.fixture(scope="module")
def records(spark: SparkSession) -> DataFrame:
    frame = spark.createDataFrame([], COLUMNS)
    frame.createOrReplaceTempView("records")
    return frame


def found_in(frame: DataFrame) -> dict[str, Grade]:
    return {name or "*": cause.grade for name, cause in examine(plan_of(frame)).items()}


@pytest.mark.usefixtures("records")
def test_which_aggregates_depend_on_the_order_of_rows(spark: SparkSession) -> None:
    columns = ", ".join(f"{sql} AS c{n}" for n, (sql, _) in enumerate(GRADED))

    actual = found_in(spark.sql(f"SELECT k, {columns} FROM records GROUP BY k"))

    assert {sql: actual.get(f"c{n}") for n, (sql, _) in enumerate(GRADED)} == dict(GRADED)


@pytest.mark.usefixtures("records")
def test_what_of_a_query_depends_on_the_order_of_rows(spark: SparkSession) -> None:
    assert {query: found_in(spark.sql(query)) for query in QUERIES} == QUERIES


AGGREGATES = {
    "round(avg(id))": ("sum(id) / count(id)", "round(sum(id) / count(id))"),
    "round(avg(DISTINCT id) FILTER (WHERE i > 1))": (
        "sum(id) / count(id)",
        "round(sum(DISTINCT id) FILTER (WHERE i > 1) / count(DISTINCT id) FILTER (WHERE i > 1))",
    ),
    "round(sum(x), 2)": ("CAST(x AS DECIMAL(28, 6))", "round(sum(CAST(x AS DECIMAL(28, 6))), 2)"),
}
NUMBERED = (
    "SELECT k, x FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY at{}) AS r"
    " FROM records) WHERE r = 1"
)
LAGGING = "SELECT k, x, lag(i) OVER (PARTITION BY k ORDER BY at{}) AS l FROM records"


@pytest.mark.usefixtures("records")
def test_what_a_refusal_says_to_write_is_accepted(spark: SparkSession) -> None:
    for refused, (remedy, written) in AGGREGATES.items():
        (cause,) = examine(plan_of(spark.sql(f"SELECT {refused} AS c FROM records"))).values()
        assert remedy in cause.remedy
        assert found_in(spark.sql(f"SELECT {written} AS c FROM records")) == {}
    for query in (NUMBERED, LAGGING):
        (cause,) = examine(plan_of(spark.sql(query.format("")))).values()
        assert "ORDER BY" in cause.remedy
        added = cause.remedy.rpartition(": ")[2]
        assert found_in(spark.sql(query.format(f", {added}"))) == {}
    # Of no rows both are NULL, and nothing is divided by zero.
    empty = "SELECT sum(id) / count(id) AS mean FROM (SELECT CAST(NULL AS BIGINT) AS id)"
    assert spark.sql(empty).collect()[0]["mean"] is None


def test_what_of_a_function_depends_on_the_order_of_rows(records: DataFrame) -> None:
    by_k = records.groupBy("k").agg(F.sum("x").alias("x"), F.first("s").alias("s"))
    assert found_in(by_k) == {"x": Grade.LAST_DIGITS, "s": Grade.VALUE}
    assert found_in(by_k.join(records.select("k", "i"), "k").select("k", "i")) == {}
    once = records.dropDuplicates(["k"])
    assert set(found_in(once)) == set(records.columns) - {"k"}
    assert found_in(once.select("k")) == found_in(records.dropDuplicates()) == {}
    assert found_in(records.repartition(3).sortWithinPartitions("x")) == {}


# All that is accepted, in one query.
ACCEPTED = f"""SELECT k, {", ".join(f"{sql} AS c{n}" for n, sql in enumerate((*SURE, *CLOSE)))}
    FROM records GROUP BY k"""
VALUES = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 5),
        st.floats(-1e3, 1e3),
        st.sampled_from("abc"),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=60,
)


def side_of(frame: DataFrame) -> Side:
    """Rows in one cell, of which k is the key."""
    view = table_view(frame, Shape(None, (), tuple(frame.columns)), TimeType.of(t=Kind.BIGINT))
    return Side(view, frame.schema.fields, frame.schema.fields[:1])


def rows_apart(wanted: DataFrame, found: DataFrame, close: FloatTolerance) -> dict[str, int]:
    """How many rows differ, as an audit counts them."""
    sides = side_of(wanted), side_of(found)
    joined = cells.gather(
        {
            name: cells.view_cells(side.view, {"h": side.fields})
            for name, side in zip(("a", "b"), sides, strict=True)
        }
    )
    bad = joined.where(cells.differs("a", "b"))
    with exceeding(*sides, bad, bad.count(), close) as apart:
        if not apart.count:
            return {}
        found_rows = row_differences(apart.expected, apart.actual, apart.cells, 5)
        assert len(found_rows.findings) == min(5, sum(found_rows.totals.values()))
        return {kind: n for kind, n in found_rows.totals.items() if n}


@pytest.mark.nightly
@settings(max_examples=5, deadline=None)
@given(values=VALUES, parts=st.tuples(*[st.integers(1, 7)] * 2), seed=st.integers(0, 99))
def test_what_is_accepted_is_the_same_of_any_layout(
    spark: SparkSession,
    values: list[tuple[int, int, float, str, int]],
    parts: tuple[int, int],
    seed: int,
) -> None:
    numbered = [(n, *item) for n, item in enumerate(values)]
    rows = spark.createDataFrame(numbered, "id BIGINT, k INT, i INT, x DOUBLE, s STRING, t INT")
    rows = rows.selectExpr("*", "timestamp_seconds(t) AS at")
    outputs = []
    for number, order in zip(parts, (F.col("id"), F.rand(seed)), strict=True):
        rows.orderBy(order).repartition(number).createOrReplaceTempView("records")
        outputs.append(spark.sql(ACCEPTED))
    causes = examine(plan_of(outputs[0]))
    assert {cause.grade for cause in causes.values()} == {Grade.LAST_DIGITS}
    assert "" not in causes
    assert rows_apart(*outputs, FloatTolerance(tuple(causes), 1e-9)) == {}


def test_values_are_close_up_to_the_tolerance_and_no_further(spark: SparkSession) -> None:
    columns = "k INT, x DOUBLE, y DOUBLE"
    nan, inf = float("nan"), float("inf")
    there = [(1, 1e6, nan), (1, 2.0, None), (2, 0.0, inf), (3, -5.0, 1.0)]
    there += [(k, 1.0, 1.0) for k in range(4, 9)]
    expected = spark.createDataFrame(there, columns)
    close = FloatTolerance(("x", "y"), 1e-9)

    def apart(*changed: tuple[object, ...]) -> dict[str, int]:
        return rows_apart(expected, spark.createDataFrame(list(changed), columns), close)

    near = [(1, 2.0 + 1e-10, None), (1, 1e6 + 1e-4, nan), (2, 1e-10, inf), (3, -5.0 - 4e-9, 1.0)]
    assert apart(*near, *there[4:]) == {}
    # The key is not compared closely; what has too few rows, too many, or others is told alone.
    others = [(4, 1.0 + 2e-9, 1.0), (5, inf, 1.0), (6, 1.0, None), (7, 1.0, 1.0), (7, 1.0, 1.0)]
    assert apart(*near, *others, (9, 1.0, 1.0)) == {"changed": 3, "missing": 1, "extra": 2}
    assert rows_apart(expected, expected.where("k <> 2"), FloatTolerance()) == {"missing": 1}


def by_day(name: str, columns: str, **fields: object) -> Transform:
    """Rows per day and eighth of the rows."""
    return Transform(
        name=name,
        sql=f"SELECT date_trunc('DAY', _time.event) AS day, id % 8 AS part, {columns} "
        "FROM records GROUP BY 1, 2",
        time="day",
        grain="1 day",
        keys=("part",),
        **fields,  # type: ignore[arg-type]
    )


REVENUE = "sum(amount / 7D) AS revenue, avg(amount / 7D) AS mean"
REFUSED = {
    "first": ("first(note) AS note", "first(note)", "max_by"),
    "listed": ("collect_list(note) AS notes", "collect_list(note)", "sort_array"),
    "rounded": ("round(sum(amount / 7D), 2) AS revenue", "round(sum(", "DECIMAL"),
    "in a struct": ("struct(sum(amount / 7D) AS r) AS revenue", "DOUBLE column", "DECIMAL"),
}


def numbered(records: DataFrame) -> DataFrame:
    """Wrong: rows with their number as they come, which no plan of Spark shows."""

    def number(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = itertools.count()
        for batch in batches:
            counted = [next(numbers) for _ in range(batch.num_rows)]
            yield batch.append_column("number", pa.array(counted, pa.int64()))

    rows = records.select(F.col("_time.event").alias("time"), "id")
    return rows.mapInArrow(number, "time TIMESTAMP, id BIGINT, number BIGINT")


def sampled(records: DataFrame) -> DataFrame:
    """Wrong: half of the rows, chosen by their place in a partition."""
    return records.sample(0.5, seed=7).select(F.col("_time.event").alias("time"), "id")


# What planning lets through, as Spark's plan does not show it, or the data decide.
UNSEEN = (
    by_day("tied", "max_by(id, amount) AS best"),
    by_day("compared", "array_sort(collect_list(id), (a, b) -> 0) AS ids"),
    by_day("in_part", "listagg(CAST(id AS STRING)) WITHIN GROUP (ORDER BY amount) AS ids"),
    Transform(
        name="limited", sql="SELECT _time.event AS time, id FROM records LIMIT 99", time="time"
    ),
    Transform(name="sampled", function="tests.spark.test_ordered:sampled", time="time"),
    Transform(
        name="numbered", function="tests.spark.test_ordered:numbered", time="time", keys=("id",)
    ),
)


@pytest.fixture(scope="module")
def play(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Play:
    folder = tmp_path_factory.mktemp("ordered")
    lateness = EventTime(column="at", every=HOUR, lateness=10 * DAY)
    stream, lake = little_stream(folder / "source", time=lateness), Lake.at(folder / "lake")
    # Each file has rows of all days, so that compaction brings them into another order.
    for number in range(6):
        lay(folder / "source", str(number), rows(range(number, 3000, 6), step=HOUR / 30))
        capture(spark, lake, stream)
    close(spark, lake, NAME)
    transforms = (
        by_day("revenue", REVENUE),
        by_day("exact", REVENUE, tolerance=0),
        *(by_day(name.replace(" ", "_"), sql) for name, (sql, _, _) in REFUSED.items()),
        *UNSEEN,
    )
    return Play(spark, lake, declared(stream, transforms))


@pytest.mark.parametrize("name", REFUSED)
def test_uncomparable_outputs_are_refused_before_writing(play: Play, name: str) -> None:
    _, text, remedy = REFUSED[name]
    requested = {"transform": name.replace(" ", "_")}

    with pytest.raises(InvalidRequestError) as caught:
        play("refused", **requested)
    plan = make_plan(play.lake, play.declarations, play.request("refused", **requested))
    with pytest.raises(InvalidRequestError) as planned:
        difference(play.spark, plan)

    assert caught.value.code == planned.value.code == "CAP-ORDERED"
    assert text in caught.value.message
    assert remedy in caught.value.hint
    assert caught.value.fields["columns"] == [REFUSED[name][0].rsplit(" ", 1)[-1]]
    assert play.version("refused") is None
    assert not claims.active(play.lake)


def test_with_a_tolerance_of_zero_sums_of_floats_are_refused(play: Play) -> None:
    with pytest.raises(InvalidRequestError, match="tolerance is 0") as caught:
        play("refused", transform="exact")
    assert caught.value.code == "CAP-ORDERED"


def test_a_run_of_before_is_audited_with_rows_and_taken_back(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(attempt, "require_comparable", lambda *_: None)
        patched.setattr(rows_of_output, "in_another_order", lambda records: records)
        run = play.run("before", transform="first")

    audit = audit_run(play.spark, play.lake, play.declarations, read_history(play.lake, run)).audit

    assert not audit.passed
    assert audit.totals["changed"] >= audit.differing > 0  # A cell has several rows.
    assert all(row.expected != row.actual for row in audit.findings)
    assert (audit.near.columns, audit.near.unsure) == ((), ("note",))
    assert play("before", transform="first").unchanged
    play.rollback(run)
    assert play.rows("before").is_empty()


@pytest.mark.parametrize("transform", UNSEEN, ids=lambda each: each.name)
def test_dependence_that_planning_does_not_see_fails_the_audit(
    play: Play, transform: Transform
) -> None:
    with pytest.raises(CheckFailedError, match="transform audit") as caught:
        play(transform.name, transform=transform.name)

    assert caught.value.code == "CAP-AUDIT"
    assert play.rows(transform.name).is_empty()
    differing = {kind for kind, count in caught.value.fields["totals"].items() if count}
    shown = read_rows(play.lake, "findings", target=play.lake.table(transform.name))
    assert differing == {row["kind"] for row in shown}
    assert differing == {"changed"} if transform.keys else differing
    assert any(row["sample"] and json.loads(row["sample"]) for row in shown)


@pytest.mark.nightly
def test_sums_of_floats_pass_their_audit_after_maintenance(play: Play) -> None:
    run = play.run("revenue", transform="revenue")
    records = Path(open_tape(play.lake, NAME).paths.records)
    before = set(records.glob("*.parquet"))

    maintain(play.spark, play.lake, [NAME])

    assert len(set(records.glob("*.parquet")) - before) == 1
    # By its fingerprints alone it would fail.
    assert audited(play, run) == (True, {})
    plan = make_plan(play.lake, play.declarations, play.request("revenue", transform="revenue"))
    assert difference(play.spark, plan).differing == 0
    # What is another value is found all the same, and it alone.
    changed = "UPDATE {table} SET mean = mean * 1.000001 WHERE part = 3 AND day = '2024-05-02'"
    play.sql(changed, "revenue")
    actual = difference(play.spark, plan)
    assert (actual.changed, actual.differing) == (1, 1)
    assert [set(finding.actual or {}) for finding in actual.findings] == [
        {"day", "part", "revenue", "mean"}
    ]
    assert audited(play, run) == (False, {"changed": 1})


def audited(play: Play, run: str) -> tuple[bool, dict[str, int]]:
    """Whether a run's audit passes, and what differs; a tolerance has to be used in any case."""
    history = read_history(play.lake, run)
    audit = audit_run(play.spark, play.lake, play.declarations, history).audit
    assert audit.near.columns == ("revenue", "mean")
    assert audit.near.cells
    return audit.passed, {kind: count for kind, count in audit.totals.items() if count}
