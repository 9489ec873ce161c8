"""Reconciliation of source and tape: every consumed record is on tape or in `late`, exactly once.

Files are read again. For Kafka the offsets give the number of records. The broker is read when that
is not enough: for offsets without a record (transactions, compaction), and for contents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyarrow import dataset
from pyspark.sql import functions as F

from capstan.capture.batch import checkpoint_guard
from capstan.capture.source.counts import Counts
from capstan.capture.source.errors import broker_gone
from capstan.capture.source.files.listing import (
    Reason,
    SkippedFiles,
    SourceListing,
    captured_files,
    skipped_files,
)
from capstan.capture.source.secrets import with_secrets
from capstan.core.config import Source, Stream
from capstan.core.config.sources import QUERY
from capstan.core.times import Box
from capstan.errors import InvalidRequestError
from capstan.storage.delta.arrow_scan import rows_of
from capstan.storage.lake import is_table
from capstan.storage.tape.feed import Origin
from capstan.storage.tape.tape import Cut, Tape, newest_cut
from capstan.telemetry.instrumentation import emit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_SAMPLE = 20


@dataclass(frozen=True, slots=True)
class SourceDifference:
    """A batch for which source and tape differ.

    Kinds: `missing`, the source has more records than are stored; `extra`, it has fewer; `changed`,
    the number is the same, but the contents differ; `gap`, offsets that no batch consumed.
    """

    batch: int
    part: str | None  # `topic/partition` for Kafka
    kind: str
    source: int  # records, or offsets in the gap
    stored: int  # records on tape or in `late`


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The outcome of a reconciliation; its counts are of batches, unless said otherwise."""

    stream: str
    cut: int
    batches: int
    records: int  # on tape or in `late`
    deep: bool  # contents were compared as well
    gone: int  # not comparable in full, as their source is gone
    unknown: int  # before the first one with known input
    retired: int  # excluded, as some of their records were deleted
    differing: int
    findings: tuple[SourceDifference, ...]
    passed: SkippedFiles | None = None  # files that captures skipped; None if not listed
    otherwise: int = 0  # excluded: another `select` or `where`
    no_row: int = 0  # records in `late` that make no row, beside `records`
    in_source: int = 0  # records of the batches that could be compared in full
    on_tape: int = 0  # of these, those of which captures put one on tape
    dead: int = 0  # those in `late` that are not on tape
    returned: int = 0  # those that came late, and were put back
    dropped: int = 0  # those that were dropped
    repaired: int = 0  # those that a fix has put on tape
    missing: int = 0  # records of the source that are nowhere
    extra: int = 0  # stored ones beyond those that the source has, in other batches or parts

    @property
    def unread(self) -> int:
        """The number of files that no capture has read for no known reason."""
        return 0 if self.passed is None else self.passed.counts.get(str(Reason.UNREAD), 0)

    @property
    def agrees(self) -> bool:
        """Whether nothing comparable differs and no file is unread."""
        return self.differing == 0 and self.unread == 0

    def to_json(self) -> dict[str, object]:
        """The outcome as one JSON object."""
        return {**asdict(self), "agrees": self.agrees}


def reconcile(
    spark: SparkSession,
    tape: Tape,
    stream: Stream,
    *,
    deep: bool = False,
    retired: Sequence[Box] = (),
) -> Reconciliation:
    """Compare the input of a stream's batches with the records on its tape and in `late`.

    `deep` compares the hashes of contents as well. Batches with `retired` times, whose records were
    deleted, are excluded.
    """
    return with_secrets(
        spark, stream, lambda resolved: _reconcile(spark, tape, resolved, deep, retired)
    )


