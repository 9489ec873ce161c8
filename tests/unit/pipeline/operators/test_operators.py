"""Built-in operators: what they refuse, and what the laws do not reach."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from capstan.pipeline import END, TIME, DagBuilder, DagExecutor, Event, OutputKey, OutputKind
from capstan.pipeline.graph.arrow_ipc import tables_from_bytes, tables_to_bytes
from capstan.pipeline.graph.errors import OperatorFailed, SchemaMismatch
from capstan.pipeline.operators import (
    Deduplicate,
    Filter,
    IntervalJoin,
    MapBatch,
    Project,
    SessionWindow,
    Sql,
    SqlWindow,
    TopN,
    Window,
    WindowJoin,
    count_distinct,
    count_rows,
    first_of,
    last_of,
    mean_of,
    min_of,
    sum_of,
)

BIDS = pa.schema([("auction", pa.int64()), ("price", pa.int64()), ("fee", pa.float64())])
TIMED = BIDS.append(pa.field(TIME, pa.int64()))


def graph(spec, *schemas):
    builder = DagBuilder()
    for number, schema in enumerate(schemas):
        builder.source(f"s{number}", schema)
    declare = builder.stateless_operator if spec.key is None else builder.operator
    declare("op", spec)
    for number, _ in enumerate(schemas):
        builder.connect(f"s{number}", "op")
    return builder.sink_for("op", "out").build()


def came_out(spec, *batches, schema=None, watermark=END):
    """The rows that come of batches, each with its time, as dictionaries, with the event's."""
    executor = DagExecutor.from_dag(graph(spec, schema or batches[0][1].schema))
    for time, batch in batches:
        executor.process_event("s0", Event(time, batch))
    executor.process_watermark("s0", watermark)
    return [(e.time, row) for e in executor.take_sink_outputs("out") for row in e.batch.to_pylist()]


def bids(*rows):
    columns = zip(*rows, strict=True)
    return pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(columns, BIDS, strict=False)]
        + [pa.nulls(len(rows), pa.float64())],
        schema=BIDS,
    )


