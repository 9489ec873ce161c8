"""Retirement: deletes records before a time and keeps everything else of the tape.

Events stay, with their counts and content hashes. So verification, holdings, frontiers and
published output are unaffected. A replay that needs a deleted record is refused.

The ledger records the retirement before the first record is deleted. After a kill, the same command
or the next maintenance completes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from capstan.core.config import split_streams
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import IncompleteError, InvalidRequestError, RangeLockedError
from capstan.errors.shell_command import command
from capstan.errors.translation import with_path
from capstan.maintenance.expected_content import records_in
from capstan.spark.versions_api import repartition_by_number
from capstan.storage.compaction.outcome import repeat_until_done
from capstan.storage.delta import delta
from capstan.storage.delta.data_files import read_files
from capstan.storage.delta.file_rewrite import exchange
from capstan.storage.keyed_lookup import with_values
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims
from capstan.storage.ledger.retirements import RetirementState, read_retired, write_retired
from capstan.storage.tape import index
from capstan.storage.tape.bounds import box_of, fit
from capstan.storage.tape.grains import require_whole_steps
from capstan.storage.tape.region_sql import region_sql
from capstan.storage.tape.tape import Cut, Tape, newest_cut, open_tape
from capstan.telemetry.instrumentation import emit


@dataclass(slots=True)
class RetiredFiles:
    """The files with records at some times.

    `whole` are deleted, with their numbers of rows; `partly` are rewritten for their other records.
    """

    whole: dict[str, int] = field(default_factory=dict)
    partly: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    partly_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RetirementPlan:
    """The plan of a retirement; `stands` if it was done before."""

    tape: Tape
    cut: Cut
    box: Box
    records: int
    files: RetiredFiles
    stands: bool = False

    def to_json(self) -> dict[str, object]:
        """The plan as one JSON object."""
        return {
            "stream": self.tape.name,
            "cut": self.cut.commit,
            "before": self.box.to_json(self.tape.time_type)["until"],
            "records": self.records,
            "files": len(self.files.whole),
            "bytes": self.files.bytes,
            "partly": len(self.files.partly),
            "partly_bytes": self.files.partly_bytes,
            "stands": self.stands,
        }


def plan_retire(lake: Lake, stream: str, before: str) -> RetirementPlan:
    """Plan a retirement, without a JVM and without changing anything.

    `before` is the first time whose records stay, a bound as on the command line.
    """
    tape = open_tape(lake, stream, what="`capstan retire`")
    cut = newest_cut(tape)
    until = Box.bound_of_text(tape.time_type, before)
    if all(bound is None for bound in until):
        raise InvalidRequestError(
            "CAP-RANGE", f"{before} is not a bound", "use a time such as 2024-01-01"
        )
    require_whole_steps(tape, until)
    box = Box((None,) * len(until), until)
    frontier = index.frontier_of(tape, index.worker_states(tape, cut))
    if not box.is_complete(frontier):
        times = [tape.time_type.render(time) for time in frontier.elements]
        raise IncompleteError(
            "CAP-INCOMPLETE",
            f"stream {stream}: records can still arrive before {before}, the frontier is at "
            + ", ".join(map(str, times)),
            "retire complete times only: use a time that is not after the frontier",
            stream=stream,
            frontier=times,
        )
    done = [retirement.box for retirement in read_retired(lake, tape) if retirement.done]
    if any(retired.intersect(box) == box for retired in done):
        return RetirementPlan(tape, cut, box, 0, RetiredFiles(), stands=True)
    records = records_in(tape, cut, box, done)
    return RetirementPlan(tape, cut, box, records, _files_with(tape, box), stands=not records)


def retire(spark: SparkSession, lake: Lake, stream: str, before: str) -> RetirementPlan:
    """Delete the records of a stream before a time, and return the plan of that; idempotent."""
    plan = plan_retire(lake, stream, before)
    if plan.stands:
        return plan
    tape, box = plan.tape, plan.box
    with with_path(tape.paths.root):
        _require_idle(lake, tape)
        if all(retirement.box != box for retirement in read_retired(lake, tape)):
            write_retired(lake, tape, box, plan.cut, plan.records, RetirementState.BEGUN)
        emit("retire.begun", stream=stream, records=plan.records)
        finish_retirements(spark, lake, tape)
    return plan


def finish_retirements(spark: SparkSession, lake: Lake, tape: Tape) -> int:
    """Complete started retirements; returns the number of deleted records, by the index."""
    # A run that takes its lock after a retirement was recorded knows that its records are gone.
    started = [retirement for retirement in read_retired(lake, tape) if not retirement.done]
    if not started:
        return 0
    _require_idle(lake, tape)
    for retirement in started:
        _delete(spark, tape, retirement.box)
        emit("retire.deleted", stream=tape.name, records=retirement.records)
        cut = Cut(retirement.cut, -1)
        write_retired(lake, tape, retirement.box, cut, retirement.records, RetirementState.DONE)
        emit("retire.done", stream=tape.name, records=retirement.records)
    return sum(retirement.records for retirement in started)


def _delete(spark: SparkSession, tape: Tape, box: Box) -> None:
    """Delete the records at some times from the table, in one commit."""
    path = tape.paths.records

    def step() -> bool | None:
        files = _files_with(tape, box)
        if not files.whole and not files.partly:
            return None
        rows = _without(spark, tape, box, files.partly) if files.partly else None
        removed = {**files.whole, **files.partly}
        commit = exchange(
            spark,
            path,
            removed,
            rows,
            leaves_out=None,
            note={"maintain": "retire"},
            before_commit=lambda: emit("retire.written", stream=tape.name),
        )
        return False if commit is None else None

    repeat_until_done(path, step)


def _without(spark: SparkSession, tape: Tape, box: Box, files: Mapping[str, int]) -> DataFrame:
    """The remaining rows of some files, one file each, in their former order."""
    inside = region_sql(tape.time_type, Region(box), tape.columns)
    rows = read_files(spark, tape.paths.records, files)
    numbers = {name: number for number, name in enumerate(files)}
    remaining = with_values(rows, "_file", F.col("_metadata.file_name"), numbers).where(
        f"NOT ({inside})"
    )
    return (
        repartition_by_number(remaining, len(files), "_file")
        .sortWithinPartitions("worker", "time", "batch", "pos")
        .drop("_file")
    )


def _require_idle(lake: Lake, tape: Tape) -> None:
    """Check that no run replays the stream, since it may rely on the records."""
    for claim in claims.active(lake):
        if tape.name in split_streams(claim.stream):
            raise RangeLockedError(
                "CAP-HELD",
                f"run {claim.run} replays stream {tape.name} and may need its old records",
                f"wait for it to end; if it is dead, run {command('unlock', claim.run)}",
                holder=claim.run,
                stream=tape.name,
            )


def _files_with(tape: Tape, box: Box) -> RetiredFiles:
    files = RetiredFiles()
    for row in delta.open_table(tape.paths.records).files().to_pylist():
        inside = fit(box_of(row, tape.time_type), Region(box))
        if not row["num_records"] or inside is False:
            continue
        (files.whole if inside else files.partly)[row["path"]] = int(row["num_records"])
        if inside:
            files.bytes += int(row["size_bytes"])
        else:
            files.partly_bytes += int(row["size_bytes"])
    return files
