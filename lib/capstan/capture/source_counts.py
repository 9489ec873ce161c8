"""Record counts of a tape and of its source per batch, for reconciliation.

Records of synthetic batches were fed in an earlier batch and are counted there, in `late`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as F

from capstan import error_translation
from capstan.capture.file_listing import Listing
from capstan.capture.source import file_path, options_of
from capstan.core.config import Source
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.storage.data_files import read_all
from capstan.storage.tape.fingerprint import record_hashes, row_hashes, sum_mod64
from capstan.storage.tape.region_sql import region_sql
from capstan.storage.tape.tape import Cut, Tape, read_events, stored_payload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

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


def consumed(spark: SparkSession, tape: Tape, cut: Cut, retired: Sequence[Box] = ()) -> DataFrame:
    """The input consumed by captured batches up to a cut, with the columns of `feed`.

    Args:
        spark: The session.
        tape: The tape.
        cut: The cut.
        retired: Times whose records were deleted; batches with such records are excluded.
    """
    rows = read_all(spark, tape.paths.feed)
    captured = rows.where(f"origin = 'capture' AND batch <= {cut.batch}")
    if not retired:
        return captured
    excluded = F.broadcast(retired_batches(spark, tape, cut, retired))
    return captured.join(excluded, "batch", "left_anti")


def retired_batches(spark: SparkSession, tape: Tape, cut: Cut, retired: Sequence[Box]) -> DataFrame:
    """The distinct batches with records at retired times: column `batch`."""
    conditions = [region_sql(tape.time_type, Region(box), tape.columns) for box in retired]
    events = read_events(spark, tape, cut).where("kind = 'messages'")
    anywhere = " OR ".join(f"({condition})" for condition in conditions)
    return events.where(anywhere).select("batch").distinct()


def stored(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    part: Column,
    *,
    deep: bool,
    retired: Sequence[Box] = (),
) -> DataFrame:
    """The stored records of captured batches, on tape and in `late`.

    Args:
        spark: The session.
        tape: The tape.
        cut: The cut.
        part: The record's part of the source, from its columns under `data`.
        deep: Whether to compute content hashes.
        retired: As in `consumed`.

    Returns:
        A row per batch and part: `batch, part, stored, stored_h1, stored_h2`; the hashes are null
        unless `deep`.
    """
    batches = F.broadcast(consumed(spark, tape, cut, retired).select("batch").distinct())
    tables = [
        _hashed(read_all(spark, path).where(f"batch <= {cut.batch}"), part, deep=deep)
        for path in (tape.paths.records, tape.paths.late)
    ]
    both = tables[0].unionByName(tables[1]).join(batches, "batch", "left_semi")
    return _summed(both, "stored")


def _hashed(rows: DataFrame, part: Column, *, deep: bool) -> DataFrame:
    nothing = F.lit(None).cast("bigint")
    h1, h2 = record_hashes(rows) if deep else (nothing, nothing)
    return rows.select("batch", part.alias("part"), h1.alias("h1"), h2.alias("h2"))


def _summed(rows: DataFrame, name: str, *more: Column) -> DataFrame:
    return rows.groupBy("batch", "part").agg(
        F.count(F.lit(1)).alias(name),
        sum_mod64(F.col("h1")).alias(f"{name}_h1"),
        sum_mod64(F.col("h2")).alias(f"{name}_h2"),
        *more,
    )


def in_files(
    spark: SparkSession,
    tape: Tape,
    source: Source,
    listing: Listing | None,
    cut: Cut,
    *,
    deep: bool,
    retired: Sequence[Box] = (),
) -> DataFrame:
    """The present content of the consumed files.

    Returns:
        A row per batch: `batch, part` (null), `source, source_h1, source_h2`, and `gone`, an array
        of files that are missing or have no rows.
    """
    listed = consumed(spark, tape, cut, retired).select("batch", F.explode("files").alias("file"))
    payload = stored_payload(tape)
    rows = read_at_rest(spark, source, payload, listing)
    by_row = rows.select("*", _uri(file_path(rows)).alias("_file"))
    nothing = F.lit(None).cast("bigint")
    drops = drops_malformed(source)
    h1, h2 = row_hashes(payload.fields) if deep or drops else (nothing, nothing)
    # For a plain count Spark parses no column and would include malformed rows, which the capture
    # dropped. A count that depends on the content forces it to parse.
    count = F.sum(F.pmod("h1", F.lit(1)) + 1) if drops else F.count(F.lit(1))
    by_file = (
        by_row.select("_file", h1.alias("h1"), h2.alias("h2"))
        .groupBy("_file")
        .agg(
            count.alias("rows"),
            (sum_mod64(F.col("h1")) if deep else nothing).alias("h1"),
            (sum_mod64(F.col("h2")) if deep else nothing).alias("h2"),
        )
    )
    joined = listed.join(by_file, _uri("file") == F.col("_file"), "left")
    return joined.groupBy("batch").agg(
        F.lit(None).cast("string").alias("part"),
        F.coalesce(F.sum("rows"), F.lit(0)).alias("source"),
        sum_mod64(F.col("h1")).alias("source_h1"),
        sum_mod64(F.col("h2")).alias("source_h2"),
        F.collect_list(F.when(F.col("_file").isNull(), F.col("file"))).alias("gone"),
    )


def drops_malformed(source: Source) -> bool:
    """Whether a source silently drops malformed records."""
    modes = [value.upper() for name, value in source.options.items() if name.lower() == "mode"]
    return source.format.lower() in ("csv", "json", "xml") and modes[-1:] == ["DROPMALFORMED"]


def _uri(path: str | Column) -> Column:
    """A file's URI, with three slashes for local files."""
    return F.regexp_replace(path, "^file:/+", "file:///")


