"""Deep verification: records that are not what the events say, in every way."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from capstan.core.protocol import Fault, Messages, Progress, Rule
from capstan.core.times import Kind, Time, TimeType
from capstan.storage.delta import delta
from capstan.storage.tape.fingerprint import fingerprint, row_hashes
from capstan.storage.tape.schema import updates_array
from capstan.storage.tape.settings import TapeSettings
from capstan.storage.tape.tape import Cut, append_events, create_tape, newest_cut
from capstan.verify import verify
from capstan.verify.violations_ledger import known_violations
from tests.support.reference_checker import check

pytestmark = pytest.mark.spark

EPOCHS = TimeType.of(epoch=Kind.BIGINT)
PAYLOAD = StructType([StructField("n", LongType()), StructField("s", StringType())])
SOUND, DROPPED, DOUBLED, ALTERED, GIVEN, TAKEN, MOVED, EXTRA, LOST, NULLS, EMPTY = range(11)
WORKERS = range(11)
TIMES = (0, 1, 2)


def true_records():
    """Per worker two rows at each of three times, batch = time: `(worker, batch, epoch, n, s)`."""
    return [
        (worker, time, time, None if row else 10 * worker + time, "a" if row else None)
        for worker in WORKERS
        for time in TIMES
        for row in range(2)
        if worker != EMPTY
    ]


def append_records(spark, tape, rows):
    names = ["worker", "batch", "epoch", "n", "s"]
    kinds = [pa.int32(), pa.int64(), pa.int64(), pa.int64(), pa.string()]
    columns = {
        name: pa.array([row[index] for row in rows], kinds[index])
        for index, name in enumerate(names)
    }
    frame = spark.createDataFrame(pa.table(columns)).select(
        "worker",
        "batch",
        F.struct("epoch").alias("time"),
        F.lit(0).cast("bigint").alias("pos"),
        F.struct("n", "s").alias("data"),
    )
    delta.append(frame.coalesce(1), tape.paths.records)


def recorded(worker):
    """The events of each worker: messages, then the step to the next time, three times."""
    events = []
    for time in TIMES:
        events.append(Messages((Time.of(time),), 0 if worker == EMPTY else 2))
        events.append(Progress.of([((time,), -1), ((time + 1,), 1)]))
    return events


def sound_tape(spark, lake):
    tape = create_tape(spark, lake, "s", EPOCHS, PAYLOAD, TapeSettings())
    workers = pa.table(
        {
            "worker": pa.array(WORKERS, pa.int32()),
            "label": [f"w{worker}" for worker in WORKERS],
            "opened_commit": pa.array([0] * len(WORKERS), pa.int64()),
        }
    )
    delta.append(spark.createDataFrame(workers).coalesce(1), tape.paths.workers)
    append_records(spark, tape, true_records())
    h1, h2 = row_hashes(PAYLOAD.fields, F.col("data"))
    promised = (
        spark.read.format("delta")
        .load(tape.paths.records)
        .select("worker", "time", h1.alias("h1"), h2.alias("h2"))
        .groupBy("worker", "time")
        .agg(
            F.count(F.lit(1)).alias("records"),
            fingerprint(F.col("h1"), F.col("h2")).alias("fingerprint"),
        )
    )
    cells = spark.range(len(WORKERS)).crossJoin(
        spark.createDataFrame([(time,) for time in TIMES], "batch bigint")
    )
    cells = cells.select(F.col("id").cast("int").alias("worker"), "batch").withColumn(
        "time", F.struct(F.col("batch").alias("epoch"))
    )
    messages = cells.join(promised, ["worker", "time"], "left").select(
        "worker",
        (F.col("batch") * 2).alias("seq"),
        F.lit("messages").alias("kind"),
        "time",
        F.lit(None).cast(updates_array(EPOCHS)).alias("updates"),
        "batch",
        F.col("batch").alias("commit"),
        F.coalesce("records", F.lit(0)).alias("records"),
        F.coalesce(
            "fingerprint",
            F.struct(F.lit(0).cast("bigint").alias("h1"), F.lit(0).cast("bigint").alias("h2")),
        ).alias("fingerprint"),
    )
    step = (
        "array(named_struct('time', time, 'diff', -1L), "
        "named_struct('time', named_struct('epoch', batch + 1), 'diff', 1L))"
    )
    progress = cells.select(
        "worker",
        (F.col("batch") * 2 + 1).alias("seq"),
        F.lit("progress").alias("kind"),
        F.lit(None).cast("struct<epoch bigint>").alias("time"),
        F.expr(step).alias("updates"),
        "batch",
        F.col("batch").alias("commit"),
        F.lit(None).cast("bigint").alias("records"),
        F.lit(None).cast("struct<h1 bigint, h2 bigint>").alias("fingerprint"),
    )
    events = messages.unionByName(progress).persist()
    for commit in TIMES:
        append_events(tape, events.where(f"commit = {commit}").coalesce(1), commit, {})
    events.unpersist()
    return tape


def change(spark, tape, statement):
    spark.sql(statement.format(records=f"delta.`{tape.paths.records}`"))


def spoil(spark, tape):
    """Everything that can happen to records, each to a worker of its own."""
    first = "n IS NOT NULL"
    at = "worker = {} AND time.epoch = {} AND data.{}"
    change(spark, tape, f"DELETE FROM {{records}} WHERE {at.format(DROPPED, 1, first)}")
    append_records(spark, tape, [(DOUBLED, 1, 1, 10 * DOUBLED + 1, None)])
    # One statement rewrites all: the rows keep their number.
    change(
        spark,
        tape,
        f"""UPDATE {{records}} SET
        worker = CASE WHEN {at.format(GIVEN, 2, first)} THEN {TAKEN} ELSE worker END,
        time = CASE WHEN {at.format(MOVED, 1, first)} THEN named_struct('epoch', 2L) ELSE time END,
        data = CASE WHEN {at.format(ALTERED, 1, first)} THEN named_struct('n', 0L, 's', data.s)
            WHEN worker = {NULLS} AND time.epoch = 0 AND data.n IS NULL
            THEN named_struct('n', CAST(NULL AS BIGINT), 's', CAST(NULL AS STRING))
            ELSE data END
        WHERE worker IN ({GIVEN}, {MOVED}, {ALTERED}, {NULLS})""",
    )
    append_records(spark, tape, [(EXTRA, 1, 7, 1, "without an event")])
    change(spark, tape, f"DELETE FROM {{records}} WHERE worker = {LOST} AND batch = 1")


def test_records_are_held_against_their_events(spark, lake):
    tape = sound_tape(spark, lake)
    # The next batch: its records are there, its events are not yet.
    append_records(spark, tape, [(SOUND, 3, 3, 1, "not on the tape")])
    before = verify(spark, lake, tape, deep=True)
    assert before.valid
    assert [verdict.worker for verdict in before.workers] == list(WORKERS)
    spoil(spark, tape)
    append_records(spark, tape, [(77, 1, 1, 1, "of no worker")])

    assert verify(spark, lake, tape).valid
    assert verify(spark, lake, tape, workers=[SOUND, EMPTY], deep=True).valid
    verification = verify(spark, lake, tape, deep=True)
    expected = {
        DROPPED: (2, 1, "1 records of batch 1 are stored, 2 were recorded"),
        DOUBLED: (2, 1, "3 records of batch 1 are stored, 2 were recorded"),
        ALTERED: (2, 1, "the records of batch 1 differ from those recorded"),
        GIVEN: (4, 2, "1 records of batch 2 are stored, 2 were recorded"),
        TAKEN: (4, 2, "3 records of batch 2 are stored, 2 were recorded"),
        MOVED: (2, 1, "1 records of batch 1 are stored, 2 were recorded"),
        EXTRA: (6, 7, "1 records of batch 1 without an event"),
        LOST: (2, 1, "0 records of batch 1 are stored, 2 were recorded"),
        NULLS: (0, 0, "the records of batch 0 differ from those recorded"),
        77: (0, 1, "1 records of batch 1 without an event"),
    }
    actual = {
        verdict.worker: (verdict.violation.seq, verdict.violation.time[0], verdict.violation.detail)
        for verdict in verification.workers
        if not verdict.valid
    }
    assert actual == expected
    for verdict in verification.workers:
        if verdict.worker not in WORKERS:
            continue
        items = recorded(verdict.worker)
        if not verdict.valid:
            items[verdict.violation.seq :] = [Fault(Rule.CONTENT, "")]
        reference = check(items, EPOCHS.minimum)
        assert (verdict.events, verdict.records) == (reference.events, reference.records)
        assert verdict.holdings == reference.holdings
        if verdict.violation:
            assert verdict.violation.rule is Rule.CONTENT
            assert verdict.violation.held == reference.violation.held


def test_a_deleted_message_event_leaves_its_records(spark, lake):
    """The loss that breaks no rule: the numbers are closed up, and the counts alone tell of it.

    Where its records are gone as well, nothing on the tape is left that could: `verify --source`
    holds the tape against what was fed, and an import against the files.
    """
    tape = sound_tape(spark, lake)
    gone = f"worker IN ({LOST}, {DROPPED}) AND kind = 'messages' AND batch = 1"
    events = f"delta.`{tape.paths.events}`"
    spark.sql(f"ALTER TABLE {events} SET TBLPROPERTIES ('delta.appendOnly' = 'false')")
    spark.sql(f"DELETE FROM {events} WHERE {gone}")
    spark.sql(f"UPDATE {events} SET seq = seq - 1 WHERE worker IN ({LOST}, {DROPPED}) AND seq > 2")
    change(spark, tape, f"DELETE FROM {{records}} WHERE worker = {DROPPED} AND batch = 1")

    plain = verify(spark, lake, tape)
    assert plain.valid
    assert [(v.events, v.records) for v in plain.workers if v.worker in (LOST, DROPPED)] == [
        (5, 4)
    ] * 2
    actual = {v.worker: v.violation for v in verify(spark, lake, tape, deep=True).workers}
    assert {worker for worker, violation in actual.items() if violation} == {LOST}
    violation = actual[LOST]
    assert (violation.rule, violation.time) == (Rule.CONTENT, Time.of(1))
    assert violation.detail == "2 records of batch 1 without an event"


def test_a_cut_sees_the_records_of_its_own_batches(spark, lake):
    tape = sound_tape(spark, lake)
    change(spark, tape, f"DELETE FROM {{records}} WHERE worker = {LOST} AND batch = 2")
    assert verify(spark, lake, tape, cut=Cut(1, 1), deep=True).valid
    assert not verify(spark, lake, tape, cut=newest_cut(tape), deep=True).valid
    assert not verify(spark, lake, tape, workers=[LOST], deep=True).valid
    # Only who reads the records again can say that they are there again.
    append_records(spark, tape, [r for r in true_records() if r[:2] == (LOST, 2)])
    assert verify(spark, lake, tape).valid
    assert [(violation.worker, violation.rule) for violation in known_violations(lake)] == [
        (LOST, "content")
    ]
    assert verify(spark, lake, tape, deep=True).valid
    assert known_violations(lake) == []


def test_a_broken_rule_is_named_before_broken_content(spark, lake):
    tape = sound_tape(spark, lake)
    table = pa.table({"worker": pa.array([LOST], pa.int32()), "seq": pa.array([9], pa.int64())})
    frame = spark.createDataFrame(table).selectExpr(
        "worker",
        "seq",
        "'messages' AS kind",
        "named_struct('epoch', 9L) AS time",
        "CAST(NULL AS array<struct<time: struct<epoch: bigint>, diff: bigint>>) AS updates",
        "2L AS batch",
        "3L AS commit",
        "5L AS records",
        "named_struct('h1', 1L, 'h2', 1L) AS fingerprint",
    )
    append_events(tape, frame, 3, {})
    (verdict,) = verify(spark, lake, tape, workers=[LOST], deep=True).workers
    assert (verdict.violation.rule, verdict.violation.seq) == (Rule.SEQ, 6)
