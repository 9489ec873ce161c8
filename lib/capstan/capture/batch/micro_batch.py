"""One micro-batch: writes its records, its late rows, then events computed from stored rows.

The events commit is the point of no return. If the process is killed before it, Spark repeats the
micro-batch with the same rows; it skips its earlier commits and produces the same tape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyarrow import dataset
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from capstan.capture.batch import causes, classify
from capstan.capture.batch.checkpoint_guard import Checkpoint, transaction
from capstan.capture.batch.commit_events import CLOSING, Cells, numbered, numbered_events
from capstan.capture.batch.roster import Roster
from capstan.capture.source.files.consumed_offsets import max_rows, started_at
from capstan.capture.source.text import raw_text
from capstan.core.config import MAX_WORKERS, ByColumn, ByKey, ByPartition, EventTime, Stream
from capstan.errors import CheckFailedError, SystemFailureError
from capstan.spark.own_session import FEW_ROWS, interpreting
from capstan.storage.compaction.index_compaction import keep_short
from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import read_columns
from capstan.storage.delta.data_files import files_between
from capstan.storage.delta.idempotent_write import Txn, is_committed
from capstan.storage.stored_log import look_again
from capstan.storage.tape import feed, index
from capstan.storage.tape.feed import BatchEntry, Consumed, Origin
from capstan.storage.tape.fingerprint import row_hashes
from capstan.storage.tape.index_totals import EVERY
from capstan.storage.tape.schema import payload_of, records_schema
from capstan.storage.tape.tape import Tape, append_events, append_few_events, fenced, replaced
from capstan.storage.tape.time_columns import coordinate
from capstan.telemetry.instrumentation import emit


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The outcome of a micro-batch: rows fed, rows recorded, late rows by reason."""

    batch: int
    fed: int
    records: int
    late: Mapping[str, int]
    roster: Roster


