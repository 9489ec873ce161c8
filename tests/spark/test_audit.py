"""Audits of copies, of some columns and of transforms: passing, and failing in every way."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DecimalType, StringType, StructType

from capstan.audit import (
    Audit,
    AuditScope,
    Computed,
    audit_computed,
    audit_copy,
    played_records,
    shape_of,
)
from capstan.audit.cells import compare, promised_cells, view_cells
from capstan.audit.row_view import table_view
from capstan.audit.table_shape import Shape
from capstan.core.sql_names import quoted
from capstan.core.times import Antichain, Box, Kind, Time, TimeType
from capstan.core.times.region import Region
from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.tape.fingerprint import fingerprint, row_hashes
from capstan.storage.tape.region_sql import region_sql
from capstan.storage.tape.schema import WORKERS, events_schema
from capstan.storage.tape.settings import TapeSettings
from capstan.storage.tape.tape import (
    Cut,
    Tape,
    append_events,
    create_tape,
    newest_cut,
    stored_payload,
)

Change = Callable[[DataFrame], DataFrame]

HOUR = 3_600_000_000
EVENT = TimeType.of(event=Kind.TIMESTAMP)
KNOWN = TimeType.of(epoch=Kind.BIGINT, event=Kind.DATE)
WORKER_LABELS = {0: "EWR", 1: "JFK's", 2: "LG`A"}
# Names as people have them; every column but the first is null in most rows.
PAYLOAD = (
    StructType()
    .add("id", "integer")
    .add("o'brien", "string")
    .add("tick`s", "long")
    .add("a.b", "double")
    .add("fare", DecimalType(10, 2))
    .add("at", "timestamp")
    .add("tags", ArrayType(StringType()))
    .add("select", StructType().add("x", "integer").add("y", "string"))
)


@dataclass(frozen=True, slots=True)
class Made:
    """A tape, its newest cut and its workers."""

    spark: SparkSession
    tape: Tape
    cut: Cut
    workers: Mapping[int, str]

    @property
    def region(self) -> Region:
        """All times."""
        return Region(Box.everything(self.tape.time_type))

    def played(self) -> DataFrame:
        """What a copy target should hold."""
        return played_records(self.spark, self.tape, self.cut, self.workers, self.region)


def make_tape(
    spark: SparkSession,
    lake: Lake,
    name: str,
    time_type: TimeType,
    payload: StructType,
    rows: DataFrame,
    *,
    workers: Mapping[int, str],
    stored: DataFrame | None = None,
) -> Made:
    """Make a tape of `rows` in two commits, one per batch.

    Args:
        spark: The session.
        lake: Where.
        name: The stream's name.
        time_type: The coordinates.
        payload: The stream's own columns.
        rows: `worker INT, batch BIGINT, time STRUCT, data STRUCT`, batches 0 and 1.
        workers: Labels by number.
        stored: What `records` holds instead of `rows`: a tape that was tampered with.
    """
    tape = create_tape(spark, lake, name, time_type, payload, TapeSettings())
    labels = [(worker, label, 0) for worker, label in workers.items()]
    delta.append(spark.createDataFrame(labels, WORKERS), tape.paths.workers)
    held = (rows if stored is None else stored).withColumn("pos", F.monotonically_increasing_id())
    delta.append(held.select("worker", "batch", "time", "pos", "data"), tape.paths.records)
    for commit in (0, 1):
        append_events(tape, _events(rows, tape, payload, commit), commit, {})
    return Made(spark, tape, newest_cut(tape), workers)


def _events(rows: DataFrame, tape: Tape, payload: StructType, commit: int) -> DataFrame:
    h1, h2 = row_hashes(payload.fields, F.col("data"))
    schema = events_schema(tape.time_type)
    messages = (
        rows.where(f"batch = {commit}")
        .select("worker", "batch", "time", h1.alias("h1"), h2.alias("h2"))
        .groupBy("worker", "batch", "time")
        .agg(
            F.count("*").alias("records"),
            fingerprint(F.col("h1"), F.col("h2")).alias("fingerprint"),
        )
    )
    return messages.select(
        "worker",
        F.lit(0).cast("bigint").alias("seq"),
        F.lit("messages").alias("kind"),
        "time",
        F.lit(None).cast(schema["updates"].dataType).alias("updates"),
        "batch",
        F.lit(commit).cast("bigint").alias("commit"),
        "records",
        "fingerprint",
    )


def rows_of(spark: SparkSession, count: int = 24) -> DataFrame:
    """Records of three workers over four hours: `id` 0 to `count`, and the last one twice."""
    made = (
        spark.range(count)
        .union(spark.range(count - 1, count))
        .selectExpr(
            "CAST(id % 3 AS INT) AS worker",
            "id % 2 AS batch",
            f"named_struct('event', timestamp_micros((id % 4) * {HOUR})) AS time",
            "CAST(id AS INT) AS id",
            "IF(id % 5 = 0, concat('it''s ', id), NULL) AS name",
            "IF(id % 6 = 0, id * 10, NULL) AS ticks",
            "IF(id % 7 = 0, id / 8, NULL) AS ab",
            "CAST(IF(id % 4 = 0, id + 0.25, NULL) AS DECIMAL(10, 2)) AS fare",
            "IF(id % 3 = 0, timestamp_micros(id + 1), NULL) AS at",
            "IF(id % 8 = 0, array(NULL, 'x'), NULL) AS tags",
            "IF(id % 9 = 0, named_struct('x', CAST(id AS INT), 'y', 'z'), NULL) AS sel",
        )
    )
    fields = [
        F.col(c).cast(f.dataType).alias(f.name)
        for c, f in zip(made.columns[3:], PAYLOAD, strict=True)
    ]
    return made.select("worker", "batch", "time", F.struct(*fields).alias("data"))


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A sound tape."""
    lake = Lake.at(tmp_path_factory.mktemp("sound"))
    rows = rows_of(spark)
    return make_tape(spark, lake, "flights", EVENT, PAYLOAD, rows, workers=WORKER_LABELS)