@pytest.mark.parametrize(
    ("spec", "schemas", "reason"),
    [
        (Window.tumbling(5, [sum_of("gate")]), [BIDS], "no column gate"),
        (
            Window.tumbling(5, [sum_of("name")]),
            [pa.schema([("name", pa.string())])],
            "which has no sum",
        ),
        (Window.tumbling(5, []), [BIDS], "no aggregates"),
        (
            Window.tumbling(5, [count_rows("n"), sum_of("price", "n")]),
            [BIDS],
            "duplicate output columns n",
        ),
        (Window.tumbling(5, [count_rows()]), [pa.schema([])], "columns of its input are unknown"),
        (
            Window.tumbling(5, [count_rows()]),
            [BIDS.append(pa.field(TIME, pa.int32()))],
            "_time has the type int32",
        ),
        (
            Window.tumbling(5, [first_of("tags")]),
            [pa.schema([("tags", pa.list_(pa.int64()))])],
            "cannot be ordered by tags",
        ),
        (
            TopN(1, (("tags", "ascending"),)),
            [pa.schema([("tags", pa.list_(pa.int64()))])],
            "cannot be ordered by tags",
        ),
        (
            Deduplicate(("id",)),
            [pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])],
            "cannot be ordered by tags",
        ),
        (TopN(1, (("gate", "ascending"),)), [BIDS], "no column gate"),
        (TopN(1, (("price", "ascending"),), rank="fee"), [BIDS], "duplicate output columns fee"),
        (Deduplicate(("gate",)), [BIDS], "no key column gate"),
        (
            WindowJoin(("auction",), ("auction",), 5),
            [BIDS, BIDS],
            "duplicate output columns fee, price",
        ),
        (IntervalJoin(("auction",), ("price",), 0, 1), [BIDS], "1 inputs"),
        (Filter(pc.field("gate") > 1), [BIDS], "cannot handle its input"),
        (Project({"price": "gate"}), [BIDS], "no column gate"),
        (MapBatch(lambda batch: batch.select(["price"])), [TIMED], "drops that column"),
        (MapBatch(lambda batch: 1 / 0), [BIDS], "ZeroDivisionError"),
        (Sql("SELECT price FROM input"), [TIMED], "does not select it"),
        (Sql("SELECT sum(price) AS s FROM input"), [BIDS], "does not process one row at a time"),
        (Sql("SELECT price FROM input ORDER BY 1"), [BIDS], "ORDER"),
        (Sql("SELECT price FROM input LIMIT 1"), [BIDS], "LIMIT"),
        (Sql("SELECT DISTINCT price FROM input"), [BIDS], "HASH_GROUP_BY"),
        (Sql("SELECT row_number() OVER () AS n FROM input"), [BIDS], "WINDOW"),
        (Sql("SELECT a.price FROM input a JOIN input b USING (auction)"), [BIDS], "JOIN"),
        (Sql("SELECT random() AS r FROM input"), [BIDS], "random has no fixed value"),
        (Sql("SELECT now() AS r FROM input"), [BIDS], "now has no fixed value"),
        (Sql("SELECT CURRENT_TIMESTAMP AS r FROM input"), [BIDS], "has no fixed value"),
        (Sql("SELECT error('no') AS r FROM input"), [BIDS], "error has no fixed value"),
        (Sql("SELECT * FROM read_csv('/etc/passwd')"), [BIDS], "read_csv has no fixed value"),
        (Sql("SELECT * FROM '/etc/passwd.csv'"), [BIDS], "no table /etc/passwd.csv"),
        (Sql("SELECT * FROM duckdb_settings"), [BIDS], "no table duckdb_settings"),
        (Sql("SELECT 1 AS a; SELECT 2 AS b"), [BIDS], "not one SELECT"),
        (Sql("DROP TABLE input"), [BIDS], "not one SELECT"),
        (Sql("SELEC"), [BIDS], "not one SELECT"),
        (Sql("SELECT gate FROM input"), [BIDS], "gate"),
        (SqlWindow("SELECT 1 AS _time FROM input", 5), [TIMED], "_time"),
    ],
)
def test_mismatched_columns_are_refused_by_the_build(spec, schemas, reason):
    with pytest.raises(SchemaMismatch) as caught:
        graph(spec, *schemas)
    assert reason in caught.value.fields["reason"]


MOMENTS = pa.schema([("moment", pa.timestamp("us")), ("name", pa.string()), ("number", pa.int64())])


@pytest.mark.parametrize(
    "value",
    [
        "current_localtimestamp()",
        "Current_LocalTime()",
        "ago(INTERVAL 1 DAY)",
        "main.ago(INTERVAL 1 DAY)",
        "age(moment)",
        "pg_postmaster_start_time()",
        "pg_conf_load_time()",
        "pg_sleep(1)",
        "json_serialize_plan('SELECT now()', optimize := true)",
        "list_transform([number], lambda x: age(moment))",
        "TIMETZ '10:00:00+00' AT TIME ZONE 'Australia/Sydney'",
        "timezone('Australia/Sydney', CAST(name AS TIME WITH TIME ZONE))",
    ],
)
@pytest.mark.parametrize("make", [Sql, lambda query: SqlWindow(query, 5)], ids=["row", "window"])
def test_sql_that_depends_on_the_clock_is_refused(make, value):
    with pytest.raises(SchemaMismatch, match="has no fixed value"):
        graph(make(f"SELECT {value} AS made FROM input"), MOMENTS)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT number FROM input USING SAMPLE 2 ROWS",
        "SELECT number FROM input TABLESAMPLE 10%",
        "SELECT n FROM (SELECT count(*) AS n FROM input TABLESAMPLE reservoir(2 ROWS)) AS s",
        "WITH few AS (SELECT * FROM input USING SAMPLE 2) SELECT number FROM few",
    ],
)
def test_sql_over_a_sample_is_refused(query):
    with pytest.raises(SchemaMismatch, match="a sample has no fixed value"):
        graph(SqlWindow(query, 5), MOMENTS)


