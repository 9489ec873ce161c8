"""Maintenance of the tapes of streams and of the tables that a lake's streams share.

It can be interrupted anywhere and repeated: only commits count. Tables whose files others keep
replacing, ranges with damaged records and streams with unreadable tapes are skipped, so none holds
up the others. Recordings are verified incrementally, because a stream without replays might never
be read otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from pyspark.sql import SparkSession

from capstan.errors import CapstanError, CheckFailedError, RangeLockedError
from capstan.errors.redaction import print_exception
from capstan.errors.shell_command import command
from capstan.errors.translation import to_capstan_error, translate, with_path
from capstan.maintenance.cleanup import checkpoint, clear_snapshots, clear_staging, vacuum
from capstan.maintenance.compact_records import compact_records
from capstan.maintenance.compaction import compact_table
from capstan.maintenance.retire import finish_retirements
from capstan.replay.execution.staging import KEEP
from capstan.storage.compaction.growing_tables import (
    GrowingTable,
    aside_tables,
    index_tables,
    ledger_tables,
)
from capstan.storage.compaction.outcome import TableResult
from capstan.storage.compaction.policy import Sizes
from capstan.storage.job_attempts import clear_attempts
from capstan.storage.lake import Lake
from capstan.storage.ledger.foreign_commits import note_touched
from capstan.storage.ledger.moved_tables import find_all_moved
from capstan.storage.ledger.tables import now as moment
from capstan.storage.ledger.tables import read_rows
from capstan.storage.tape.index import worker_states
from capstan.storage.tape.index_totals import store_totals
from capstan.storage.tape.tape import Tape, newest_cut, open_tape, require_streams
from capstan.verify import verify

T = TypeVar("T")
_LAKE_WIDE = frozenset({"CAP-DISK-FULL", "CAP-NO-ACCESS"})
"""Errors that affect the whole lake, unless they name a path of a single stream."""


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """The result of maintenance."""

    streams: list[str] = field(default_factory=list)
    # Of each stream; the shared tables under an empty name.
    tables: dict[str, list[TableResult]] = field(default_factory=dict)
    staging: list[str] = field(default_factory=list)  # deleted staged output of replays
    snapshots: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)  # deleted attempts, with request and result
    retired: dict[str, int] = field(default_factory=dict)  # deleted records, by stream
    failed: list[CapstanError] = field(default_factory=list)  # of tapes that were not maintained
    violations: list[CapstanError] = field(default_factory=list)  # of recordings that break a rule
    busy: list[CapstanError] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """The result as one JSON object."""
        all_tables = [table for tables in self.tables.values() for table in tables]
        return {
            "streams": self.streams,
            "tables": [
                {"stream": stream or None, **asdict(table)}
                for stream, tables in self.tables.items()
                for table in tables
            ],
            "rewritten": sum(table.rewritten for table in all_tables),
            "vacuumed": sum(table.vacuumed for table in all_tables),
            "staging": self.staging,
            "snapshots": self.snapshots,
            "jobs": self.jobs,
            "retired": self.retired,
            "failed": _by_stream(self.failed),
            "violations": _by_stream(self.violations),
            "busy": [error.summary() for error in self.busy],
        }

    @property
    def refusal(self) -> CapstanError | None:
        """The error to report: first a failed stream, then damage, a violation, or skipped work."""
        if self.failed:
            return _combined(self.failed)
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
                f"stream {stream}: records of batches {first} to {last} differ from its index; "
                "they were left unchanged",
                f"{command('verify', stream, '--deep')} names the events",
                stream=stream,
            )
        if len(self.violations) > 1:
            names = [str(error.fields["stream"]) for error in self.violations]
            return CheckFailedError(
                "CAP-VIOLATION",
                f"recordings of {len(names)} streams break a rule: {', '.join(names)}",
                "`capstan verify` names the worker and event of each",
                streams=names,
            )
        return next(iter((*self.violations, *self.busy)), None)


def _by_stream(errors: Iterable[CapstanError]) -> list[dict[str, object]]:
    return [{"stream": error.fields["stream"], **error.summary()} for error in errors]


def _combined(failed: Sequence[CapstanError]) -> CapstanError:
    """The first error, with the names of the other streams."""
    first, *others = failed
    if not others:
        return first
    names = ", ".join(str(error.fields["stream"]) for error in others)
    message = f"{first.message}; also failed: {names}"
    return type(first)(first.code, message, first.hint, **first.fields)


def maintain(
    spark: SparkSession,
    lake: Lake,
    streams: Iterable[str],
    *,
    sizes: Sizes | None = None,
    now: datetime | None = None,
    keep: timedelta = KEEP,
) -> MaintenanceResult:
    """Maintain the tapes of streams and the shared tables of the lake; idempotent.

    What jobs left, and staged output that can no longer be published, is kept for `keep`.
    """
    names = list(streams)
    require_streams(lake, names)
    result = MaintenanceResult()
    with with_path(lake.root):
        for name in names:
            try:
                tape = open_tape(lake, name, stamps=True)
                result.tables[name] = _maintain_tape(spark, lake, tape, sizes or Sizes(), result)
                result.streams.append(name)
            except Exception as error:
                stream_error = _stream_error(lake, name, error)
                if stream_error is None:
                    raise
                result.failed.append(stream_error)
        result.tables[""] = _maintain_shared(spark, lake, result)
        result.staging.extend(clear_staging(lake, now or moment(), keep))
        result.jobs.extend(clear_attempts(lake, now or moment(), keep))
    return result


def _stream_error(lake: Lake, name: str, error: Exception) -> CapstanError | None:
    """The error of a single stream; None if it affects all streams."""
    translated = to_capstan_error(error)
    if translated.code in _LAKE_WIDE:
        # Spark omits the scheme of a path.
        root = lake.stream(name).root.rpartition("://")[2]
        inside = f"{root}/" in f"{translated.fields.get('path', '')}/"
        if translated.code == "CAP-DISK-FULL" or not inside:
            return None
    if translate(error) is None:
        print_exception(error)
    message = translated.message
    if not message.startswith(f"stream {name}"):
        message = f"stream {name}: {message}"
    fields = {**translated.fields, "stream": name}
    return type(translated)(translated.code, message, translated.hint, **fields)


def _maintain_tape(
    spark: SparkSession, lake: Lake, tape: Tape, sizes: Sizes, result: MaintenanceResult
) -> list[TableResult]:
    retired = _unless_locked(lambda: finish_retirements(spark, lake, tape), 0, result)
    if retired:
        result.retired[tape.name] = retired
    cut = newest_cut(tape)
    # Before the index is compacted, since afterwards files with newer events are read in full.
    store_totals(tape, cut.commit, 0)
    ended = all(state.closed for state in worker_states(tape, cut))
    path = tape.paths.records
    records = _unless_locked(
        lambda: compact_records(spark, lake, tape, sizes), TableResult("records"), result
    )
    tables = [
        _cleaned(spark, records, path),
        *(_maintain_index(spark, table, result, ended=ended) for table in index_tables(tape)),
    ]
    # Verified last: if the lake cannot be written, an earlier step has failed already.
    if not _is_import(tape):
        try:
            verify(spark, lake, tape).raise_for_violations()
        except CheckFailedError as violation:
            result.violations.append(violation)
    return tables


def _is_import(tape: Tape) -> bool:
    """Whether a tape was imported; such a tape was checked then and never grows."""
    return tape.settings.fixed.get("domain") == "import"


def _maintain_shared(
    spark: SparkSession, lake: Lake, result: MaintenanceResult
) -> list[TableResult]:
    tables = []
    for pipeline in lake.states():
        result.snapshots.extend(clear_snapshots(spark, lake, pipeline))
        uncompacted = TableResult(f"state {pipeline}")
        tables.append(_cleaned(spark, uncompacted, lake.state(pipeline)))
    growing = (*aside_tables(lake), *ledger_tables(lake))
    tables += [_maintain_index(spark, table, result) for table in growing]
    _record_changes(lake, result)
    return tables


def _record_changes(lake: Lake, result: MaintenanceResult) -> None:
    """Record changes to targets by others before the targets' logs expire."""
    find_all_moved(lake)
    first: dict[str, int] = {}
    for row in read_rows(lake, "coverage", ("target", "target_version")):
        target, version = row["target"], row["target_version"] or 0
        first[target] = min(version, first.get(target, version))
    for target, version in first.items():
        try:
            with with_path(target):
                note_touched(lake, target, version)
        except Exception as error:
            translated = to_capstan_error(error)
            if translated.code == "CAP-DISK-FULL":
                raise
            # A target belongs to its owner; a missing one holds up nothing.
            result.busy.append(translated)


def _maintain_index(
    spark: SparkSession, table: GrowingTable, result: MaintenanceResult, *, ended: bool = False
) -> TableResult:
    compacted = _unless_locked(
        lambda: compact_table(spark, table, ended=ended), TableResult(table.name), result
    )
    return _cleaned(spark, compacted, table.path)


def _cleaned(spark: SparkSession, compacted: TableResult, path: str) -> TableResult:
    """Vacuum a table that was compacted, then write a checkpoint of its log."""
    compacted.vacuumed = vacuum(spark, compacted.table, path)
    compacted.checkpoint = checkpoint(spark, compacted.table, path)
    return compacted


def _unless_locked(work: Callable[[], T], otherwise: T, result: MaintenanceResult) -> T:
    """The outcome of some work; if other writers prevent it, it is skipped and recorded."""
    try:
        return work()
    except RangeLockedError as locked:
        result.busy.append(locked)
        return otherwise