@pytest.fixture(scope="module")
def held(made: Made) -> DataFrame:
    """A true copy of the sound tape."""
    return made.played().drop("_label").localCheckpoint()


def altered(frame: DataFrame, row: str = "id = 3", column: str = "tick`s") -> DataFrame:
    value = F.when(F.expr(row), F.lit(77)).otherwise(F.col(quoted(column)))
    return frame.withColumn(column, value.cast(frame.schema[column].dataType))


def dropped(frame: DataFrame, row: str = "id = 3") -> DataFrame:
    return frame.where(f"NOT ({row})")


def doubled(frame: DataFrame, row: str = "id = 3") -> DataFrame:
    return frame.unionByName(frame.where(row))


def to_worker(frame: DataFrame, row: str = "id = 3") -> DataFrame:
    return frame.withColumn("_worker", F.expr(f"IF({row}, 1, _worker)"))


def to_time(frame: DataFrame, row: str = "id = 3") -> DataFrame:
    later = "named_struct('event', _time.event + INTERVAL 1 MICROSECOND)"
    return frame.withColumn("_time", F.expr(f"IF({row}, {later}, _time)"))


# The change, rows by kind, cells that differ.
WAYS: dict[str, tuple[Change, dict[str, int], int]] = {
    "altered": (altered, {"changed": 1}, 1),
    "dropped": (dropped, {"missing": 1}, 1),
    "doubled": (doubled, {"extra": 1}, 1),
    "moved to another worker": (to_worker, {"missing": 1, "extra": 1}, 2),
    "moved to another time": (to_time, {"missing": 1, "extra": 1}, 2),
}


def totals(audit: Audit) -> dict[str, int]:
    return {kind: count for kind, count in audit.totals.items() if count}


def kinds(audit: Audit) -> dict[str, int]:
    """Findings by kind."""
    actual: dict[str, int] = {}
    for finding in audit.findings:
        actual[finding.kind] = actual.get(finding.kind, 0) + 1
    return actual


