"""Maintenance of a stream's tape, and of what all streams of a lake share.

It may be ended anywhere and begun again: what was not committed counts for nothing. A table that
others keep taking files of is passed over; so is a range whose records are not what they were, and
a stream whose tape cannot be read: it holds up no other.
Recordings are verified from where that was last done: nobody else may ever read a stream that
nothing replays.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from capstan.error_translation import to_capstan_error, translate, with_path
from capstan.errors import CapstanError, CheckFailedError, RangeLockedError
from capstan.maintenance.cleanup import clear_snapshots, clear_staging
from capstan.maintenance.compact_records import compact_records
from capstan.maintenance.compaction import Compacted, compact_index
from capstan.maintenance.compaction_policy import Sizes
from capstan.maintenance.retire import finish
from capstan.maintenance.table_catalog import aside_tables, index_tables, ledger_tables
from capstan.maintenance.vacuum import checkpoint, vacuum
from capstan.replay.execution.staging import KEEP
from capstan.storage.lake import Lake
from capstan.storage.ledger.foreign_commits import note_touched
from capstan.storage.ledger.tables import now as moment
from capstan.storage.ledger.tables import read_rows
from capstan.storage.tape.index import worker_states
from capstan.storage.tape.index_totals import keep_totals
from capstan.storage.tape.tape import Tape, newest_cut, open_tape, require_streams
from capstan.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_OF_ALL = frozenset({"CAP-DISK-FULL", "CAP-NO-ACCESS"})
"""What is no stream's own, unless it names a place of the stream that is not to be reached."""


@dataclass(slots=True)
class Table:
    """What maintenance did to a table.

    Attributes:
        table: What it is called.
        files_before: Files that it had.
        files: Files that it has.
        bytes: Their size.
        rewritten: Bytes that were written anew.
        vacuumed: Files that were deleted, as no version that is kept has them.
        checkpoint: Whether its log got a checkpoint.
        damaged: Of records, batches (first and last) that are not what the index promises: they
            are as they were.
    """

    table: str
    files_before: int = 0
    files: int = 0
    bytes: int = 0
    rewritten: int = 0
    vacuumed: int = 0
    checkpoint: bool = False
    damaged: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class MaintenanceResult:
    """What maintenance did.

    Attributes:
        streams: The streams whose tapes were kept up.
        tables: By stream its tables, and under an empty name those that all streams share.
        staging: What was cleared away of what replays have staged.
        snapshots: What was cleared away of the state of followed pipelines.
        retired: By stream, the records whose deletion was finished.
        failed: Of each stream whose tape could not be kept up, why not.
        violations: Of each stream whose recording breaks a rule, what it breaks.
        busy: What was passed over, and why.
    """

    streams: list[str] = field(default_factory=list)
    tables: dict[str, list[Table]] = field(default_factory=dict)
    staging: list[str] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)
    retired: dict[str, int] = field(default_factory=dict)
    failed: list[CapstanError] = field(default_factory=list)
    violations: list[CapstanError] = field(default_factory=list)
    busy: list[CapstanError] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """The answer as one JSON object."""
        every = [table for tables in self.tables.values() for table in tables]
        return {
            "streams": self.streams,
            "tables": [
                {"stream": stream or None, **asdict(table)}
                for stream, tables in self.tables.items()
                for table in tables
            ],
            "rewritten": sum(table.rewritten for table in every),
            "vacuumed": sum(table.vacuumed for table in every),
            "staging": self.staging,
            "snapshots": self.snapshots,
            "retired": self.retired,
            "failed": _by_stream(self.failed),
            "violations": _by_stream(self.violations),
            "busy": [error.summary() for error in self.busy],
        }

    @property
    def refusal(self) -> CapstanError | None:
        """The error to end with: a tape that could not be kept up, then damage, then a violation.

        What was passed over comes last.
        """
        if self.failed:
            return _over_all(self.failed)
        damaged = [
            (stream, batches)
            for stream, tables in self.tables.items()
            for table in tables
            for batches in table.damaged
        ]
        if damaged:
            stream, (first, last) = damaged[0]
            return CheckFailedError(
                "CAP-TAPE",
                f"stream {stream}: records of batches {first} to {last} are not what its index "
                "says; they are as they were",
                f"`capstan verify {stream} --deep` names the events",
                stream=stream,
            )
        if len(self.violations) > 1:
            names = [str(each.fields["stream"]) for each in self.violations]
            return CheckFailedError(
                "CAP-VIOLATION",
                f"recordings of {len(names)} streams break a rule: {', '.join(names)}",
                "`capstan verify` says of each which worker and event",
                streams=names,
            )
        return next(iter((*self.violations, *self.busy)), None)


def _by_stream(errors: Iterable[CapstanError]) -> list[dict[str, object]]:
    return [{"stream": error.fields["stream"], **error.summary()} for error in errors]


def _over_all(failed: Sequence[CapstanError]) -> CapstanError:
    """One error for those of several streams: the first one, which names the others."""
    first, *others = failed
    if not others:
        return first
    names = ", ".join(str(each.fields["stream"]) for each in others)
    said = f"{first.message}; nor could be kept up: {names}"
    return type(first)(first.code, said, first.hint, **first.fields)