@pytest.mark.parametrize(
    "value",
    [
        "age(moment, TIMESTAMP '2024-01-01')",
        "split_part(name, ',', 1)",
        "nullif(number, 1)",
        "list_sum([number])",
        "date_add(moment, INTERVAL 1 DAY)",
        "json(name)",
        "assert_true(number > 0)",
        "moment AT TIME ZONE 'Australia/Sydney'",
        "CAST(name AS TIME WITH TIME ZONE)",
    ],
)
def test_sql_of_fixed_values_is_taken(value):
    graph(Sql(f"SELECT {value} AS made FROM input"), MOMENTS)
    graph(
        SqlWindow(f"SELECT json_group_object(name, number) AS m, max({value}) AS v FROM input", 5),
        MOMENTS,
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: Window.sliding(5, 6, [count_rows()]),
        lambda: Window.sliding(5, 0, [count_rows()]),
        lambda: SessionWindow(0, (count_rows(),)),
        lambda: TopN(0, (("price", "ascending"),)),
        lambda: TopN(1, ()),
        lambda: TopN(1, (("price", "ascending"),), window=0),
        lambda: Deduplicate(("price",), within=0),
        lambda: IntervalJoin(("a",), ("b",), 2, 1),
        lambda: IntervalJoin(("a",), ("b",), 0, 1, how="semi"),
        lambda: WindowJoin(("a",), ("b",), 0),
        lambda: WindowJoin(("a", "b"), ("b",), 5),
        lambda: WindowJoin(("a",), ("b",), 5, how="anti"),
        lambda: SqlWindow("SELECT 1", 0),
    ],
)
def test_invalid_arguments_are_refused_at_once(make):
    with pytest.raises(ValueError):
        make()


def test_sums_of_integers_never_wrap_around():
    big = 2**62
    window = Window.tumbling(10, [sum_of("price"), mean_of("price")], by=["auction"])
    fits = came_out(window, (1, bids((1, big), (1, big), (1, -big))))
    assert fits[0][1]["sum_price"] == big
    with pytest.raises(OperatorFailed, match="op failed"):
        came_out(window, (1, bids((1, big), (1, big))))
    with pytest.raises(OperatorFailed, match="op failed"):
        came_out(window, (1, bids((1, big))), (2, bids((1, big))))


def test_decimals_and_small_integers_are_summed_exactly():
    batch = pa.record_batch(
        {
            "cost": pa.array([Decimal("0.10"), Decimal("0.20")], pa.decimal128(5, 2)),
            "small": pa.array([100, 100], pa.int8()),
            "unsigned": pa.array([2**64 - 1, 0], pa.uint64()),
        }
    )
    aggregates = [sum_of("cost"), sum_of("small"), sum_of("unsigned"), mean_of("cost")]
    ((_, row),) = came_out(Window.tumbling(10, aggregates), (1, batch))
    assert row["sum_cost"] == Decimal("0.30")
    assert row["sum_small"] == 200
    assert row["sum_unsigned"] == 2**64 - 1
    assert row["mean_cost"] == 0.15


def test_first_and_last_of_any_ordered_type_and_of_null():
    batch = pa.record_batch({"day": pa.array([None, 7], pa.date32()), "n": pa.array([2, 1])})
    aggregates = [first_of("day", "a"), last_of("day", "z"), count_distinct("day", "d")]
    window = Window.tumbling(10, aggregates, ties=["n"])
    ((_, row),) = came_out(window, (1, batch))
    assert [row["a"].isoformat(), row["z"], row["d"]] == ["1970-01-08", None, 1]


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.date32()])
def test_bounds_have_the_type_that_was_asked_for(kind):
    window = Window.tumbling(timedelta(microseconds=10), [count_rows()], bounds=kind)
    ((time, row),) = came_out(window, (13, bids((1, 1))))
    assert time == 19
    bounds = pa.array([row["window_start"], row["window_end"]], kind)
    assert bounds.cast(pa.int32() if kind == pa.date32() else pa.int64()).to_pylist() == [10, 20]