def in_partitions(
    spark: SparkSession,
    tape: Tape,
    source: Source,
    cut: Cut,
    *,
    deep: bool,
    retired: Sequence[Box] = (),
) -> DataFrame:
    """The present content of a topic at the consumed offsets, from its broker.

    Returns:
        A row per batch and part: `batch, part, source, source_h1, source_h2, cut_short`; the last
        is true if the first offset no longer has a record.
    """
    parts = consumed(spark, tape, cut, retired).where("part IS NOT NULL")
    ranges = parts.select("batch", "part", "since", "until")
    payload = stored_payload(tape)
    messages = read_at_rest(spark, source, payload)
    nothing = F.lit(None).cast("bigint")
    h1, h2 = row_hashes(payload.fields) if deep else (nothing, nothing)
    rows = messages.select(
        F.concat_ws("/", "topic", "partition").alias("_part"),
        "offset",
        h1.alias("h1"),
        h2.alias("h2"),
    )
    within = (
        (F.col("part") == F.col("_part"))
        & (F.col("offset") < F.col("until"))
        & (F.col("offset") >= F.coalesce("since", F.lit(0)))
    )
    joined = rows.join(F.broadcast(ranges), within)
    first = (F.min("offset") > F.coalesce(F.min("since"), F.lit(0))).alias("cut_short")
    return _summed(joined, "source", first)


def read_at_rest(
    spark: SparkSession, source: Source, payload: StructType, listing: Listing | None = None
) -> DataFrame:
    """Read the source once, to its present end, with the tape's columns.

    Args:
        spark: The session.
        source: The stream's source.
        payload: The columns; null where a file lacks one.
        listing: The files of the source, if they could be listed.

    Raises:
        InvalidRequestError: `CAP-SOURCE` when Spark cannot read it.
    """
    declared = options_of(source, listing)
    options = {k: v for k, v in declared.items() if k.lower() not in _STREAMING}
    reader = spark.read.format(source.format).options(**options)
    if source.format == "kafka":
        return reader.load()
    try:
        return reader.schema(payload).load(source.path)
    except AnalysisException as error:
        raise InvalidRequestError(
            "CAP-SOURCE",
            f"the source at {source.path} cannot be read: {error_translation.root_message(error)}",
            "check source.path in streams.yaml; captured records stay on tape",
        ) from error
