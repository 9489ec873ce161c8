"""Evidence on a target from the ledgers and the tape's index: regions written, failed, waiting.

Everything is read through Arrow, without a JVM.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from capstan.core.times import Antichain, Box, ChangeBatch
from capstan.replay.execution.approval import waiting
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.stream_input import StreamInput
from capstan.replay.target.ownership import Ownership
from capstan.replay.target.standing import WrittenRegion
from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import iter_columns
from capstan.storage.delta.data_files import files_between
from capstan.storage.lake import Lake
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.region_json import parse_region
from capstan.storage.ledger.retirements import retired_boxes
from capstan.storage.ledger.runs import History, Step
from capstan.storage.ledger.tables import read_rows
from capstan.storage.tape import index
from capstan.storage.tape.index_sums import read_sums

_UNFINISHED = frozenset({Step.INTENT, Step.AUDITED, Step.APPROVED})


@dataclass(frozen=True, slots=True)
class Attempt:
    """An unpublished attempt to write into the target; `waits` if for approval."""

    run: str
    scope: Scope
    failed: bool
    waits: bool = False
    unfinished: bool = False  # whether its run can still publish, if anything is at work on it


@dataclass(frozen=True, slots=True)
class Evidence:
    """The state of a target with regard to one replay."""

    written: tuple[WrittenRegion, ...]  # and later changes by others, in the order of versions
    attempts: tuple[Attempt, ...]
    retired: tuple[Box, ...] = ()  # times of the streams whose records were deleted

    def failed(self, scope: Scope) -> str | None:
        """The run of the last attempt that overlaps `scope`, if that attempt failed."""
        last = next((attempt for attempt in self.attempts if attempt.scope.overlaps(scope)), None)
        return last.run if last is not None and last.failed else None

    def unfinished(self, scopes: Iterable[Scope]) -> tuple[str, ...]:
        """The runs that have not ended and overlap any of these scopes, newest first."""
        attempts = [attempt for attempt in self.attempts if attempt.unfinished]
        if not attempts:
            return ()
        listed = list(scopes)
        runs = [each.run for each in attempts if any(map(each.scope.overlaps, listed))]
        return tuple(dict.fromkeys(runs))

    def waiting(self, scopes: Iterable[Scope]) -> list[str]:
        """The runs awaiting approval that overlap these scopes, oldest first.

        Empty unless each scope overlaps one.
        """
        waiting: list[str] = []
        attempts = [attempt for attempt in reversed(self.attempts) if attempt.waits]
        for scope in scopes:
            runs = [attempt.run for attempt in attempts if attempt.scope.overlaps(scope)]
            if not runs:
                return []
            waiting += runs
        return list(dict.fromkeys(waiting))


def gather(lake: Lake, plan: Plan) -> Evidence:
    """Read the evidence on a plan's target from the ledgers."""
    owner = Ownership(plan)
    histories = owner.histories
    runs = {covered.run for covered in owner.covered}
    # Runs that were killed before their certificates; the same replays complete them.
    begun = {run for run, history in histories.items() if history.done is None}
    return Evidence(
        tuple(entry for entry in owner.regions if entry.run not in begun),
        tuple(_attempts(lake, plan, histories, runs)),
        tuple(box for stream in plan.inputs for box in retired_boxes(lake, stream.tape)),
    )


def _attempts(
    lake: Lake, plan: Plan, histories: Mapping[str, History], published_runs: Collection[str]
) -> Iterable[Attempt]:
    """Attempts by their locks, since an attempt may fail before it writes anything else."""
    # Locks taken for a rollback are excluded: they are no attempt to write and may be wider.
    steps = {
        (run, row.attempt): row.step for run, history in histories.items() for row in history.rows
    }
    published = {run: h.done.attempt for run, h in histories.items() if h.done is not None}
    audited = {run: waiting(history) for run, history in histories.items()}
    waits = {(run, row.attempt) for run, row in audited.items() if row is not None}
    rows = read_rows(lake, "claims", target=plan.target, stream=plan.request.stream, kind="claim")
    # An attempt that gave up has recorded no step: the releases of all others are not read.
    names = tuple({row["run"] for row in rows if (row["run"], row["attempt"]) not in steps})
    releases = read_rows(lake, "claims", kind="release", run=names) if names else []
    released = {(row["run"], row["attempt"]) for row in releases}
    for row in reversed(rows):
        run, attempt = row["run"], row["attempt"]
        step = steps.get((run, attempt))
        gave_up = step is None and (run, attempt) in released
        is_rollback = attempt > published.get(run, attempt)
        if run in published_runs or gave_up or is_rollback:
            continue
        workers = row["workers"]
        selected = tuple(workers) if isinstance(workers, list) else None
        scope = Scope(plan.target, selected, parse_region(str(row["region"])))
        history = histories.get(run)
        unfinished = history is None or history.last.step in _UNFINISHED
        yield Attempt(run, scope, step is Step.FAILED, (run, attempt) in waits, unfinished)


def recorded_extent(plan: Plan) -> tuple[int, int] | None:
    """The least and greatest last coordinate of the selected workers' records; None without any.

    Both are integers of the coordinate's kind, and of all streams together.
    """
    bounds: list[int] = []
    for stream in plan.inputs:
        workers = pa.array(sorted(stream.workers), pa.int32())
        counts = read_sums(stream.tape).up_to(stream.cut.commit).counts
        of_chosen = counts.filter(pc.is_in(counts["worker"], value_set=workers))
        for value in (pc.min(of_chosen["first"]).as_py(), pc.max(of_chosen["last"]).as_py()):
            bounds += [] if value is None else [value]
    return (min(bounds), max(bounds)) if bounds else None


def worker_starts(plan: Plan) -> dict[int, Antichain]:
    """The earliest times at which each worker can have records: its frontier after its first event.

    A worker opened later first moves its capability to the stream's frontier. Earlier times have no
    records of it to cover.

    A row made of several streams can have records of any of their workers. Each worker that the
    rows keep then stands for all of them.
    """
    by_stream = [_starts(stream) for stream in plan.inputs]
    if not plan.inputs.several:
        return by_stream[0]
    first = Antichain.of(t for starts in by_stream for start in starts.values() for t in start)
    return dict.fromkeys(plan.inputs.workers, first)


def _starts(stream: StreamInput) -> dict[int, Antichain]:
    """The earliest times at which each chosen worker of a stream can have records."""
    time_type = stream.tape.time_type
    held = {worker: ChangeBatch([(time_type.minimum, 1)]) for worker in stream.workers}
    path = stream.tape.paths.events
    table = delta.open_table(path)
    firsts = files_between(path, table, "seq", 0, 0)
    first = (dataset.field("seq") == 0) & (dataset.field("commit") <= stream.cut.commit)
    chosen = first & dataset.field("worker").isin(sorted(stream.workers))
    columns = ["worker", "seq", "commit", "updates"]
    for rows in iter_columns(path, columns, table, firsts):
        batch = rows.filter(chosen)
        updates = batch.column("updates")
        flat = pc.list_flatten(updates)
        owners = pc.take(batch.column("worker"), pc.list_parent_indices(updates)).to_pylist()
        times = index.arrow_times(pc.struct_field(flat, "time"), time_type)
        diffs = pc.struct_field(flat, "diff").to_pylist()
        for worker, time, diff in zip(owners, times, diffs, strict=True):
            held[worker].update(time, diff)
    return {
        worker: Antichain.of(time for time, count in changes.items() if count > 0)
        for worker, changes in held.items()
    }