def copy_of(made: Made, frame: DataFrame, shape: Shape | None = None, limit: int = 20) -> Audit:
    shape = shape or shape_of(frame.schema, made.tape.time_type, payload=PAYLOAD)
    scope = AuditScope(made.spark, made.tape, made.cut, made.workers, made.region, limit)
    return audit_copy(scope, frame, shape)


def test_a_true_copy_passes(made: Made, held: DataFrame) -> None:
    audit = copy_of(made, held)
    assert (audit.kind, audit.passed, audit.cells, audit.differing) == ("copy", True, 12, 0)
    assert audit.records == 25
    assert audit.findings == ()
    audit.require_passed("table march")


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_fails(made: Made, held: DataFrame, way: str) -> None:
    change, expected, cells = WAYS[way]
    audit = copy_of(made, change(held))
    assert (audit.kind, audit.passed, audit.cells >= 12) == ("copy", False, True)
    assert audit.differing == cells
    assert totals(audit) == expected == kinds(audit)
    assert {finding.where for finding in audit.findings} == {"target"}
    rows = [row for f in audit.findings for row in (f.expected, f.actual) if row is not None]
    assert {row["id"] for row in rows} == {3}


def test_findings_say_where_and_what(made: Made, held: DataFrame) -> None:
    audit = copy_of(made, altered(held))
    (actual,) = audit.to_json(EVENT)["findings"]
    assert actual["worker"] == 0
    assert actual["time"] == "1970-01-01T03:00:00.000000Z"
    assert actual["kind"] == "changed"
    assert actual["expected"]["at"] == "1970-01-01T00:00:00.000004Z"
    assert actual["expected"]["tick`s"] is None
    assert actual["actual"]["tick`s"] == 77
    assert json.loads(json.dumps(audit.to_json(EVENT))) == audit.to_json(EVENT)
    with pytest.raises(CheckFailedError) as caught:
        audit.require_passed("table march")
    assert caught.value.code == "CAP-AUDIT"
    assert "table march: 1 of 12 cells differ" in caught.value.message
    assert "worker 0, event 1970-01-01T03:00:00.000000Z" in caught.value.message


def test_altered_times_beyond_calendars_are_reported(made: Made, held: DataFrame) -> None:
    far = f"IF(id = 3, named_struct('event', timestamp_micros({2**62})), _time)"
    audit = copy_of(made, held.withColumn("_time", F.expr(far)))
    assert totals(audit) == {"missing": 1, "extra": 1}
    assert json.dumps(audit.to_json(EVENT))


def test_rows_without_worker_or_time_are_extra(made: Made, held: DataFrame) -> None:
    lost = held.where("id = 3").withColumn("_worker", F.lit(None).cast("int"))
    audit = copy_of(made, held.unionByName(lost))
    assert totals(audit) == {"extra": 1}
    assert audit.findings[0].worker is None


def test_a_row_twice_too_often_is_found_twice(made: Made, held: DataFrame) -> None:
    audit = copy_of(made, doubled(doubled(held, "id = 23"), "id = 23"))
    # It was there twice, and is there eight times.
    assert totals(audit) == {"extra": 6}
    assert kinds(audit) == {"extra": 6}


def test_the_sample_is_bounded_and_the_totals_are_not(made: Made, held: DataFrame) -> None:
    audit = copy_of(made, altered(held, "true", "id"), limit=3)
    assert audit.differing == 12
    assert totals(audit) == {"changed": 25}
    assert kinds(audit) == {"changed": 3}


def test_a_changed_row_is_shown_beside_the_one_most_like_it(made: Made, held: DataFrame) -> None:
    # Two rows of one cell change; each keeps a value that only it has.
    audit = copy_of(made, altered(held, "id IN (0, 12)"))
    assert totals(audit) == {"changed": 2}
    for finding in audit.findings:
        assert finding.expected is not None
        assert finding.actual is not None
        assert finding.expected["id"] == finding.actual["id"]


def test_a_missing_table_of_rows_and_a_foreign_one(made: Made, held: DataFrame) -> None:
    assert totals(copy_of(made, held.where("false"))) == {"missing": 25}
    nobody = Made(made.spark, made.tape, made.cut, {})
    assert totals(copy_of(nobody, held)) == {"extra": 25}


