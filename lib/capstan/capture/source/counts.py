"""Record counts of a tape and of its source per batch, for reconciliation.

Records of synthetic batches were fed in an earlier batch and are counted there, in `late`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as F

from capstan.capture.source.files.consumed_offsets import SELECT
from capstan.capture.source.files.listing import SourceListing
from capstan.capture.source.files.schemas import declared_columns
from capstan.capture.source.selection import HIDDEN, selected
from capstan.capture.source.source import file_path, options_of
from capstan.capture.source.text import json_text, raw_text
from capstan.capture.source.text.line_checks import CheckedLines
from capstan.core.config import Source, Stream
from capstan.core.sql_names import quoted
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError, translation
from capstan.storage.delta.data_files import read_all
from capstan.storage.late.settled import SETTLING, settled_rows
from capstan.storage.tape.feed import Origin, reinjected_before
from capstan.storage.tape.fingerprint import record_hashes, row_hashes, sum_mod64
from capstan.storage.tape.region_sql import region_sql
from capstan.storage.tape.tape import Cut, Tape, read_events, stored_payload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

_FILE, _PART, _OFFSET = map(HIDDEN.format, ("file", "part", "offset"))
# Options that apply only to streaming reads.
_STREAMING = frozenset(
    {
        "maxfilespertrigger", "maxbytespertrigger", "maxfileage", "maxcachedfiles", "latestfirst",
        "filenameonly", "cleansource", "sourcearchivedir", "discardcachedinputratio",
        "maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", "startingoffsets",
        "startingtimestamp", "startingoffsetsbytimestamp", "failondataloss", "groupidprefix",
        "startingoffsetsbytimestampstrategy",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Counts:
    """The records of captured batches up to a cut, on the tape and in the source."""

    spark: SparkSession
    tape: Tape
    stream: Stream
    listing: SourceListing | None
    cut: Cut
    deep: bool  # compute content hashes; else they are null
    retired: Sequence[Box]  # times of deleted records, whose batches are excluded

    @property
    def source(self) -> Source:
        """The stream's source."""
        return self.stream.source

    def captured(self) -> DataFrame:
        """The input of all batches, with the columns of `feed`."""
        rows = read_all(self.spark, self.tape.paths.feed)
        return rows.where(f"origin = 'capture' AND batch <= {self.cut.batch}")

    def others(self) -> int:
        """The number of batches that were captured with another selection than the present one."""
        return self.captured().where(~self._alike).select("batch").distinct().count()

    @property
    def _alike(self) -> Column:
        return F.get_json_object("detail", f"$.{SELECT}").eqNullSafe(F.lit(self.source.selection))

    def consumed(self) -> DataFrame:
        """The input of the batches to compare, with the columns of `feed`."""
        captured = self.captured().where(self._alike)
        if not self.retired:
            return captured
        return captured.join(F.broadcast(self.retired_batches()), "batch", "left_anti")

    def retired_batches(self) -> DataFrame:
        """The distinct batches with records at retired times: column `batch`."""
        tape = self.tape
        conditions = [region_sql(tape.time_type, Region(box), tape.columns) for box in self.retired]
        events = read_events(self.spark, tape, self.cut).where("kind = 'messages'")
        anywhere = " OR ".join(f"({condition})" for condition in conditions)
        return events.where(anywhere).select("batch").distinct()

    def stored(self, part: Column) -> DataFrame:
        """Records on tape and in `late`: `batch, part, stored, stored_h1, stored_h2`.

        `part` is the record's part of the source, from its columns under `data`.
        """
        batches = F.broadcast(self.consumed().select("batch").distinct())

        def hashed(path: str) -> DataFrame:
            rows = read_all(self.spark, path).where(f"batch <= {self.cut.batch}")
            h1, h2 = record_hashes(rows) if self.deep else (_nothing(), _nothing())
            return rows.select("batch", part.alias("part"), h1.alias("h1"), h2.alias("h2"))

        paths = self.tape.paths
        both = hashed(paths.records).unionByName(hashed(paths.late))
        return _summed(both.join(batches, "batch", "left_semi"), "stored")

    def beside(self, batches: DataFrame) -> tuple[int, int, int, int]:
        """The records in `late` of some batches: dead ones, put back, dropped and repaired ones.

        The dead ones are not on tape, and wait for a decision.
        """
        late = read_all(self.spark, self.tape.paths.late).where(f"batch <= {self.cut.batch}")
        settled = []
        for origin in SETTLING:
            rows = settled_rows(self.tape, self.cut, origin).select(["batch", "pos"])
            origins = pa.array([str(origin)] * rows.num_rows, pa.string())
            settled.append(rows.append_column("settled", origins))
        places = self.spark.createDataFrame(pa.concat_tables(settled))
        late = late.join(F.broadcast(places), ["batch", "pos"], "left")
        before = reinjected_before(self.tape, self.cut)
        returned = (F.col("reason") == "late") & (F.col("batch") < before)
        put_back = F.when(returned, str(Origin.PUT_BACK)).otherwise("")
        late = late.withColumn("became", F.coalesce("settled", put_back))
        kinds = ("", Origin.PUT_BACK, *SETTLING)
        counted = late.join(F.broadcast(batches), "batch", "left_semi").agg(
            *(F.count_if(F.col("became") == str(kind)) for kind in kinds)
        )
        [(dead, back, dropped, repaired)] = counted.collect()
        return dead, back, dropped, repaired

    def no_rows(self) -> int:
        """The number of records in `late` that make no row."""
        late = read_all(self.spark, self.tape.paths.late).where("reason = 'no-row'")
        batches = F.broadcast(self.consumed().select("batch").distinct())
        return late.join(batches, "batch", "left_semi").count()

    def in_files(self) -> DataFrame:
        """The present content of the consumed files, a row per batch.

        `batch, part` (null), `source, source_h1, source_h2`, and `gone`, an array of files that are
        missing or have no rows.
        """
        listed = self.consumed().select("batch", F.explode("files").alias("file"))
        payload = stored_payload(self.tape)
        rows = self._at_rest(payload)
        by_row = self._selected(rows, payload, {_FILE: _uri(file_path(rows))})
        drops = _drops_malformed(self.source)
        h1, h2 = row_hashes(payload.fields) if self.deep or drops else (_nothing(), _nothing())
        # For a plain count Spark parses no column and would include malformed rows, which the
        # capture dropped. A count that depends on the content forces it to parse.
        count = F.sum(F.pmod("h1", F.lit(1)) + 1) if drops else F.count(F.lit(1))
        by_file = (
            by_row.select(F.col(quoted(_FILE)).alias("_file"), h1.alias("h1"), h2.alias("h2"))
            .groupBy("_file")
            .agg(
                count.alias("rows"),
                (sum_mod64(F.col("h1")) if self.deep else _nothing()).alias("h1"),
                (sum_mod64(F.col("h2")) if self.deep else _nothing()).alias("h2"),
            )
        )
        before = (
            by_row if self.source.where is None else rows.select(_uri(file_path(rows)).alias(_FILE))
        )
        texts = self._texts()
        if texts is not None:
            made = before.groupBy(F.col(quoted(_FILE)).alias("_file")).agg(
                F.count("*").alias("made")
            )
            unread = texts.join(made, "_file", "left").select(
                "_file", (F.col("texts") - F.coalesce("made", F.lit(0))).alias("unread")
            )
            by_file = by_file.join(unread, "_file", "full_outer").withColumn(
                "rows", F.coalesce("rows", F.lit(0)) + F.greatest("unread", F.lit(0))
            )
        joined = listed.join(by_file, _uri("file") == F.col("_file"), "left")
        return joined.groupBy("batch").agg(
            F.lit(None).cast("string").alias("part"),
            F.coalesce(F.sum("rows"), F.lit(0)).alias("source"),
            sum_mod64(F.col("h1")).alias("source_h1"),
            sum_mod64(F.col("h2")).alias("source_h2"),
            F.collect_list(F.when(F.col("_file").isNull(), F.col("file"))).alias("gone"),
        )

    def in_partitions(self) -> DataFrame:
        """The present content of a topic at the consumed offsets, a row per batch and part.

        `batch, part, source, source_h1, source_h2, cut_short`; the last is true if the first offset
        no longer has a record.
        """
        parts = self.consumed().where("part IS NOT NULL")
        ranges = parts.select("batch", "part", "since", "until")
        payload = stored_payload(self.tape)
        h1, h2 = row_hashes(payload.fields) if self.deep else (_nothing(), _nothing())
        rows = self._at_rest(payload)
        place = {
            _PART: F.concat_ws("/", F.col("topic"), F.col("partition")), _OFFSET: F.col("offset")
        }  # fmt: skip

        def within(rows: DataFrame, *columns: Column) -> DataFrame:
            part, offset = F.col(quoted(_PART)).alias("_part"), F.col(quoted(_OFFSET)).alias("_at")
            return rows.select(part, offset, *columns).join(
                F.broadcast(ranges),
                (F.col("part") == F.col("_part"))
                & (F.col("_at") < F.col("until"))
                & (F.col("_at") >= F.coalesce("since", F.lit(0))),
            )

        hashed = within(self._selected(rows, payload, place), h1.alias("h1"), h2.alias("h2"))
        first = (F.min("_at") > F.coalesce(F.min("since"), F.lit(0))).alias("cut_short")
        if self.source.selection is None:
            return _summed(hashed, "source", first)
        # A batch has any number of rows of a partition. Its first offset is that of all rows.
        every = within(rows.select("*", *(c.alias(name) for name, c in place.items())))
        firsts = every.groupBy("batch", "part").agg(first, F.count("*").alias("inputs"))
        gone = firsts.groupBy("batch").agg(
            F.bool_or("cut_short").alias("cut_short"), F.sum("inputs").alias("inputs")
        )
        counted = _summed(hashed.withColumn("part", F.lit(None).cast("string")), "source")
        joined = counted.join(gone, "batch", "full_outer")
        if self.source.where is None:
            # Each input makes a row at least.
            joined = joined.withColumn("source", F.greatest("source", "inputs"))
        return joined.drop("inputs")

    def _texts(self) -> DataFrame | None:
        """The texts in each file, counted without parsing them: `_file, texts`.

        A text is a line with anything in it, or a whole file; each makes a row at least. None for
        formats that are no text, and where some rows are left out or span lines.
        """
        options = self.source.options_by_name
        kind, whole = self.source.format.lower(), json_text.is_whole(options)
        if (
            kind not in raw_text.FORMATS
            or _drops_malformed(self.source)
            or (kind == "csv" and whole)
        ):
            return None
        read = self._reader().format("text").schema("line STRING")
        if (encoding := options.get("encoding", options.get("charset"))) is not None:
            read = read.option("encoding", encoding)
        lines = read.option("wholetext", whole).load(self.source.path)
        # What Java's `trim` takes away from a line of CSV; JSON has four kinds of blanks.
        blanks = r"^\ufeff?[\x00-\x20]*+$" if kind == "csv" else r"^\ufeff?[ \t\r\n]*+$"
        line = F.col("line")
        counted = ~line.rlike(blanks)
        if kind == "csv" and (comment := options.get("comment")):
            counted &= ~line.startswith(comment)
        heads = int(kind == "csv" and options.get("header", "").lower() == "true")
        texts = F.greatest(F.count_if(counted) - heads, F.lit(0)).alias("texts")
        return lines.groupBy(_uri(file_path(lines)).alias("_file")).agg(texts)

    def _at_rest(self, payload: StructType) -> DataFrame:
        """The source before its selection; null where a file lacks one of the columns."""
        source, reader = self.source, self._reader()
        if source.format == "kafka":
            return reader.load()
        try:
            columns = payload if source.selection is None else declared_columns(self.stream)
            if columns is None:
                return reader.load(source.path)
            # A malformed record is not left out by a condition.
            return raw_text.load(reader, source, self.listing, columns, as_text=self._as_text)
        except AnalysisException as error:
            raise InvalidRequestError(
                "CAP-SOURCE",
                f"the source at {source.path} cannot be read: {translation.root_message(error)}",
                "check source.path in streams.yaml; captured records stay on tape",
            ) from error

    @property
    def _as_text(self) -> bool:
        """Whether the files are JSON that must be read as text, in whichever way they were read."""
        lines = CheckedLines.of(self.source, self.listing)
        if lines is None:
            return False
        if self.listing is not None:
            lines.look_at(self.spark, dict.fromkeys(self.listing.files))
        return lines.as_text

    def _reader(self) -> DataFrameReader:
        declared = options_of(self.source, self.listing)
        options = {k: v for k, v in declared.items() if k.lower() not in _STREAMING}
        return self.spark.read.format(self.source.format).options(**options)

    def _selected(
        self, rows: DataFrame, payload: StructType, carried: Mapping[str, Column]
    ) -> DataFrame:
        """The rows as they are captured, with columns of the tape that they do not have."""
        found = selected(rows, self.stream.name, self.source, carried)
        lacking = [field for field in payload.fields if field.name not in found.columns]
        return found.select("*", *(F.lit(None).cast(f.dataType).alias(f.name) for f in lacking))


def _nothing() -> Column:
    return F.lit(None).cast("bigint")


def _summed(rows: DataFrame, name: str, *more: Column) -> DataFrame:
    return rows.groupBy("batch", "part").agg(
        F.count(F.lit(1)).alias(name),
        sum_mod64(F.col("h1")).alias(f"{name}_h1"),
        sum_mod64(F.col("h2")).alias(f"{name}_h2"),
        *more,
    )


def _drops_malformed(source: Source) -> bool:
    mode = source.options_by_name.get("mode", "")
    return source.format.lower() in ("csv", "json", "xml") and mode.upper() == "DROPMALFORMED"


def _uri(path: str | Column) -> Column:
    """A file's URI, with three slashes for local files."""
    return F.regexp_replace(path, "^file:/+", "file:///")
