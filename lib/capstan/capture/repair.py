"""What a fix makes of records of `late`: rows as a capture makes them, or still none."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from capstan.capture.batch import causes, classify
from capstan.capture.batch.roster import Roster
from capstan.capture.source.files.listing import SourceListing
from capstan.capture.source.selection import HIDDEN, fixed
from capstan.capture.source.text import raw_text
from capstan.capture.synthetic.late_reinjection import with_columns
from capstan.core.config import ByPartition, EventTime, LatePolicy
from capstan.core.sql_names import quoted
from capstan.core.times import Time
from capstan.errors import InvalidRequestError
from capstan.storage.delta import delta
from capstan.storage.ledger.tables import now
from capstan.storage.tape.schema import settled_schema
from capstan.storage.tape.tape import Cut, Tape, stored_payload
from capstan.storage.tape.time_columns import JSON, integers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from capstan.core.config import Stream

MOST_CELLS, MOST_EXAMPLES, MOST_LETTERS = 20, 5, 200
"""What a result shows at most: cells, records of either kind, and letters of each."""

_KEPT = ("batch", "pos", "reason", "worker", "raw", "data")


@dataclass(frozen=True, slots=True)
class RepairSummary:
    """What a fix repairs, and what stays wrong."""

    records: int  # repaired
    times: int  # their cells: workers and times
    cells: Sequence[dict[str, object]]  # the first ones: `worker`, `time`, `records`
    wrong: dict[str, int]  # records that stay, by what is wrong with them
    repaired_as: Sequence[dict[str, object]]  # examples: `record`, and what it `becomes`
    still_wrong: Sequence[dict[str, object]]  # examples: `record`, `reason`


@dataclass(frozen=True)
class Repair:
    """A fix of chosen rows of `late`, as of a cut."""

    spark: SparkSession
    tape: Tape
    stream: Stream
    cut: Cut
    select: Sequence[str]
    chosen: pa.Table  # `batch` and `pos`

    @cached_property
    def rows(self) -> DataFrame:
        """The rows as `classify_rows` returns them, at the frontier at least, with `place`."""
        prepared = classify.prepare(self._made(), self.stream)
        ahead, time = None, self.stream.time
        if isinstance(time, EventTime):
            seen, started = self._roster.greatest_time, classify.since_epoch(now())
            ahead = classify.ahead_from(prepared, time, seen, started)
        # What comes back is not late any more: it enters at the frontier.
        stream = replace(self.stream, late=LatePolicy.ADVANCE)
        assigned = self._roster.assign(prepared, stream)
        return classify.classify_rows(assigned, stream, self.cut.batch + 1, ahead).cache()

    def release(self) -> None:
        """Forget the rows."""
        if "rows" in self.__dict__:
            self.rows.unpersist()

    def summary(self) -> RepairSummary:
        """Count what is repaired by worker and time, and what is still wrong by reason."""
        time_type, count = self.tape.time_type, F.count(F.lit(1)).alias("records")
        labels = {worker.number: worker.label for worker in self._roster.workers}
        numbers = integers(F.col("time"), time_type).alias("time")
        cells = self._repaired.groupBy("worker", numbers).agg(count)
        total = F.coalesce(F.sum("records"), F.lit(0))
        [(records, times)] = cells.agg(total, F.count(F.lit(1))).collect()
        first = cells.orderBy("worker", "time").limit(MOST_CELLS).collect()
        wrong = self.rows.where("reason IS NOT NULL")
        reasons = wrong.groupBy("reason").agg(count).orderBy(F.desc("records"), "reason")
        record = F.coalesce("place.raw", "place.was")
        return RepairSummary(
            records,
            times,
            [
                {
                    "worker": labels[row["worker"]],
                    "time": time_type.render(Time(row["time"])),
                    "records": row["records"],
                }
                for row in first
            ],
            {row["reason"]: row["records"] for row in reasons.collect()},
            _examples(self._repaired, record=record, becomes=_text("data")),
            _examples(wrong, record=record, reason=F.col("reason")),
        )

    def write(self, decision: str) -> int:
        """Write the repaired records to `settled` under a decision, not yet named; their number."""
        names = settled_schema(self.tape.time_type, self._payload).names
        places = [F.col("place").getField(name).alias(name) for name in ("batch", "pos", "reason")]
        rows = self._repaired.select(
            F.lit(decision).alias("decision"), *places, "worker", "time", "data"
        )
        commit = delta.append(rows.select(names), self.tape.paths.settled, merge_schema=True)
        assert commit is not None  # Only a transaction can be there already.
        return int(commit.metrics["numOutputRows"])

    @cached_property
    def _roster(self) -> Roster:
        return Roster.load(self.tape, self.cut)

    @property
    def _repaired(self) -> DataFrame:
        return self.rows.where("reason IS NULL")

    @cached_property
    def _payload(self) -> StructType:
        return stored_payload(self.tape)

    def _made(self) -> DataFrame:
        """The chosen rows with the columns of the stream, and as `raw_text` marks them."""
        places = self.spark.createDataFrame(self.chosen.select(["batch", "pos"]))
        late = delta.load(self.spark, self.tape.paths.late)
        late = with_columns(late, self._payload).join(F.broadcast(places), ["batch", "pos"])
        nothing = F.lit(None).cast("string")  # Only sources of text have `raw`.
        own = {name: F.col(name) if name in late.columns else nothing for name in _KEPT}
        hidden = {HIDDEN.format(name): column for name, column in own.items()}
        made = fixed(late, self.stream.name, self.select, hidden)
        marked = raw_text.COLUMN in made.columns
        given = [name for name in made.columns if name not in (*hidden, raw_text.COLUMN)]
        self._require_columns(made, given)
        rows = made.select(
            *(F.col(quoted(HIDDEN.format(name))).alias(name) for name in _KEPT),
            F.struct(*(F.col(quoted(name)) for name in given)).alias("given"),
            (F.col(quoted(raw_text.COLUMN)) if marked else F.lit(None)).alias("unparsed"),
        )
        data = [
            F.col("given" if field.name in given else "data")
            .getField(field.name)
            .cast(field.dataType)
            .alias(field.name)
            for field in self._payload.fields
        ]
        return rows.select(
            *data,
            self._unread(given).alias(raw_text.COLUMN),
            (F.col("reason") == "no-row").alias(raw_text.NO_ROW),
            F.struct("batch", "pos", "reason", "raw", _text("data").alias("was")).alias(
                classify.PLACE
            ),
            *self._partition(),
        )

    def _unread(self, given: Collection[str]) -> Column:
        """The text of a record that is still malformed; else null."""
        listing = SourceListing.of(self.stream.source)
        folders = () if listing is None else listing.partition_columns()
        unread = causes.is_unread(self.stream, self._payload, folders, given)
        malformed = (F.col("reason") == "malformed") & unread
        return F.coalesce(F.col("unparsed").cast("string"), F.when(malformed, F.col("raw")))

    def _partition(self) -> list[Column]:
        """The partition that a record came from, where that decides about its worker."""
        by = self.stream.workers
        if not isinstance(by, ByPartition) or by.column is not None:
            return []
        workers = self._roster.workers
        labels = F.create_map(*(F.lit(v) for each in workers for v in (each.number, each.label)))
        return [F.try_element_at(labels, F.col("worker")).alias(classify.PARTITION)]

    def _require_columns(self, made: DataFrame, given: Sequence[str]) -> None:
        known = {field.name: field.dataType for field in self._payload.fields}
        for name in given:
            kind = made.schema[name].dataType.simpleString() if given.count(name) == 1 else ""
            if name not in known:
                problem = f"gives {name}, which is no column of the stream"
            elif not kind:
                problem = f"gives {name} more than once"
            elif kind != known[name].simpleString():
                problem = f"gives {name} as {kind}, but it is {known[name].simpleString()}"
            else:
                continue
            raise InvalidRequestError(
                "CAP-SELECT",
                f"stream {self.stream.name}: the fix {problem}",
                f"write EXPRESSION AS COLUMN; its columns: {', '.join(known)}",
                stream=self.stream.name,
            )


def _examples(rows: DataFrame, **columns: Column) -> list[dict[str, object]]:
    shown = rows.orderBy("place.batch", "place.pos").limit(MOST_EXAMPLES)
    letters = F.lit(MOST_LETTERS)
    texts = [F.left(column, letters).alias(name) for name, column in columns.items()]
    return [row.asDict() for row in shown.select(*texts).collect()]


def _text(data: str) -> Column:
    return F.to_json(data, {"ignoreNullFields": "false", **JSON})