def test_empty_equals_empty(made: Made, held: DataFrame) -> None:
    nobody = Made(made.spark, made.tape, made.cut, {})
    empty = held.where("false")
    for audit in (
        copy_of(nobody, empty),
        copy_of(nobody, empty.drop("fare")),
        transform_of(nobody, by_hour(empty.withColumn("_label", F.lit("")))),
    ):
        assert (audit.passed, audit.cells, audit.records) == (True, 0, 0)


def test_a_table_without_the_worker_is_compared_by_time(made: Made, held: DataFrame) -> None:
    table = held.drop("_worker")
    shape = shape_of(table.schema, EVENT, worker=None, payload=PAYLOAD)
    audit = copy_of(made, table, shape)
    assert (audit.passed, audit.cells) == (True, 4)
    assert totals(copy_of(made, dropped(table), shape)) == {"missing": 1}
    # Which worker a row had cannot be told from such a table.
    assert copy_of(made, to_worker(held).drop("_worker"), shape).passed


def test_a_declared_table_with_its_own_columns(made: Made, held: DataFrame) -> None:
    labels = F.create_map(*(F.lit(x) for pair in WORKER_LABELS.items() for x in pair))
    table = held.select(
        labels[F.col("_worker")].alias("ori`gin"),
        F.col("_time.event").alias("sched dep"),
        F.lit("mine").alias("note"),
        *(F.col(quoted(name)) for name in PAYLOAD.names),
    ).withColumn("id", F.col("id").cast("bigint"))
    shape = shape_of(table.schema, EVENT, worker="ori`gin", time="sched dep", payload=PAYLOAD)
    assert shape.times == ("`sched dep`",)
    assert copy_of(made, table, shape).kind == "copy"
    assert copy_of(made, table, shape).passed
    moved = table.withColumn("ori`gin", F.expr("IF(id = 3, 'LG`A', `ori``gin`)"))
    audit = copy_of(made, moved, shape)
    assert totals(audit) == {"missing": 1, "extra": 1}
    assert [finding.worker for finding in audit.findings] == [0, 2]


@pytest.mark.parametrize("way", WAYS)
def test_shared_columns_fail(made: Made, held: DataFrame, way: str) -> None:
    change, expected, cells = WAYS[way]
    audit = copy_of(made, change(held.drop("fare", "at", "a.b")))
    assert (audit.kind, audit.passed, audit.differing) == ("shared-columns", False, cells)
    assert totals(audit) == expected == kinds(audit)


def test_shared_columns_pass_and_leave_the_others_alone(made: Made, held: DataFrame) -> None:
    audit = copy_of(made, held.drop("fare", "o'brien").withColumn("own", F.rand()))
    assert (audit.kind, audit.passed, audit.cells) == ("shared-columns", True, 12)
    assert copy_of(made, altered(held, column="tick`s").drop("tick`s")).passed


def test_columns_that_do_not_fit_are_refused(made: Made, held: DataFrame) -> None:
    for table, named in (
        (held.select("_worker", "_time"), "none of the expected columns"),
        (held.withColumn("fare", F.col("fare").cast("string")), "fare"),
        (held.withColumn("fare", F.col("fare").cast("decimal(10, 1)")), "decimal(10,1)"),
        (held.withColumn("at", F.col("at").cast("date")), "at"),
    ):
        with pytest.raises(InvalidRequestError, match="column") as caught:
            copy_of(made, table)
        assert caught.value.code == "CAP-AUDIT-COLUMNS"
        assert named in caught.value.message
    narrow = held.withColumn("tick`s", F.col("`tick``s`").cast("int"))
    assert copy_of(made, narrow).passed


TAMPERED = [
    (0, "changed"),
    (1, "missing"),
    (2, "extra"),
    (3, "missing"),
    (4, "missing"),
    (4, "extra"),
    (9, "extra"),
]