def test_windows_before_time_zero():
    batch = bids((1, 1), (1, 2)).append_column(TIME, pa.array([-1, -10]))
    window = Window.tumbling(10, [sum_of("price")])
    assert [
        (row["window_start"], row["sum_price"]) for _, row in came_out(window, (-10, batch))
    ] == [(-10, 3)]


def test_times_at_the_end_of_64_bits_fail_rather_than_wrap():
    with pytest.raises(OperatorFailed, match="before the limit of 64 bits"):
        came_out(Window.tumbling(10, [count_rows()]), (END - 3, bids((1, 1))))


def test_late_rows_and_rows_without_time_are_diverted_row_by_row():
    executor = DagExecutor.from_dag(graph(Window.tumbling(10, [count_rows("n")]), TIMED))
    executor.process_watermark("s0", 5)
    batch = bids((1, 1), (2, 2), (3, 3)).append_column(TIME, pa.array([4, None, 5]))
    executor.process_event("s0", Event(4, batch))
    executor.process_watermark("s0", END)
    taken = executor.take_all_sink_outputs()
    late = taken[OutputKey("op", OutputKind.LATE)]
    assert [e.batch.column("auction").to_pylist() for e in late] == [[1]]
    lost = taken[OutputKey("op", OutputKind.SIDE, "no-time")]
    assert [e.batch.column("auction").to_pylist() for e in lost] == [[2]]
    (out,) = taken[OutputKey("out")]
    assert out.batch.to_pylist() == [{"window_start": 0, "window_end": 10, "n": 1, TIME: 9}]


def test_a_window_of_its_own_result_sees_nothing_late():
    builder = DagBuilder().source("s", BIDS)
    builder.operator("fine", Window.tumbling(2, [count_rows("n")])).connect("s", "fine")
    builder.operator("coarse", Window.tumbling(6, [sum_of("n")])).connect("fine", "coarse")
    executor = DagExecutor.from_dag(builder.sink_for("coarse", "out").build())
    for time in range(12):
        executor.process_event("s", Event(time, bids((1, 1))))
    executor.process_watermark("s", 12)
    outputs = executor.take_sink_outputs("out")
    assert [(e.time, e.batch.column("sum_n").to_pylist()) for e in outputs] == [(5, [6]), (11, [6])]
    assert executor.node_metrics("coarse").late_rows == 0


def test_of_equal_rows_the_one_with_the_least_values_is_first():
    top = TopN(1, (("price", "descending"),), rank="rank")
    for order in ([(9, 5), (3, 5), (4, 1)], [(4, 1), (3, 5), (9, 5)]):
        ((_, row),) = came_out(top, (1, bids(*order)))
        assert (row["auction"], row["rank"]) == (3, 1)


def test_ranks_with_ties():
    top = TopN(2, (("price", "descending"),), window=10, with_ties=True, rank="rank")
    rows = came_out(top, (1, bids((1, 5), (2, 5), (3, 4), (4, 9))))
    assert [(row["auction"], row["rank"]) for _, row in rows] == [(4, 1), (1, 2), (2, 2)]
    assert {time for time, _ in rows} == {9}


def test_null_keys_join_nothing_and_are_one_group():
    batch = bids((None, 1), (None, 2))
    dag = graph(WindowJoin(("auction",), ("auction",), 5, how="left", prefix="r_"), BIDS, BIDS)
    executor = DagExecutor.from_dag(dag)
    executor.process_event("s0", Event(1, batch))
    executor.process_event("s1", Event(1, batch))
    executor.finish()
    actual = [row for e in executor.take_sink_outputs("out") for row in e.batch.to_pylist()]
    assert [(row["price"], row["r_price"]) for row in actual] == [(1, None), (2, None)]
    assert len(came_out(Window.tumbling(5, [count_rows()], by=["auction"]), (1, batch))) == 1
    assert len(came_out(Deduplicate(("auction",)), (1, batch), (2, batch))) == 1