def maintain(
    spark: SparkSession,
    lake: Lake,
    streams: Iterable[str],
    *,
    sizes: Sizes | None = None,
    now: datetime | None = None,
    keep: timedelta = KEEP,
) -> MaintenanceResult:
    """Keep up the tapes of streams, and what all streams of the lake share; idempotent.

    Args:
        spark: The session.
        lake: The lake.
        streams: The streams.
        sizes: When records are worth to be written anew; the usual ones by default.
        now: The present moment, by which what is staged is old.
        keep: How long what nobody can publish any more stays in staging.

    Raises:
        InvalidRequestError: `CAP-STREAM` for a stream that is not on tape. Of one whose tape cannot
            be read the error is among what was done.
        SystemFailureError: `CAP-REWRITE`; `CAP-DISK-FULL` and `CAP-NO-ACCESS` when the lake cannot
            be written.
    """
    names = list(streams)
    require_streams(lake, names)
    done = MaintenanceResult()
    with with_path(lake.root):
        for name in names:
            try:
                tape = open_tape(lake, name)
                done.tables[name] = _tape(spark, lake, tape, sizes or Sizes(), done)
                done.streams.append(name)
            except Exception as error:
                own = _own(lake, name, error)
                if own is None:
                    raise
                done.failed.append(own)
        done.tables[""] = _shared(spark, lake, done)
        done.staging = clear_staging(lake, now or moment(), keep)
    return done


def _own(lake: Lake, name: str, error: Exception) -> CapstanError | None:
    """What keeps the tape of this stream from being kept up; None for what keeps all of them."""
    found = to_capstan_error(error)
    if found.code in _OF_ALL:
        # Spark leaves out the scheme of a place.
        root = lake.stream(name).root.rpartition("://")[2]
        inside = f"{root}/" in f"{found.fields.get('path', '')}/"
        if found.code == "CAP-DISK-FULL" or not inside:
            return None
    if translate(error) is None:
        traceback.print_exception(error)
    said = found.message
    if not said.startswith(f"stream {name}"):
        said = f"stream {name}: {said}"
    return type(found)(found.code, said, found.hint, **{**found.fields, "stream": name})


def _tape(
    spark: SparkSession, lake: Lake, tape: Tape, sizes: Sizes, done: MaintenanceResult
) -> list[Table]:
    finished = _unless_held(lambda: finish(spark, lake, tape), 0, done)
    if finished:
        done.retired[tape.name] = finished
    cut = newest_cut(tape)
    # Before the index is compacted: of what is in one file with newer events all is read.
    keep_totals(tape, cut.commit, 0)
    ended = all(state.closed for state in worker_states(tape, cut))
    path = tape.paths.records
    records = _unless_held(
        lambda: compact_records(spark, lake, tape, sizes), Compacted("records"), done
    )
    found = [_kept_up(spark, records, path)]
    for table in index_tables(tape):
        compacted = _unless_held(
            lambda t=table: compact_index(spark, t, ended=ended),  # type: ignore[misc]
            Compacted(table.name),
            done,
        )
        found.append(_kept_up(spark, compacted, table.path))
    # Last: a lake that cannot be written has ended it before.
    if not _is_import(tape):
        try:
            verify(spark, lake, tape).require_valid(tape)
        except CheckFailedError as violation:
            done.violations.append(violation)
    return found


def _is_import(tape: Tape) -> bool:
    """Whether it was judged when it was imported, or taken with all its faults, and never grows."""
    fixed = tape.settings.get("fixed")
    return isinstance(fixed, Mapping) and fixed.get("domain") == "import"


def _shared(spark: SparkSession, lake: Lake, done: MaintenanceResult) -> list[Table]:
    found = []
    for pipeline in lake.states():
        done.snapshots += clear_snapshots(spark, lake, pipeline)
        found.append(_kept_up(spark, Compacted(f"state {pipeline}"), lake.state(pipeline)))
    for table in (*aside_tables(lake), *ledger_tables(lake)):
        compacted = _unless_held(
            lambda t=table: compact_index(spark, t),  # type: ignore[misc]
            Compacted(table.name),
            done,
        )
        found.append(_kept_up(spark, compacted, table.path))
    _note_changes(lake, done)
    return found


def _note_changes(lake: Lake, done: MaintenanceResult) -> None:
    """Note what others have done to targets, before the logs of those lose it."""
    first: dict[str, int] = {}
    for row in read_rows(lake, "coverage", ("target", "target_version")):
        target, version = str(row["target"]), int(str(row["target_version"] or 0))
        first[target] = min(version, first.get(target, version))
    for target, version in first.items():
        try:
            with with_path(target):
                note_touched(lake, target, version)
        except Exception as error:
            found = to_capstan_error(error)
            if found.code == "CAP-DISK-FULL":
                raise
            # A target is its owner's: one that is away holds up nothing.
            done.busy.append(found)


def _kept_up(spark: SparkSession, compacted: Compacted, path: str) -> Table:
    """Vacuum a table that was compacted, then write a checkpoint of its log."""
    known = {name: value for name, value in asdict(compacted).items() if name != "commits"}
    known["files_before"] = compacted.files_before or 0
    known["vacuumed"] = vacuum(spark, compacted.table, path)
    known["checkpoint"] = checkpoint(spark, compacted.table, path)
    return Table(**known)


def _unless_held(work: Callable[[], T], otherwise: T, done: MaintenanceResult) -> T:
    """What some work comes to; where other writers keep it from being done, that is noted."""
    try:
        return work()
    except RangeLockedError as held:
        done.busy.append(held)
        return otherwise