def tampered(rows: DataFrame) -> DataFrame:
    """Each of five workers loses its truth in another way, at `id` 10 to 14."""
    return rows.selectExpr(
        "IF(data.id = 13, 9, worker) AS worker",
        "batch",
        "IF(data.id = 14, named_struct('event', time.event + INTERVAL 1 HOUR), time) AS time",
        "IF(data.id = 10, named_struct('id', 10, 'x', 'forged', 'y', data.y), data) AS data",
        "data.id AS was",
    )


def test_a_tape_that_was_tampered_with_is_told(spark: SparkSession, lake: Lake) -> None:
    payload = StructType.fromDDL("id INT, x STRING, y INT")
    rows = spark.range(20).selectExpr(
        "CAST(id % 5 AS INT) AS worker",
        "id % 2 AS batch",
        "named_struct('event', timestamp_micros(0)) AS time",
        "named_struct('id', CAST(id AS INT), 'x', 'true', 'y', 0) AS data",
    )
    stored = doubled(dropped(tampered(rows), "was = 11"), "was = 12").drop("was")
    labels = {worker: str(worker) for worker in (0, 1, 2, 3, 4, 9)}
    made = make_tape(spark, lake, "t", EVENT, payload, rows, workers=labels, stored=stored)
    held = made.played()
    full = shape_of(held.schema, EVENT, payload=payload)
    some = shape_of(held.schema, EVENT, payload=payload, columns=["id", "y"])
    for audit in (copy_of(made, held, some), transform_of(made, by_id(held), by_id)):
        assert not audit.passed
        assert {finding.where for finding in audit.findings} == {"tape"}
        assert [(f.worker, f.kind) for f in audit.findings] == TAMPERED
        assert totals(audit) == {"tape": len(TAMPERED)}
        assert audit.differing == len(TAMPERED)
    # A copy of what the tape once said passes; one of what it says now does not.
    truth = rows.selectExpr("worker AS _worker", "time AS _time", "data.*")
    assert copy_of(made, truth, full).passed
    late = copy_of(made, held, full)
    assert [(f.worker, f.kind) for f in late.findings] == TAMPERED
    assert totals(late) == {"tape": len(TAMPERED)}
    with pytest.raises(CheckFailedError) as caught:
        late.require_passed("copy")
    assert "--deep" in caught.value.hint


def by_id(records: DataFrame) -> DataFrame:
    return records.selectExpr("_worker", "_time.event AS hour", "id", "1 AS `n m`")


def by_hour(records: DataFrame) -> DataFrame:
    """Counts per worker, hour and whether the id is even; names need quoting."""
    return records.groupBy(
        "_worker", F.col("_time.event").alias("the `hour`"), F.expr("id % 2 = 0").alias("it's even")
    ).agg(F.count("*").alias("n m"), F.sum("id").alias("sum"), F.max("_label").alias("label"))


def transform_of(
    made: Made,
    frame: DataFrame,
    recompute: Change = by_hour,
    keys: tuple[str, ...] = (),
    shape: Shape | None = None,
) -> Audit:
    time = "hour" if recompute is by_id else "the `hour`"
    shape = shape or shape_of(frame.schema, made.tape.time_type, time=time)
    scope = AuditScope(made.spark, made.tape, made.cut, made.workers, made.region)
    again = Computed(recompute(made.played()), keys=keys)
    return audit_computed(scope, frame, shape, again, inputs=[scope])


ONE = "_worker = 0 AND `n m` = 2 AND sum = 18"
OUTPUT_WAYS: dict[str, tuple[Change, dict[str, int]]] = {
    "altered": (lambda f: altered(f, ONE, "sum"), {"changed": 1}),
    "dropped": (lambda f: dropped(f, ONE), {"missing": 1}),
    "doubled": (lambda f: doubled(f, ONE), {"extra": 1}),
    "moved to another worker": (lambda f: to_worker(f, ONE), {"missing": 1, "extra": 1}),
    "moved to another time": (
        lambda f: f.withColumn(
            "the `hour`", F.expr(f"IF({ONE}, `the ``hour``` + INTERVAL 1 HOUR, `the ``hour```)")
        ),
        {"missing": 1, "extra": 1},
    ),
}