def _reconcile(
    spark: SparkSession, tape: Tape, stream: Stream, deep: bool, retired: Sequence[Box]
) -> Reconciliation:
    cut = newest_cut(tape)
    if stream.source.format == QUERY:
        raise _unknown_source(tape, "is recorded by a query", "query")
    require_known_source(tape)
    if stream.source.function is not None:
        raise _unknown_source(tape, "has a function as its source", "function")
    kind, first = _kind(tape, cut)
    listing = SourceListing.of(stream.source)
    counts = Counts(spark, tape, stream, listing, cut, deep, retired)
    gaps = _gaps(replace(counts, retired=())) if kind == "kafka" else []
    sides = _kafka(counts) if kind == "kafka" else _files(counts)
    differing = (F.col("source") != F.col("stored")) | ~(
        F.col("source_h1").eqNullSafe(F.col("stored_h1"))
        & F.col("source_h2").eqNullSafe(F.col("stored_h2"))
    )
    compared = sides.withColumn("differs", differing & ~F.col("gone")).cache()
    try:
        totals = compared.agg(
            F.count_distinct("batch").alias("batches"),
            F.coalesce(F.sum("stored"), F.lit(0)).alias("records"),
            F.count_distinct(F.when(F.col("gone"), F.col("batch"))).alias("gone"),
            F.coalesce(F.sum(F.col("differs").cast("int")), F.lit(0)).alias("differing"),
        ).collect()[0]
        sample = compared.where("differs").orderBy("batch", "part").limit(_SAMPLE).collect()
        whole = (
            compared.groupBy("batch")
            .agg(
                F.bool_or("gone").alias("gone"),
                F.sum("source").alias("source"),
                F.sum("stored").alias("stored"),
                # What one batch or part lacks is not made up for by what another has too much.
                F.sum(F.greatest(F.col("source") - F.col("stored"), F.lit(0))).alias("missing"),
                F.sum(F.greatest(F.col("stored") - F.col("source"), F.lit(0))).alias("extra"),
            )
            .where("NOT gone")
        )
        sums = ("source", "stored", "missing", "extra")
        in_source, stored, missing, extra = whole.agg(
            *(F.coalesce(F.sum(name), F.lit(0)) for name in sums)
        ).collect()[0]
        dead, returned, dropped, repaired = counts.beside(whole.select("batch"))
    finally:
        compared.unpersist()
    no_rows = counts.no_rows()
    emit("source.compared", stream=tape.name, batches=totals["batches"])
    findings = sorted([*gaps, *map(_difference, sample)], key=lambda finding: finding.batch)
    return Reconciliation(
        tape.name,
        cut.commit,
        totals["batches"] - totals["gone"],
        totals["records"] - no_rows,
        deep,
        totals["gone"],
        first,
        counts.retired_batches().count() if retired else 0,
        len(gaps) + totals["differing"],
        tuple(findings[:_SAMPLE]),
        _skipped(tape, stream.source, listing),
        counts.others(),
        no_rows,
        in_source,
        stored - dead - returned - dropped - repaired,
        dead,
        returned,
        dropped,
        repaired,
        missing,
        extra,
    )


def _skipped(tape: Tape, source: Source, listing: SourceListing | None) -> SkippedFiles | None:
    read = None if listing is None else captured_files(tape)
    return None if listing is None or read is None else skipped_files(source, listing, read)


def _kind(tape: Tape, cut: Cut) -> tuple[str, int]:
    """The unit of the source, `kafka` or `files`, and the first batch with known input."""
    problem = "has no record of the input of its batches"
    if is_table(tape.paths.feed):
        batch, origin = dataset.field("batch"), dataset.field("origin")
        units = {"kafka": dataset.field("part"), "files": dataset.field("files")}
        entries = rows_of(tape.paths.feed).to_table(
            columns={"batch": batch, **{kind: unit.is_valid() for kind, unit in units.items()}},
            filter=(origin == str(Origin.CAPTURE)) & (batch <= cut.batch),
        )
        for kind in units:
            if pc.any(entries[kind]).as_py():
                return kind, pc.min(entries["batch"]).as_py()
        problem = "has a source that counts neither files nor offsets"
    raise InvalidRequestError(
        "CAP-NO-FEED",
        f"stream {tape.name} {problem}",
        "only captures of files and of Kafka can be compared with their source",
        stream=tape.name,
    )