@dataclass(frozen=True, slots=True)
class WriteStats:
    """Statistics gathered while records were written."""

    version: int  # the commit of `records`
    fed: int
    refused: int  # rows not recorded on tape
    written: int
    greatest: int | None  # event time in microseconds; None without rows


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch to be recorded."""

    stream: Stream
    tape: Tape
    checkpoint: Checkpoint
    at: int  # its number in the checkpoint
    consumed: tuple[Consumed, ...]
    folders: Sequence[str] = ()  # columns that come from the names of folders

    @property
    def number(self) -> int:
        """The batch's number on the tape."""
        return self.checkpoint.number(self.at)

    def capture(self, prepared: DataFrame, roster: Roster) -> BatchResult:
        """Record the batch of rows from `classify.prepare`; its counts, and the roster after it.

        The roster that is given has the times held before the batch.
        """
        look_again()
        rows = max_rows(self.consumed)
        with interpreting(prepared.sparkSession, FEW_ROWS + 1 if rows is None else rows):
            result = self._capture(prepared, roster)
        if (result.roster.commit + 1) % EVERY == 0:
            keep_short(self.tape, result.roster.commit, EVERY)
        return result

    def _capture(self, prepared: DataFrame, roster: Roster) -> BatchResult:
        scan = scan_batch(prepared, self.stream, self.consumed, roster.labels)
        roster, new_workers = roster.with_new_workers(self.stream, scan.labels if scan else ())
        classified = self._classify(prepared, roster, scan)
        held = [worker.held[-1] for worker in roster.workers]
        if self.stream.late == "fail" and not (scan and scan.has_none_late(held)):
            self._refuse_late(classified)
        identity = self.checkpoint.identity
        entry = BatchEntry(self.number, Origin.CAPTURE, identity, self.at, self.consumed)
        feed.register_batch(self.tape, entry)
        emit("capture.claim", batch=self.number)
        roster.register(self.tape, new_workers, self._replaced)
        emit("capture.workers", batch=self.number)
        stats = self._write_records(classified)
        emit("capture.records", batch=self.number)
        late = {} if stats is not None and stats.refused == 0 else self._write_late(classified)
        emit("capture.late", batch=self.number)
        if stats is not None and stats.fed != stats.written + sum(late.values()):
            raise self._count_mismatch(stats.fed, stats.written + sum(late.values()))
        stored = self._stored(prepared.sparkSession, payload_of(prepared.schema), stats)
        return self._commit(stored, roster, stats, late)

    def _classify(self, prepared: DataFrame, roster: Roster, scan: BatchScan | None) -> DataFrame:
        ahead, time = None, self.stream.time
        if isinstance(time, EventTime) and time.max_ahead is not None:
            started = started_at(self.checkpoint.place(self.tape), self.at)
            if not (scan and scan.has_none_ahead(time, roster.greatest_time, started)):
                ahead = classify.ahead_from(prepared, time, roster.greatest_time, started)
        assigned = roster.assign(prepared, self.stream)
        return classify.classify_rows(assigned, self.stream, self.number, ahead)

    def _write_records(self, classified: DataFrame) -> WriteStats | None:
        """Write the records; None when an earlier attempt at the batch has written them."""
        metrics = Observation()
        figures = (
            F.count(F.lit(1)).alias("fed"),
            F.count(F.col("reason")).alias("refused"),
            F.max(F.when(F.col("reason").isNull(), F.col("at"))).alias("greatest"),
        )
        counted = classified.observe(metrics, *figures)
        rows = counted.where("reason IS NULL").select(
            "worker",
            F.lit(self.number).cast("bigint").alias("batch"),
            "time",
            F.monotonically_increasing_id().alias("pos"),
            "data",
        )
        path, unless = self.tape.paths.records, self._replaced
        commit = delta.append(rows, path, txn=self._txn, merge_schema=True, unless=unless)
        if commit is None:
            if is_committed(path, unless):
                raise fenced(self.tape, self.number)
            return None  # The observation of a skipped write never arrives.
        written = int(commit.metrics["numOutputRows"])
        # If Spark can prove that no row is recorded, it reads none and observes nothing.
        totals = metrics.get if written else classified.agg(*figures).collect()[0].asDict()
        return WriteStats(
            commit.version, totals["fed"], totals["refused"], written, totals["greatest"]
        )

    def _write_late(self, classified: DataFrame) -> dict[str, int]:
        source = self.stream.source
        text = source.format.lower() in raw_text.FORMATS or source.selection is not None
        field, error = causes.cause_of(self.stream, payload_of(classified.schema), self.folders)
        batch = F.lit(self.number).cast("bigint")
        # Only the event time can make a record late; the epoch is always that of the batch.
        known = {"epoch": batch}
        frontier = F.struct(
            *(
                coordinate(known.get(c.name, F.col("frontier")), c)
                for c in self.tape.time_type.coordinates
            )
        )
        rows = classified.where("reason IS NOT NULL").select(
            "worker",
            batch.alias("batch"),
            "time",
            F.monotonically_increasing_id().alias("pos"),
            "reason",
            F.when(F.col("frontier").isNotNull(), F.array(frontier)).alias("frontier"),
            "data",
            *(["raw"] if text else []),
            field.alias("field"),
            error.alias("error"),
            *classify.further(classified),
        )
        path = self.tape.paths.late
        delta.append(rows, path, txn=self._txn, merge_schema=True, unless=self._replaced)
        table = delta.open_table(path)
        files = files_between(path, table, "batch", self.number, self.number)
        stored = read_columns(path, ["reason", "batch"], table, files)
        reasons = stored.filter(dataset.field("batch") == self.number)["reason"]
        return dict(Counter(reasons.to_pylist()))

    def _refuse_late(self, classified: DataFrame) -> None:
        """Check that no record is late, for a stream with the policy `fail`."""
        late = classified.where("reason = 'late'").count()
        if late:
            raise CheckFailedError(
                "CAP-LATE",
                f"stream {self.stream.name}: {late} records arrived after their time was complete",
                "streams.yaml sets `late: fail`, so nothing of this micro-batch was captured. "
                "Allow more lateness, or choose `late: dead-letter` or `late: advance`",
                stream=self.stream.name,
                late=late,
            )

    @property
    def _replaced(self) -> Txn:
        """The transaction of a reseat that has put another writer in the place of this one."""
        return replaced(self.tape, self.checkpoint.identity)

    @property
    def _txn(self) -> Txn:
        return transaction(self.tape, self.checkpoint.identity, self.number)

    def _stored(
        self, spark: SparkSession, payload: StructType, stats: WriteStats | None
    ) -> DataFrame:
        """The stored rows of this batch: `worker`, `time`, `at` and two content hashes each."""
        path, schema = self.tape.paths.records, records_schema(self.tape.time_type, payload)
        files = [] if stats is None else delta.added_files(path, stats.version)
        if files:
            # The files Delta would find, without replaying its log for each micro-batch. A commit
            # of records adds rows of one batch only.
            stored = spark.read.schema(schema).option("__globPaths__", "false").parquet(*files)
        else:
            stored = delta.load(spark, path).where(f"batch = {self.number}")
        rows = stored.select(
            F.col("worker").alias("_worker"), F.col("time").alias("_time"), F.col("data.*")
        )
        # An earlier attempt may have written the rows before the source gained a column. The column
        # is null there, so it does not affect the row hashes; the next batch adds it to the table.
        h1, h2 = row_hashes(payload_of(stored.schema).fields)
        at = F.unix_micros(classify.event_time(self.stream, rows))
        columns = {"worker": F.col("_worker"), "time": F.col("_time"), "at": at, "h1": h1, "h2": h2}
        return rows.select(*(column.alias(name) for name, column in columns.items()))

    def _greatest(
        self, stored: DataFrame, roster: Roster, stats: WriteStats | None, few: Cells | None
    ) -> dict[int, int | None]:
        """The greatest event time in microseconds per worker, on which its watermark is based."""
        time = self.stream.time
        if not isinstance(time, EventTime):
            return {}
        if time.watermark == "stream" and stats is not None:
            return {worker.number: stats.greatest for worker in roster.workers}
        if few is not None:
            return dict(few.greatest)
        rows = stored.groupBy("worker").agg(F.max("at").alias("at")).collect()
        return {row["worker"]: row["at"] for row in rows}

    def _commit(
        self, stored: DataFrame, roster: Roster, stats: WriteStats | None, late: Mapping[str, int]
    ) -> BatchResult:
        if not roster.workers:
            return BatchResult(self.number, sum(late.values()), 0, late, roster)
        few = Cells.of(stored) if stats is not None and stats.written <= FEW_ROWS else None
        greatest = self._greatest(stored, roster, stats, few)
        after = roster.advance(self.stream, self.number, greatest)
        statements = after.progress_since(roster)
        if not statements and (stored.isEmpty() if stats is None else stats.written == 0):
            # Nothing moved: an empty statement records on the tape that the batch took place.
            statements = [(roster.workers[0].number, CLOSING, [])]
        commit = roster.commit + 1
        note = {"stream": self.tape.name, "batch": self.number}
        numbers = {"batch": self.number, "commit": commit}
        positions = roster.positions()
        if few is not None:
            time_type = self.tape.time_type
            sent = few.messages(time_type)
            rows = numbered(time_type, statements, positions, sent, **numbers)
            append_few_events(self.tape, rows, commit, note, self._replaced)
            events, records = Counter(rows["worker"].to_pylist()), few.records
        else:
            frame = numbered_events(stored, self.tape, statements, positions, **numbers)
            version = append_events(self.tape, frame, commit, note, self._replaced)
            events, records = index.added_counts(self.tape, version)
        if stats is not None and records != stats.written:
            raise self._count_mismatch(stats.written, records)
        fed = records + sum(late.values())
        emit("capture.events", batch=self.number, fed=fed, records=records, late=dict(late))
        return BatchResult(self.number, fed, records, late, after.committed(commit, events))

    def _count_mismatch(self, fed: int, stored: int) -> SystemFailureError:
        return SystemFailureError(
            "CAP-FEED",
            f"stream {self.tape.name}, batch {self.number}: {fed} rows were fed, but {stored} are "
            "stored",
            "the source returned different rows when it was read again; make it repeatable",
            stream=self.tape.name,
        )


