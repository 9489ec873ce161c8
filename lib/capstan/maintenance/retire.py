"""Retirement: records before a time are deleted, and the tape stays what it was in all else.

Events stay, with their counts and content hashes. So verification, holdings, frontiers and what was
published stand as before; and a replay that needs a record which is gone is refused by name.

The ledger says so before the first record goes. What a kill leaves between is finished by the same
command, or by the next maintenance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from capstan.core.times import Box, Kind
from capstan.core.times.region import Region
from capstan.error_translation import with_path
from capstan.errors import IncompleteError, InvalidRequestError, RangeLockedError
from capstan.instrumentation import emit
from capstan.maintenance.compaction import until_settled
from capstan.maintenance.expected_content import records_in
from capstan.storage import delta
from capstan.storage.data_files import bound_integer
from capstan.storage.file_rewrite import exchange, rows_of_files
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims
from capstan.storage.ledger.retirements import State, read_retired, write_retired
from capstan.storage.tape import index
from capstan.storage.tape.grains import require_whole_steps
from capstan.storage.tape.region_sql import region_sql
from capstan.storage.tape.tape import Cut, Tape, newest_cut, open_tape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CUT_US = 1000
"""Delta cuts the bounds of timestamps to milliseconds: a value may lie so far above its bound."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a retirement would do.

    Attributes:
        tape: The tape.
        cut: Its newest cut.
        box: The times.
        records: How many records go.
        files: Files that go as a whole, with their rows.
        partly: Files that have other records as well, and are written anew without those that go.
        bytes: The size of the files that go as a whole.
        partly_bytes: The size of the others.
        stands: Whether it was done already.
    """

    tape: Tape
    cut: Cut
    box: Box
    records: int
    files: Mapping[str, int]
    partly: Mapping[str, int]
    bytes: int
    partly_bytes: int
    stands: bool = False

    def to_json(self) -> dict[str, object]:
        """The plan as one JSON object."""
        return {
            "stream": self.tape.name,
            "cut": self.cut.commit,
            "before": self.box.to_json(self.tape.time_type)["until"],
            "records": self.records,
            "files": len(self.files),
            "bytes": self.bytes,
            "partly": len(self.partly),
            "partly_bytes": self.partly_bytes,
            "stands": self.stands,
        }


def plan_retire(lake: Lake, stream: str, before: str) -> Plan:
    """What `retire` would do, without a JVM and without changing anything.

    Args:
        lake: The lake.
        stream: The stream.
        before: The first time whose records stay, as the command line writes a bound.

    Raises:
        InvalidRequestError: `CAP-STREAM`, `CAP-TIME`; `CAP-RANGE` when nothing is bounded.
        IncompleteError: `CAP-INCOMPLETE` when records can still come before that time.
    """
    tape = open_tape(lake, stream)
    cut = newest_cut(tape)
    until = Box.bound_of_text(tape.time_type, before)
    if all(bound is None for bound in until):
        raise InvalidRequestError(
            "CAP-RANGE", f"{before} bounds no time", "give a time: 2024-01-01"
        )
    require_whole_steps(tape, until)
    box = Box((None,) * len(until), until)
    frontier = index.frontier_of(tape, index.worker_states(tape, cut))
    if not box.is_complete(frontier):
        times = [tape.time_type.render(time) for time in frontier.elements]
        raise IncompleteError(
            "CAP-INCOMPLETE",
            f"stream {stream}: records can still come before {before}, the frontier is at "
            + ", ".join(map(str, times)),
            "retire what is complete: give a time that is not after the frontier",
            stream=stream,
            frontier=times,
        )
    known = read_retired(lake, tape)
    if any(each.done and _covers(each.box, box) for each in known):
        return Plan(tape, cut, box, 0, {}, {}, 0, 0, stands=True)
    return _planned(tape, cut, box, [each.box for each in known if each.done])


def retire(spark: SparkSession, lake: Lake, stream: str, before: str) -> Plan:
    """Delete the records of a stream before a time; the same again changes nothing.

    Returns:
        What was done, as it was planned.

    Raises:
        InvalidRequestError: As `plan_retire`.
        IncompleteError: `CAP-INCOMPLETE`.
        RangeLockedError: `CAP-HELD` while a run of the stream is at work, which may need the
            records; `CAP-CONFLICT` when other writers took files of the tape again and again.
        SystemFailureError: `CAP-DISK-FULL`, `CAP-NO-ACCESS` when the lake cannot be written.
    """
    plan = plan_retire(lake, stream, before)
    if plan.stands:
        return plan
    tape, box = plan.tape, plan.box
    with with_path(tape.paths.root):
        _require_idle(lake, tape)
        if all(each.box != box for each in read_retired(lake, tape)):
            write_retired(lake, tape, box, plan.cut, plan.records, State.BEGUN)
        emit("retire.begun", stream=stream, records=plan.records)
        finish(spark, lake, tape)
    return plan


def finish(spark: SparkSession, lake: Lake, tape: Tape) -> int:
    """Delete the records whose retirement was begun; how many that were, by the index.

    Raises:
        RangeLockedError: As `retire`.
    """
    # Whoever has claimed after a retirement was written down has seen it, and needs none of it.
    begun = [each for each in read_retired(lake, tape) if not each.done]
    if not begun:
        return 0
    _require_idle(lake, tape)
    for each in begun:
        _delete(spark, tape, each.box)
        emit("retire.deleted", stream=tape.name, records=each.records)
        cut = Cut(each.cut, -1)
        write_retired(lake, tape, each.box, cut, each.records, State.DONE)
        emit("retire.done", stream=tape.name, records=each.records)
    return sum(each.records for each in begun)


def _delete(spark: SparkSession, tape: Tape, box: Box) -> None:
    """Take the records at some times out of the table, in one commit."""
    path = tape.paths.records

    def turn() -> bool | None:
        found = _files_with(tape, box)
        if not found.whole and not found.partly:
            return None
        rows = _without(spark, tape, box, found.partly) if found.partly else None
        gone = {**found.whole, **found.partly}
        done = exchange(
            spark,
            path,
            gone,
            rows,
            leaves_out=None,
            note={"maintain": "retire"},
            before_commit=lambda: emit("retire.written", stream=tape.name),
        )
        return False if done is None else None

    until_settled(path, turn)


def _without(spark: SparkSession, tape: Tape, box: Box, files: Mapping[str, int]) -> DataFrame:
    """What stays of some files, each in a file of its own, in the order that it had."""
    inside = region_sql(tape.time_type, Region(box), tape.columns)
    rows = rows_of_files(spark, tape.paths.records, files)
    pairs = [F.lit(part) for pair in zip(files, range(len(files)), strict=True) for part in pair]
    seat = F.element_at(F.create_map(*pairs), F.col("_metadata.file_name"))
    return (
        rows.withColumn("_seat", seat)
        .where(f"NOT ({inside})")
        .repartitionById(len(files), F.col("_seat"))
        .sortWithinPartitions("worker", "time", "batch", "pos")
        .drop("_seat")
    )


def _require_idle(lake: Lake, tape: Tape) -> None:
    """Check that no run plays the stream: it may have been told that its records are all there.

    Raises:
        RangeLockedError: `CAP-HELD`, naming the run.
    """
    for claim in claims.active(lake):
        if claim.stream == tape.name:
            raise RangeLockedError(
                "CAP-HELD",
                f"run {claim.run} plays stream {tape.name}, and may need what is to be retired",
                f"wait for it; if it is dead: `capstan unlock {claim.run}`",
                holder=claim.run,
                stream=tape.name,
            )


def _planned(tape: Tape, cut: Cut, box: Box, gone: Sequence[Box]) -> Plan:
    records = records_in(tape, cut, box, gone)
    found = _files_with(tape, box)
    return Plan(
        tape,
        cut,
        box,
        records,
        found.whole,
        found.partly,
        sum(found.bytes[path] for path in found.whole),
        sum(found.bytes[path] for path in found.partly),
        stands=not records,
    )


@dataclass(frozen=True, slots=True)
class _Files:
    """Files that can have records at some times: with no others, or with others; their sizes."""

    whole: Mapping[str, int]
    partly: Mapping[str, int]
    bytes: Mapping[str, int]


def _files_with(tape: Tape, box: Box) -> _Files:
    whole: dict[str, int] = {}
    partly: dict[str, int] = {}
    sizes: dict[str, int] = {}
    actions = delta.open_table(tape.paths.records).get_add_actions(flatten=True)
    for row in pa.table(actions).to_pylist():
        inside = _is_inside(row, tape, box)
        if row["num_records"] and inside is not False:
            (whole if inside else partly)[row["path"]] = int(row["num_records"])
            sizes[row["path"]] = int(row["size_bytes"])
    return _Files(whole, partly, sizes)


def _is_inside(row: Mapping[str, object], tape: Tape, box: Box) -> bool | None:
    """Whether a file's records are all at times of a box, or none is; None where it may be some."""
    inside: bool | None = True
    for coordinate, until in zip(tape.time_type.coordinates, box.until, strict=True):
        if until is None:
            continue
        low = bound_integer(row.get(f"min.time.{coordinate.name}"))
        high = bound_integer(row.get(f"max.time.{coordinate.name}"))
        cut = _CUT_US if coordinate.kind is Kind.TIMESTAMP else 1
        if low is not None and low >= until:
            return False
        if low is None or high is None or high + cut > until:
            inside = None
    return inside


def _covers(outer: Box, inner: Box) -> bool:
    """Whether one box, without lower bounds, has all of another in it."""
    pairs = zip(outer.until, inner.until, strict=True)
    return all(out is None or (into is not None and into <= out) for out, into in pairs)
