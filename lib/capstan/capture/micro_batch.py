"""One micro-batch: records, then late ones, then - read back from what was stored - its events.

The events commit is the point of no return. Killed anywhere before it, the same micro-batch comes
again with the same rows, finds its earlier commits done, and ends in the same tape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from capstan.capture import checkpoint_guard, classify, late_rows, raw_text
from capstan.capture.batch_scan import Survey, survey
from capstan.capture.consumed_offsets import begun_at, most_rows
from capstan.capture.in_process_events import Cells
from capstan.capture.progress_events import CLOSING, numbered_events
from capstan.capture.roster import Roster
from capstan.core.config import EventTime, Stream
from capstan.errors import SystemFailureError
from capstan.instrumentation import emit
from capstan.spark.session import FEW_ROWS, interpreting
from capstan.storage import delta
from capstan.storage.idempotent_write import Txn
from capstan.storage.tape import feed, index
from capstan.storage.tape.feed import BatchEntry
from capstan.storage.tape.fingerprint import row_hashes
from capstan.storage.tape.schema import payload_of, records_schema
from capstan.storage.tape.tape import Tape, append_events, append_few_events


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of a micro-batch: rows fed, put on tape, and late by reason."""

    batch: int
    fed: int
    records: int
    late: Mapping[str, int]
    roster: Roster