@pytest.fixture(scope="module")
def output(made: Made) -> DataFrame:
    """The true output of `by_hour`."""
    frame = by_hour(made.played()).localCheckpoint()
    assert frame.where(ONE).count() == 1
    return frame


def test_a_transform_passes(made: Made, output: DataFrame) -> None:
    audit = transform_of(made, output, keys=("it's even",))
    assert (audit.kind, audit.passed, audit.differing) == ("transform", True, 0)
    # Twelve cells of input, and as many of output.
    assert (audit.cells, audit.records) == (24, 12)


@pytest.mark.parametrize("way", OUTPUT_WAYS)
def test_a_transform_fails(made: Made, output: DataFrame, way: str) -> None:
    change, expected = OUTPUT_WAYS[way]
    audit = transform_of(made, change(output), keys=("it's even",))
    assert not audit.passed
    assert totals(audit) == expected == kinds(audit)
    assert audit.differing == sum(expected.values())


def test_a_transform_that_differs_when_repeated_fails(made: Made) -> None:
    runs: list[int] = []

    def fickle(records: DataFrame) -> DataFrame:
        runs.append(len(runs))
        return by_hour(records).withColumn("sum", F.col("sum") + F.lit(runs[-1]))

    stored = fickle(made.played())
    audit = transform_of(made, stored, fickle, ("it's even",))
    assert runs == [0, 1]
    assert totals(audit) == {"changed": 12}


def test_keys_decide_what_counts_as_changed(made: Made, output: DataFrame) -> None:
    flipped = output.withColumn("it's even", F.expr(f"IF({ONE}, NOT `it's even`, `it's even`)"))
    assert totals(transform_of(made, flipped)) == {"changed": 1}
    keyed = transform_of(made, flipped, keys=("it's even",))
    assert totals(keyed) == {"missing": 1, "extra": 1}
    with pytest.raises(InvalidRequestError, match="the key nope"):
        transform_of(made, output, keys=("nope",))


def test_a_transform_that_keeps_neither_worker_nor_time(made: Made) -> None:
    def count(records: DataFrame) -> DataFrame:
        return records.groupBy("_label").count()

    stored = count(made.played())
    shape = Shape(None, (), ("_label", "count"))
    audit = transform_of(made, stored, count, ("_label",), shape)
    assert (audit.passed, audit.cells) == (True, 13)
    wrong = transform_of(
        made, altered(stored, "_label = 'EWR'", "count"), count, ("_label",), shape
    )
    assert totals(wrong) == {"changed": 1}
    finding = wrong.to_json(EVENT)["findings"][0]
    assert (finding["worker"], finding["time"]) == (None, None)
    assert finding["expected"]["_label"] == finding["actual"]["_label"] == "EWR"
    with pytest.raises(CheckFailedError, match="first at the whole output"):
        wrong.require_passed("counts")


def test_cells_of_a_table_equal_those_of_the_index(made: Made, held: DataFrame) -> None:
    shape = shape_of(held.schema, EVENT, payload=PAYLOAD)
    promised = promised_cells(made.spark, made.tape, made.cut, made.workers, made.region)
    fields = stored_payload(made.tape).fields
    stored = view_cells(table_view(held, shape, EVENT), {"h": fields})
    assert promised.columns == stored.columns == ["worker", "t0", "records", "h1", "h2"]
    assert sorted(promised.collect()) == sorted(stored.collect())
    actual = compare(promised, stored.where("worker <> 1"), 2)
    assert (actual.cells, actual.differing) == (12, 4)
    assert [(cell.worker, cell.time, cell.kind) for cell in actual.sample] == [
        (1, (0,), "missing"),
        (1, (HOUR,), "missing"),
    ]


def test_cells_without_records_equal_absent_ones(made: Made) -> None:
    promised = promised_cells(made.spark, made.tape, made.cut, made.workers, made.region)
    hollow = promised.selectExpr("worker + 7 AS worker", "t0", "0L AS records", "h1", "h2")
    actual = compare(promised.unionByName(hollow), promised, 5)
    assert (actual.cells, actual.differing) == (12, 0)