def test_state_does_not_grow_with_rows_where_parts_do(monkeypatch):
    monkeypatch.setattr("capstan.pipeline.operators.windows._COMPACT", 8)
    monkeypatch.setattr("capstan.pipeline.operators.top_n._COMPACT", 8)
    for spec, limit in (
        (Window.tumbling(100, [sum_of("price"), min_of("fee")], by=["auction"]), 5_000),
        (TopN(2, (("price", "descending"),), by=("auction",)), 5_000),
    ):
        executor = DagExecutor.from_dag(graph(spec, BIDS))
        for time in range(100):
            executor.process_event("s0", Event(time, bids(*[(n % 2, n * time) for n in range(40)])))
        assert len(executor.checkpoint().operators["op"].data) < limit
        executor.finish()
        rows = [row for e in executor.take_sink_outputs("out") for row in e.batch.to_pylist()]
        if isinstance(spec, TopN):
            assert sorted(row["price"] for row in rows) == sorted(
                n * time for n in (38, 39) for time in (98, 99)
            )
        else:
            sums = [sum(n * t for t in range(100) for n in range(40) if n % 2 == k) for k in (0, 1)]
            assert [row["sum_price"] for row in rows] == sums


def test_sql_over_several_inputs():
    query = (
        "WITH best AS (SELECT auction, max(price) AS price FROM bids GROUP BY auction) "
        "SELECT b.auction, b.price, o.price AS reserve FROM best b JOIN openings o USING (auction) "
        "ORDER BY 1"
    )
    spec = SqlWindow(query, 10, by=("auction",), tables=("bids", "openings"))
    executor = DagExecutor.from_dag(graph(spec, BIDS, BIDS))
    executor.process_event("s0", Event(1, bids((1, 5), (1, 7), (2, 3))))
    executor.process_event("s1", Event(2, bids((1, 6))))
    executor.finish()
    (out,) = executor.take_sink_outputs("out")
    assert out.time == 9
    assert out.batch.to_pylist() == [{"auction": 1, "price": 7, "reserve": 6}]


def test_a_state_of_another_version_is_refused():
    for spec in (
        Window.tumbling(5, [count_rows()]),
        SessionWindow(5, (count_rows(),)),
        Deduplicate(("auction",)),
        TopN(1, (("price", "ascending"),)),
        SqlWindow("SELECT 1 AS one FROM input", 5),
    ):
        operator = spec.create([BIDS])
        with pytest.raises(ValueError, match="version 3"):
            operator.restore(3, operator.checkpoint())


def test_a_session_is_one_row_of_state_however_long():
    dag = graph(SessionWindow(2, (count_rows("n"),), by=("auction",)), BIDS)
    executor = DagExecutor.from_dag(dag)
    for time in range(100):
        executor.process_watermark("s0", time)
        executor.process_event("s0", Event(time, bids((1, 5), (2, 5))))
    (kept,) = tables_from_bytes(executor.checkpoint().nodes["op"].state.data)
    assert kept.num_rows == 2
    executor.finish()
    actual = [row for e in executor.take_sink_outputs("out") for row in e.batch.to_pylist()]
    assert [(row["auction"], row["window_end"], row["n"]) for row in actual] == [
        (1, 101, 100),
        (2, 101, 100),
    ]


def test_a_row_within_a_session_that_is_known_ends_it_no_sooner():
    dag = graph(SessionWindow(4, (count_rows("n"),), by=("auction",)), BIDS)
    executor = DagExecutor.from_dag(dag)
    for time in (1, 4, 7):
        executor.process_event("s0", Event(time, bids((1, 5))))
    executor.checkpoint()  # Which makes one stretch of them.
    for time in (2, 10):
        executor.process_event("s0", Event(time, bids((1, 5))))
    executor.finish()
    (row,) = [row for e in executor.take_sink_outputs("out") for row in e.batch.to_pylist()]
    assert (row["window_start"], row["window_end"], row["n"]) == (1, 14, 5)


