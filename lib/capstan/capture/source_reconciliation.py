"""The source against the tape: whether all that was consumed is on tape or in `late`, and once.

Of files that is asked of the files themselves. Of Kafka offsets say how many records there have to
be; the broker is asked where that is not enough: offsets that no record has (of transactions, of
compaction), and contents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyarrow import dataset
from pyspark.sql import Column
from pyspark.sql import functions as F

from capstan.capture import source_counts
from capstan.capture.file_listing import Listing, Passed, Reason, passed_over, read_files
from capstan.capture.source import broker_gone
from capstan.core.config import Source, Stream
from capstan.core.times import Box
from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.instrumentation import emit
from capstan.storage.arrow_scan import rows_of
from capstan.storage.lake import is_table
from capstan.storage.tape.feed import Origin
from capstan.storage.tape.tape import Cut, Tape, newest_cut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_SAMPLE = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """A batch of which source and tape do not say the same.

    Attributes:
        batch: The batch.
        part: `topic/partition` of Kafka; else None.
        kind: `missing`, the source has more than is stored; `extra`, it has less; `changed`, as
            many, and others; `gap`, offsets between two batches that none consumed.
        source: How many records the source has, or how many offsets the gap.
        stored: How many are on tape or in `late`.
    """

    batch: int
    part: str | None
    kind: str
    source: int
    stored: int


@dataclass(frozen=True, slots=True)
class Compared:
    """What a comparison of source and tape came to.

    Attributes:
        stream: The stream.
        cut: The commit up to which it was compared.
        batches: Batches that were compared.
        records: Their records, on tape or in `late`.
        deep: Whether contents were compared as well.
        gone: Batches that cannot be compared whole, as their source is there no more.
        unknown: Batches before the first one that says what it consumed.
        retired: Batches that are left out, as records of theirs were deleted.
        differing: How many differences there are.
        findings: The first of them.
        passed: The files of the source that no capture has read, by reason; None where the source
            is none of files, or they cannot be listed.
    """

    stream: str
    cut: int
    batches: int
    records: int
    deep: bool
    gone: int
    unknown: int
    retired: int
    differing: int
    findings: tuple[Difference, ...]
    passed: Passed | None = None

    @property
    def unread(self) -> int:
        """How many files no capture has read, and nothing says that none should."""
        return 0 if self.passed is None else self.passed.counts.get(str(Reason.UNREAD), 0)

    @property
    def agrees(self) -> bool:
        """Whether nothing differs of what could be compared, and nothing was left unread."""
        return self.differing == 0 and self.unread == 0

    def to_json(self) -> dict[str, object]:
        """The comparison as one JSON object."""
        found = [asdict(each) for each in self.findings]
        passed = None if self.passed is None else asdict(self.passed)
        told = {name: getattr(self, name) for name in self.__slots__}
        return {**told, "agrees": self.agrees, "passed": passed, "findings": found}

    def require_agreement(self) -> None:
        """Check that nothing differs.

        Raises:
            CheckFailedError: `CAP-SOURCE-DIFFERS`, with the first difference.
        """
        if self.agrees:
            return
        if not self.findings:
            assert self.passed is not None
            raise CheckFailedError(
                "CAP-SOURCE-DIFFERS",
                f"stream {self.stream}: {self.unread:,} files of the source are not on tape: "
                + ", ".join(self.passed.files[str(Reason.UNREAD)]),
                f"run `capstan capture {self.stream}` first; then ask again",
                stream=self.stream,
            )
        first = self.findings[0]
        part = f" of {first.part}" if first.part else ""
        raise CheckFailedError(
            "CAP-SOURCE-DIFFERS",
            f"stream {self.stream}, batch {first.batch}{part}: {first.kind}, the source has "
            f"{first.source:,} records and {first.stored:,} are stored; {self.differing} such",
            "a file that was changed after it was captured shows here as well; `capstan verify "
            "--deep` says whether the tape itself is damaged",
            stream=self.stream,
        )


def compare(
    spark: SparkSession,
    tape: Tape,
    stream: Stream,
    *,
    deep: bool = False,
    retired: Sequence[Box] = (),
) -> Compared:
    """Hold what a stream's batches consumed against what is on its tape and in `late`.

    Args:
        spark: The session.
        tape: The tape.
        stream: The declaration, which says where the source is.
        deep: Compare contents as well, by their hashes.
        retired: Times whose records were deleted; batches that had some are left out.

    Raises:
        InvalidRequestError: `CAP-NO-FEED`, no batch says what it consumed, or the source does not
            count.
        SystemFailureError: `CAP-BROKER`, the broker has to be asked, and does not answer.
    """
    cut = newest_cut(tape)
    kind, first = _kind(tape, cut)
    listing = Listing.of(stream.source)
    gaps: list[Difference] = []
    if kind == "kafka":
        gaps = _gaps(spark, tape, cut)
        sides = _kafka(spark, tape, stream.source, cut, retired, deep=deep)
    else:
        sides = _files(spark, tape, stream.source, listing, cut, retired, deep=deep)
    differing = (F.col("source") != F.col("stored")) | ~(
        F.col("source_h1").eqNullSafe(F.col("stored_h1"))
        & F.col("source_h2").eqNullSafe(F.col("stored_h2"))
    )
    judged = sides.withColumn("differs", differing & ~F.col("gone")).cache()
    try:
        totals = judged.agg(
            F.count_distinct("batch").alias("batches"),
            F.coalesce(F.sum("stored"), F.lit(0)).alias("records"),
            F.count_distinct(F.when(F.col("gone"), F.col("batch"))).alias("gone"),
            F.coalesce(F.sum(F.col("differs").cast("int")), F.lit(0)).alias("differing"),
        ).collect()[0]
        sample = judged.where("differs").orderBy("batch", "part").limit(_SAMPLE).collect()
    finally:
        judged.unpersist()
    emit("source.compared", stream=tape.name, batches=totals["batches"])
    findings = sorted([*gaps, *map(_difference, sample)], key=lambda each: each.batch)
    return Compared(
        tape.name,
        cut.commit,
        totals["batches"] - totals["gone"],
        totals["records"],
        deep,
        totals["gone"],
        first,
        source_counts.lost(spark, tape, cut, retired).count() if retired else 0,
        len(gaps) + totals["differing"],
        tuple(findings[:_SAMPLE]),
        _passed(tape, stream.source, listing),
    )


def _passed(tape: Tape, source: Source, listing: Listing | None) -> Passed | None:
    read = None if listing is None else read_files(tape)
    return None if listing is None or read is None else passed_over(source, listing, read)


def _kind(tape: Tape, cut: Cut) -> tuple[str, int]:
    """What the source counts by, and the first batch that says what it consumed."""
    what = "does not say what its batches consumed"
    if is_table(tape.paths.feed):
        batch, origin = dataset.field("batch"), dataset.field("origin")
        by = {"kafka": dataset.field("part"), "files": dataset.field("files")}
        said = rows_of(tape.paths.feed).to_table(
            columns={"batch": batch, **{kind: each.is_valid() for kind, each in by.items()}},
            filter=(origin == str(Origin.CAPTURE)) & (batch <= cut.batch),
        )
        for kind in by:
            if pc.any(said[kind]).as_py():
                return kind, pc.min(said["batch"]).as_py()
        what = "has a source that counts neither files nor offsets"
    raise InvalidRequestError(
        "CAP-NO-FEED",
        f"stream {tape.name} {what}",
        "only captures of files and of Kafka can be compared to their source",
        stream=tape.name,
    )


def _files(
    spark: SparkSession,
    tape: Tape,
    source: Source,
    listing: Listing | None,
    cut: Cut,
    retired: Sequence[Box],
    *,
    deep: bool,
) -> DataFrame:
    theirs = source_counts.in_files(spark, tape, source, listing, cut, deep=deep, retired=retired)
    nowhere = F.lit(None).cast("string")
    ours = source_counts.stored(spark, tape, cut, nowhere, deep=deep, retired=retired)
    joined = _both(theirs, ours)
    # A file without a row is not told from one that is gone; both leave less than is stored.
    gone = (F.size("gone") > 0) & (F.col("source") < F.col("stored"))
    return joined.withColumn("gone", F.coalesce(gone, F.lit(False)))


def _kafka(
    spark: SparkSession,
    tape: Tape,
    source: Source,
    cut: Cut,
    retired: Sequence[Box],
    *,
    deep: bool,
) -> DataFrame:
    part = F.concat_ws("/", "data.topic", "data.partition")
    ours = source_counts.stored(spark, tape, cut, part, deep=deep, retired=retired)
    nothing = F.lit(None).cast("bigint")
    promised = (
        source_counts.fed(spark, tape, cut, retired)
        .where("part IS NOT NULL")
        .select(
            "batch",
            "part",
            (F.col("until") - F.coalesce("since", F.lit(0))).alias("source"),
            nothing.alias("source_h1"),
            nothing.alias("source_h2"),
        )
    )
    counted = _both(promised, ours).withColumn("gone", F.lit(False))
    if not deep and counted.where("source <> stored").isEmpty():
        return counted
    try:
        theirs = source_counts.in_partitions(
            spark, tape, source, cut, deep=deep, retired=retired
        ).cache()
        theirs.count()
    except Exception as error:
        raise (broker_gone(tape.name, error) or error) from error
    ranges = promised.select("batch", "part")
    told = ranges.join(theirs, ["batch", "part"], "left").fillna(0, ["source"])
    # What retention has taken away, whole or in part, cannot be compared.
    less = (F.col("source") < F.col("stored")) & F.coalesce("cut_short", F.lit(True))
    return _both(told, ours).withColumn("gone", less)


def _both(theirs: DataFrame, ours: DataFrame) -> DataFrame:
    same = theirs["batch"].eqNullSafe(ours["batch"]) & theirs["part"].eqNullSafe(ours["part"])
    joined = theirs.join(ours, same, "full_outer")
    kept = [name for name in theirs.columns if name not in ("batch", "part", "source")]
    return joined.select(
        F.coalesce(theirs["batch"], ours["batch"]).alias("batch"),
        F.coalesce(theirs["part"], ours["part"]).alias("part"),
        _or_zero(theirs["source"]).alias("source"),
        *(theirs[name] for name in kept),
        _or_zero(ours["stored"]).alias("stored"),
        ours["stored_h1"],
        ours["stored_h2"],
    )


def _or_zero(value: Column) -> Column:
    return F.coalesce(value, F.lit(0))


def _gaps(spark: SparkSession, tape: Tape, cut: Cut) -> list[Difference]:
    """Offsets that lie between what two batches of a partition consumed."""
    rows = source_counts.fed(spark, tape, cut).where("part IS NOT NULL")
    before = F.expr("lag(until) OVER (PARTITION BY part ORDER BY batch)")
    found = (
        rows.withColumn("before", before)
        .where("since IS NOT NULL AND before IS NOT NULL AND since <> before")
        .orderBy("batch", "part")
        .limit(_SAMPLE)
        .collect()
    )
    return [
        Difference(row["batch"], row["part"], "gap", row["since"] - row["before"], 0)
        for row in found
    ]


def _difference(row: Row) -> Difference:
    source, stored = row["source"], row["stored"]
    kind = "changed" if source == stored else "missing" if source > stored else "extra"
    return Difference(row["batch"], row["part"], kind, source, stored)