def test_an_earlier_cut_has_fewer_cells(made: Made) -> None:
    some = Made(made.spark, made.tape, Cut(0, 0), made.workers)
    audit = copy_of(some, some.played())
    assert (audit.passed, audit.records) == (True, 12)
    assert totals(copy_of(some, made.played())) == {"extra": 13}


def test_played_records_carry_labels_however_many_workers(made: Made) -> None:
    many = {**WORKER_LABELS, **{worker: f"w{worker}" for worker in range(10, 100)}}
    for workers in (WORKER_LABELS, many):
        frame = played_records(made.spark, made.tape, made.cut, workers, made.region)
        assert frame.columns == ["_worker", "_time", "_label", *PAYLOAD.names]
        assert frame.schema["_worker"].dataType.simpleString() == "int"
        assert {(r[0], r[1]) for r in frame.select("_worker", "_label").collect()} == set(
            WORKER_LABELS.items()
        )


def test_times_with_two_coordinates(spark: SparkSession, lake: Lake) -> None:
    payload = StructType.fromDDL("id INT")
    rows = spark.range(12).selectExpr(
        "0 AS worker",
        "id % 2 AS batch",
        "named_struct('epoch', id % 2, 'event', date_from_unix_date(CAST(id % 3 AS INT))) AS time",
        "named_struct('id', CAST(id AS INT)) AS data",
    )
    made = make_tape(spark, lake, "bi", KNOWN, payload, rows, workers={0: "a"})
    held = made.played().drop("_label")
    shape = shape_of(held.schema, KNOWN, payload=payload)
    assert copy_of(made, held, shape).passed
    assert copy_of(made, held, shape).cells == 6
    later = F.expr("named_struct('epoch', _time.epoch, 'event', date_add(_time.event, 1))")
    audit = copy_of(made, held.withColumn("_time", later), shape)
    assert audit.to_json(KNOWN)["findings"][0]["time"] == [0, "1970-01-01"]
    # Under a partial order the times complete below a frontier are not a box.
    below = Region(Box.everything(KNOWN), Antichain.of([Time.of(0, 2), Time.of(1, 1)]))
    part = held.where(region_sql(KNOWN, below, ["`_time`.`epoch`", "`_time`.`event`"]))
    assert {(r[0].epoch, r[0].event.day - 1) for r in part.select("_time").collect()} == {
        (0, 0),
        (0, 1),
        (1, 0),
    }
    scope = AuditScope(spark, made.tape, made.cut, made.workers, below)
    assert audit_copy(scope, part, shape).passed
    # A table that keeps the event time alone is compared by that alone.
    plain = held.selectExpr("_worker", "named_struct('event', _time.event) AS _time", "id")
    by_event = shape_of(plain.schema, KNOWN, payload=payload)
    assert by_event.times == (None, "`_time`.`event`")
    known = copy_of(made, plain, by_event)
    assert (known.passed, known.cells) == (True, 3)


@pytest.mark.usefixtures("spark")
def test_shapes_that_cannot_be_are_refused() -> None:
    table = StructType.fromDDL(
        "_worker INT, _time STRUCT<other: INT>, day DATE, at TIMESTAMP, n INT, id INT"
    )
    for named, worker, time, time_type in (
        ("nope", "nope", None, EVENT),
        ("nope", None, "nope", EVENT),
        ("_time", None, "_time", EVENT),
        ("at", None, "at", KNOWN),
        ("at", None, "at", TimeType.of(day=Kind.DATE)),
        ("n", None, "n", EVENT),
    ):
        with pytest.raises(InvalidRequestError, match=named) as caught:
            shape_of(table, time_type, worker=worker, time=time)
        assert caught.value.code == "CAP-AUDIT-COLUMNS"
    shape = shape_of(table, EVENT, worker=None, time="day")
    assert shape == Shape(None, ("`day`",), ("_worker", "_time", "at", "n", "id"))
    assert shape_of(table, TimeType.of(n=Kind.BIGINT), time="n").times == ("`n`",)