def require_known_source(tape: Tape) -> None:
    """Check that a tape is not recorded by a streaming query of the user's."""
    if checkpoint_guard.is_attached(tape):
        raise _unknown_source(tape, "is recorded by a query", "query")


def _unknown_source(tape: Tape, problem: str, knows: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-NO-FEED",
        f"stream {tape.name} {problem}, and only the {knows} knows which rows it makes of its "
        "sources",
        f"compare without --source: --deep compares all records with what the {knows} had "
        "returned; the input of each batch is in the tape's table `feed`",
        stream=tape.name,
    )


def _files(counts: Counts) -> DataFrame:
    joined = _join(counts.in_files(), counts.stored(F.lit(None).cast("string")))
    # A file without rows looks like a missing one; either leaves fewer records than are stored.
    gone = (F.size("gone") > 0) & (F.col("source") < F.col("stored"))
    return joined.withColumn("gone", F.coalesce(gone, F.lit(False)))


def _kafka(counts: Counts) -> DataFrame:
    consumed = counts.consumed()
    if counts.source.selection is None:
        keys, part = ["batch", "part"], F.concat_ws("/", "data.topic", "data.partition")
        consumed = consumed.where("part IS NOT NULL")
    else:
        # Which partition a record came from is not on the tape.
        keys, part = ["batch"], F.lit(None).cast("string")
    stored = counts.stored(part)
    if counts.source.selection is None and not counts.deep:
        nothing = F.lit(None).cast("bigint")
        offsets = (F.col("until") - F.coalesce("since", F.lit(0))).alias("source")
        hashes = nothing.alias("source_h1"), nothing.alias("source_h2")
        by_offsets = _join(consumed.select(*keys, offsets, *hashes), stored)
        if by_offsets.where("source <> stored").isEmpty():
            return by_offsets.withColumn("gone", F.lit(False))
    try:
        counted = counts.in_partitions().cache()
        counted.count()
    except Exception as error:
        raise (broker_gone(counts.tape.name, error) or error) from error
    known = consumed.select(*keys).distinct().join(counted, keys, "left").fillna(0, ["source"])
    # Batches that the broker's retention has deleted, in full or in part, cannot be compared.
    expired = (F.col("source") < F.col("stored")) & F.coalesce("cut_short", F.lit(True))
    return _join(known, stored).withColumn("gone", expired)


def _join(source: DataFrame, stored: DataFrame) -> DataFrame:
    """Both sides per batch and part, with counts of zero for absent rows."""
    same = source["batch"].eqNullSafe(stored["batch"]) & source["part"].eqNullSafe(stored["part"])
    joined = source.join(stored, same, "full_outer")
    others = [name for name in source.columns if name not in ("batch", "part", "source")]
    return joined.select(
        F.coalesce(source["batch"], stored["batch"]).alias("batch"),
        F.coalesce(source["part"], stored["part"]).alias("part"),
        F.coalesce(source["source"], F.lit(0)).alias("source"),
        *(source[name] for name in others),
        F.coalesce(stored["stored"], F.lit(0)).alias("stored"),
        stored["stored_h1"],
        stored["stored_h2"],
    )


def _gaps(counts: Counts) -> list[SourceDifference]:
    """Offsets of a partition that lie between two batches and that neither consumed."""
    rows = counts.consumed().where("part IS NOT NULL")
    before = F.expr("lag(until) OVER (PARTITION BY part ORDER BY batch)")
    gaps = (
        rows.withColumn("before", before)
        .where("since IS NOT NULL AND before IS NOT NULL AND since <> before")
        .orderBy("batch", "part")
        .limit(_SAMPLE)
        .collect()
    )
    return [
        SourceDifference(row["batch"], row["part"], "gap", row["since"] - row["before"], 0)
        for row in gaps
    ]


def _difference(row: Row) -> SourceDifference:
    source, stored = row["source"], row["stored"]
    kind = "changed" if source == stored else "missing" if source > stored else "extra"
    return SourceDifference(row["batch"], row["part"], kind, source, stored)
