"""How many records a tape and its source have, batch by batch, to be held against each other.

Records of inserted batches were fed in an earlier one, and are counted there: in `late`.
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

# Of a stream's source, and of no read that ends.
_STREAMING = frozenset(
    {
        "maxfilespertrigger", "maxbytespertrigger", "maxfileage", "maxcachedfiles", "latestfirst",
        "filenameonly", "cleansource", "sourcearchivedir", "discardcachedinputratio",
        "maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", "startingoffsets",
        "startingtimestamp", "startingoffsetsbytimestamp", "failondataloss", "groupidprefix",
        "startingoffsetsbytimestampstrategy",
    }
)  # fmt: skip


def fed(spark: SparkSession, tape: Tape, cut: Cut, retired: Sequence[Box] = ()) -> DataFrame:
    """What batches of captures consumed: columns of `feed`, up to a cut.

    Args:
        spark: The session.
        tape: The tape.
        cut: The cut.
        retired: Times whose records were deleted: batches that had some are left out.
    """
    rows = read_all(spark, tape.paths.feed)
    found = rows.where(f"origin = 'capture' AND batch <= {cut.batch}")
    if not retired:
        return found
    return found.join(F.broadcast(lost(spark, tape, cut, retired)), "batch", "left_anti")


def lost(spark: SparkSession, tape: Tape, cut: Cut, retired: Sequence[Box]) -> DataFrame:
    """The batches that have had records at some times: `batch`, each once."""
    inside = [region_sql(tape.time_type, Region(box), tape.columns) for box in retired]
    events = read_events(spark, tape, cut).where("kind = 'messages'")
    return events.where(" OR ".join(f"({each})" for each in inside)).select("batch").distinct()


def stored(
    spark: SparkSession,
    tape: Tape,
    cut: Cut,
    part: Column,
    *,
    deep: bool,
    retired: Sequence[Box] = (),
) -> DataFrame:
    """What is on tape and in `late` of captured batches.

    Args:
        spark: The session.
        tape: The tape.
        cut: The cut.
        part: The part of the source that a record is of, from its columns under `data`.
        deep: With content hashes.
        retired: As in `fed`.

    Returns:
        A row per batch and part: `batch, part, stored, stored_h1, stored_h2`, the hashes null
        where they are not wanted.
    """
    batches = F.broadcast(fed(spark, tape, cut, retired).select("batch").distinct())
    tables = [
        _told(read_all(spark, path).where(f"batch <= {cut.batch}"), part, deep=deep)
        for path in (tape.paths.records, tape.paths.late)
    ]
    both = tables[0].unionByName(tables[1]).join(batches, "batch", "left_semi")
    return _summed(both, "stored")


def _told(rows: DataFrame, part: Column, *, deep: bool) -> DataFrame:
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
    """What the files have that were consumed, as they are now.

    Returns:
        A row per batch: `batch, part` (null), `source, source_h1, source_h2`, and `gone`, an array
        of files that are there no more or have no row.
    """
    listed = fed(spark, tape, cut, retired).select("batch", F.explode("files").alias("file"))
    payload = stored_payload(tape)
    there = at_rest(spark, source, payload, listing)
    now = there.select("*", _uri(file_path(there)).alias("_file"))
    nothing = F.lit(None).cast("bigint")
    drops = drops_malformed(source)
    h1, h2 = row_hashes(payload.fields) if deep or drops else (nothing, nothing)
    # To count rows Spark parses no column: malformed ones, which the capture has left out, would
    # count, if the number of rows did not hang on what is in them.
    count = F.sum(F.pmod("h1", F.lit(1)) + 1) if drops else F.count(F.lit(1))
    by_file = (
        now.select("_file", h1.alias("h1"), h2.alias("h2"))
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
    """Whether a source leaves out what does not parse, without a word."""
    modes = [value.upper() for name, value in source.options.items() if name.lower() == "mode"]
    return source.format.lower() in ("csv", "json", "xml") and modes[-1:] == ["DROPMALFORMED"]


def _uri(path: str | Column) -> Column:
    """A file's URI; of one on this machine with as many slashes as in any other."""
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
    """What a topic has at the offsets that were consumed, as its broker gives it now.

    Returns:
        A row per batch and part: `batch, part, source, source_h1, source_h2, cut_short`; the last
        says that the first offset has no record any more.
    """
    parts = fed(spark, tape, cut, retired).where("part IS NOT NULL")
    ranges = parts.select("batch", "part", "since", "until")
    payload = stored_payload(tape)
    now = at_rest(spark, source, payload)
    nothing = F.lit(None).cast("bigint")
    h1, h2 = row_hashes(payload.fields) if deep else (nothing, nothing)
    rows = now.select(
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


def at_rest(
    spark: SparkSession, source: Source, payload: StructType, listing: Listing | None = None
) -> DataFrame:
    """The source read once, to its present end, in the columns that a tape has of it.

    Args:
        spark: The session.
        source: The declared source.
        payload: The columns; a file that lacks some has nulls there.
        listing: The files of the source, where they could be listed.

    Raises:
        InvalidRequestError: `CAP-SOURCE` when Spark cannot read it.
    """
    asked = options_of(source, listing)
    options = {k: v for k, v in asked.items() if k.lower() not in _STREAMING}
    reader = spark.read.format(source.format).options(**options)
    if source.format == "kafka":
        return reader.load()
    try:
        return reader.schema(payload).load(source.path)
    except AnalysisException as error:
        raise InvalidRequestError(
            "CAP-SOURCE",
            f"the source at {source.path} cannot be read: {error_translation.root_message(error)}",
            "check source.path in streams.yaml; what was captured is on tape",
        ) from error