def test_sessions_go_on_from_a_state_of_version_1():
    dag = graph(SessionWindow(5, (count_rows("n"),), by=("auction",)), BIDS)
    rows = pa.table({"auction": pa.array([1, 1, 2], pa.int64()), "_time": [1, 4, 2]})
    executor = DagExecutor.from_dag(dag)
    known = executor.checkpoint()
    node = known.nodes["op"]
    state = replace(node.state, version=1, data=tables_to_bytes([rows]), signature=None)
    executor.restore(replace(known, nodes={**known.nodes, "op": replace(node, state=state)}))
    executor.process_event("s0", Event(8, bids((1, 5))))
    executor.finish()
    actual = [row for e in executor.take_sink_outputs("out") for row in e.batch.to_pylist()]
    assert sorted((row["auction"], row["window_end"], row["n"]) for row in actual) == [
        (1, 13, 3),
        (2, 7, 1),
    ]


def test_long_batches_keep_the_order_of_their_rows():
    batch = pa.record_batch({"n": pa.array(range(300_000))})
    executor = DagExecutor.from_dag(graph(Filter(pc.field("n") > 9), batch.schema))
    executor.process_event("s0", Event(1, batch))
    (out,) = executor.take_sink_outputs("out")
    assert out.batch.column("n").equals(batch.column("n").slice(10))


def test_rows_that_are_kept_to_the_end_hold_back_the_watermark():
    executor = DagExecutor.from_dag(graph(TopN(1, (("price", "ascending"),)), BIDS))
    executor.process_event("s0", Event(3, bids((1, 1))))
    executor.process_watermark("s0", 10)
    assert (executor.watermark("op"), executor.watermark("out")) == (10, 3)
    executor.finish()
    (out,) = executor.take_sink_outputs("out")
    assert (out.time, executor.watermark("out")) == (3, END)


def test_zeros_are_ordered_by_their_bits():
    zeros = pa.record_batch({"key": [1, 1], "zero": [0.0, -0.0]})
    for batch in (zeros, zeros.take(pa.array([1, 0]))):
        window = Window.tumbling(10, [first_of("zero"), min_of("zero")], by=["key"])
        ((_, row),) = came_out(window, (1, batch))
        assert repr(row) == (
            "{'key': 1, 'window_start': 0, 'window_end': 10, 'first_zero': -0.0, 'min_zero': 0.0}"
        )


def test_sessions_at_both_ends_of_time_are_two():
    dag = graph(SessionWindow(10, (count_rows("n"),), by=("auction",)), TIMED)
    executor = DagExecutor.from_dag(dag)
    times = [-(2**63), -(2**63) + 9, 12, 20, 21, 2**63 - 20]
    rows = pa.table({"auction": [1] * 6, "price": [5] * 6, "fee": [1.0] * 6, TIME: times})
    executor.process_event("s0", Event(-(2**63), rows.to_batches()[0]))
    executor.finish()
    actual = [row for e in executor.take_sink_outputs("out") for row in e.batch.to_pylist()]
    assert [(row["window_start"], row["window_end"], row["n"]) for row in actual] == [
        (-(2**63), -(2**63) + 19, 2),
        (12, 31, 3),
        (2**63 - 20, 2**63 - 10, 1),
    ]


def test_a_row_at_the_end_of_times_is_refused_rather_than_lost():
    with pytest.raises(OperatorFailed, match="before the limit of 64 bits"):
        came_out(Deduplicate(("auction",)), (END, bids((1, 5))))
    assert len(came_out(Deduplicate(("auction",)), (END - 1, bids((1, 5))))) == 1