@dataclass(frozen=True, slots=True)
class WriteStats:
    """What was seen while records were written.

    Attributes:
        version: The commit of `records`.
        fed: Rows of the micro-batch.
        refused: Rows that may not go on tape.
        written: Rows that were written.
        greatest: The greatest event time of these in microseconds; None without any.
    """

    version: int
    fed: int
    refused: int
    written: int
    greatest: int | None


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch on its way to the tape.

    Attributes:
        stream: The declaration.
        tape: Where it goes.
        claim: Its number, and what it consumed; its checkpoint is in the transaction identity of
            records and late rows.
    """

    stream: Stream
    tape: Tape
    claim: BatchEntry

    @property
    def number(self) -> int:
        """The tape's number of the batch."""
        return self.claim.batch

    def capture(self, prepared: DataFrame, roster: Roster) -> BatchResult:
        """Put the batch on tape.

        Args:
            prepared: The source's rows as `domain.prepare` gives them.
            roster: The workers and what they hold, before this batch.

        Returns:
            Counts, and the roster after the batch.
        """
        rows = most_rows(self.claim.consumed)
        with interpreting(prepared.sparkSession, FEW_ROWS + 1 if rows is None else rows):
            return self._captured(prepared, roster)

    def _captured(self, prepared: DataFrame, roster: Roster) -> BatchResult:
        found = survey(prepared, self.stream, self.claim.consumed, roster.labels)
        roster, fresh = roster.with_labels(self.stream, found.labels if found else ())
        judged = self._judged(prepared, roster, found)
        held = [worker.held[-1] for worker in roster.workers]
        if self.stream.late == "fail" and not (found and found.has_none_late(held)):
            late_rows.refuse_any(self.stream, judged)
        feed.register_batch(self.tape, self.claim)
        emit("capture.claim", batch=self.number)
        roster.write_down(self.tape, fresh)
        emit("capture.workers", batch=self.number)
        seen = self._write_records(judged)
        emit("capture.records", batch=self.number)
        late = {} if seen is not None and seen.refused == 0 else self._write_late(judged)
        emit("capture.late", batch=self.number)
        if seen is not None and seen.fed != seen.written + sum(late.values()):
            raise self._uneven(seen.fed, seen.written + sum(late.values()))
        stored = self._stored(prepared.sparkSession, payload_of(prepared.schema), seen)
        return self._commit(stored, roster, seen, late)

    def _judged(self, prepared: DataFrame, roster: Roster, found: Survey | None) -> DataFrame:
        ahead, time = None, self.stream.time
        if isinstance(time, EventTime) and time.max_ahead is not None:
            assert self.claim.number is not None
            begun = begun_at(self.tape.paths.checkpoint, self.claim.number)
            if not (found and found.has_none_ahead(time, roster.seen, begun)):
                ahead = classify.ahead_from(prepared, time, roster.seen, begun)
        limits = classify.BatchLimits(self.number, ahead)
        return classify.judge(roster.assign(prepared, self.stream), self.stream, limits)

    def _write_records(self, judged: DataFrame) -> WriteStats | None:
        """Write what goes on tape; None where an earlier try of the micro-batch has written it."""
        metrics = Observation()
        figures = (
            F.count(F.lit(1)).alias("fed"),
            F.count(F.col("reason")).alias("refused"),
            F.max(F.when(F.col("reason").isNull(), F.col("at"))).alias("greatest"),
        )
        counted = judged.observe(metrics, *figures)
        rows = counted.where("reason IS NULL").select(
            "worker",
            F.lit(self.number).cast("bigint").alias("batch"),
            "time",
            F.monotonically_increasing_id().alias("pos"),
            "data",
        )
        commit = delta.append(rows, self.tape.paths.records, txn=self._txn, merge_schema=True)
        if commit is None:
            return None  # An observation of a skipped write never comes.
        written = int(commit.metrics["numOutputRows"])
        # Where Spark can tell that no row goes on tape, it reads none, and observes nothing.
        found = metrics.get if written else judged.agg(*figures).collect()[0].asDict()
        return WriteStats(
            commit.version, found["fed"], found["refused"], written, found["greatest"]
        )

    def _write_late(self, judged: DataFrame) -> dict[str, int]:
        text = self.stream.source.format.lower() in raw_text.FORMATS
        rows = late_rows.rows(judged, self.number, self.tape.time_type, text=text)
        delta.append(rows, self.tape.paths.late, txn=self._txn, merge_schema=True)
        return late_rows.count(self.tape, self.number)

    @property
    def _txn(self) -> Txn:
        return checkpoint_guard.transaction(self.tape, str(self.claim.checkpoint), self.number)

    def _stored(
        self, spark: SparkSession, payload: StructType, seen: WriteStats | None
    ) -> DataFrame:
        """What is stored of this batch: `_worker`, `_time`, `_at` and two content hashes a row."""
        path, schema = self.tape.paths.records, records_schema(self.tape.time_type, payload)
        files = [] if seen is None else delta.added_files(path, seen.version)
        # The same files that Delta would find, without replaying its log for each micro-batch.
        fresh = spark.read.schema(schema)
        if files:
            # What a commit of records has added is all of one batch.
            stored = fresh.option("__globPaths__", "false").parquet(*files)
        else:
            stored = delta.load(spark, path).where(f"batch = {self.number}")
        rows = stored.select(
            F.col("worker").alias("_worker"), F.col("time").alias("_time"), F.col("data.*")
        )
        # An earlier try may have written them before the source gained a column: null, it is not in
        # the hash of a row, and with the next batch it is in the table.
        h1, h2 = row_hashes(payload_of(stored.schema).fields)
        at = F.unix_micros(classify.event_time(self.stream, rows)).alias("_at")
        return rows.select("_worker", "_time", at, h1.alias("_h1"), h2.alias("_h2"))

    def _greatest(
        self, stored: DataFrame, roster: Roster, seen: WriteStats | None, few: Cells | None
    ) -> dict[int, int | None]:
        """Per worker the event time in microseconds that its watermark may count from."""
        time = self.stream.time
        if not isinstance(time, EventTime):
            return {}
        if time.watermark == "stream" and seen is not None:
            return {worker.number: seen.greatest for worker in roster.workers}
        if few is not None:
            return dict(few.greatest)
        found = stored.groupBy("_worker").agg(F.max("_at").alias("at")).collect()
        return {row["_worker"]: row["at"] for row in found}

    def _commit(
        self, stored: DataFrame, roster: Roster, seen: WriteStats | None, late: Mapping[str, int]
    ) -> BatchResult:
        if not roster.workers:
            return BatchResult(self.number, sum(late.values()), 0, late, roster)
        few = Cells.of(stored) if seen is not None and seen.written <= FEW_ROWS else None
        greatest = self._greatest(stored, roster, seen, few)
        after = roster.advance(self.stream, self.number, greatest)
        statements = after.progress_since(roster)
        if not statements and (stored.isEmpty() if seen is None else seen.written == 0):
            # Nothing moved: an empty statement, so that the tape knows the batch was there.
            statements = [(roster.workers[0].number, CLOSING, [])]
        commit = roster.commit + 1
        note = {"stream": self.tape.name, "batch": self.number}
        numbers = {"batch": self.number, "commit": commit}
        positions = roster.positions()
        if few is not None:
            rows = few.numbered(self.tape.time_type, statements, positions, **numbers)
            append_few_events(self.tape, rows, commit, note)
            events, records = Counter(rows["worker"].to_pylist()), few.records
        else:
            frame = numbered_events(stored, self.tape, statements, positions, **numbers)
            version = append_events(self.tape, frame, commit, note)
            events, records = index.added_counts(self.tape, version)
        if seen is not None and records != seen.written:
            raise self._uneven(seen.written, records)
        fed = records + sum(late.values())
        emit("capture.events", batch=self.number, fed=fed, records=records, late=dict(late))
        return BatchResult(self.number, fed, records, late, after.written(commit, events))

    def _uneven(self, given: int, stored: int) -> SystemFailureError:
        return SystemFailureError(
            "CAP-FEED",
            f"stream {self.tape.name}: of batch {self.number} {given} rows were fed, and {stored} "
            "are stored",
            "the source gave different rows when it was read twice; make it repeatable",
            stream=self.tape.name,
        )