@dataclass(frozen=True, slots=True)
class BatchScan:
    """Labels and event times of a micro-batch."""

    labels: frozenset[str]  # incomplete if there are more than a stream can have
    least: int | None  # of labelled records, in microseconds, truncated
    greatest: int | None

    def has_none_ahead(self, time: EventTime, seen: int | None, started: int | None) -> bool:
        """Whether no record of a worker can be more than `max_ahead` after all times before it.

        Both are in microseconds: `seen` is the greatest time on tape, `started` the batch's start.
        """
        assert time.max_ahead is not None
        latest = max((moment for moment in (seen, started) if moment is not None), default=None)
        if self.greatest is None:
            return True
        return latest is not None and self.greatest <= latest + classify.micros(time.max_ahead)

    def has_none_late(self, frontiers: Collection[int]) -> bool:
        """Whether no record of a worker can precede an event time that a worker holds."""
        return self.least is None or self.least >= max(frontiers, default=classify.NEVER)


def scan_batch(
    prepared: DataFrame, stream: Stream, consumed: Collection[Consumed], known: Collection[str]
) -> BatchScan | None:
    """Read a micro-batch once if its rows may have new labels; else None."""
    # Every read goes back to the source. So labels and times are gathered together, and later
    # checks use them instead of reading again.
    if not _may_have_new(stream, consumed, known):
        return None
    # Records without a label belong to no worker, whatever their times; nor do malformed ones.
    by_label = prepared.where("label IS NOT NULL AND raw IS NULL").groupBy("label")
    event_time = F.lit(None).cast("bigint")
    if isinstance(stream.time, EventTime):
        event_time = classify.truncated(F.col("at"), stream.time)
    ranges = by_label.agg(F.min(event_time).alias("least"), F.max(event_time).alias("greatest"))
    # One label over the limit is enough to know that there are too many.
    rows = ranges.limit(max(MAX_WORKERS, len(known)) + 1).collect()
    return BatchScan(
        frozenset(row["label"] for row in rows),
        min((row["least"] for row in rows if row["least"] is not None), default=None),
        max((row["greatest"] for row in rows if row["greatest"] is not None), default=None),
    )


def _may_have_new(stream: Stream, consumed: Collection[Consumed], known: Collection[str]) -> bool:
    by = stream.workers
    if isinstance(by, ByKey) or (isinstance(by, ByColumn) and by.labels):
        return False
    if isinstance(by, ByPartition) and by.column is None:
        # Kafka's offsets name the partitions. An empty partition opens no worker, so new ones are
        # read.
        return any(piece.part is None or piece.part not in known for piece in consumed)
    return True
