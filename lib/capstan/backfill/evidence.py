"""What the ledgers and the tape's index say of a target: what was written, what failed, since when.

No JVM is needed: everything is read through Arrow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from capstan.backfill.region_owner import Written
from capstan.core.config import Mode
from capstan.core.times import Antichain, Box, ChangeBatch, TimeType
from capstan.core.times.region import Region
from capstan.replay.execution.approval import waiting
from capstan.replay.output.foreign_changes import changes_of_others
from capstan.replay.overlap import is_stale
from capstan.replay.planning.plan import Plan
from capstan.storage.arrow_scan import rows_of
from capstan.storage.lake import Lake
from capstan.storage.ledger import coverage
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.region_json import parse_region
from capstan.storage.ledger.retirements import retired_boxes
from capstan.storage.ledger.runs import History, Step, read_histories
from capstan.storage.ledger.tables import read_rows
from capstan.storage.tape import index


@dataclass(frozen=True, slots=True)
class Attempted:
    """An attempt that tried to write into the target.

    Attributes:
        run: The run.
        scope: What it claimed.
        failed: Whether it said that it failed.
        waits: Whether what it has staged waits to be published.
    """

    run: str
    scope: Scope
    failed: bool
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a target, as far as one replay goes.

    Attributes:
        written: What stands in it, and what others have changed since, in the order of versions.
        attempted: What was tried and does not stand, the newest first.
        retired: Times of the stream whose records were deleted.
    """

    written: tuple[Written, ...]
    attempted: tuple[Attempted, ...]
    retired: tuple[Box, ...] = ()

    def failed(self, scope: Scope) -> str | None:
        """The run whose attempt was the last over part of `scope`, if it failed."""
        last = next((each for each in self.attempted if each.scope.overlaps(scope)), None)
        return last.run if last is not None and last.failed else None

    def waiting(self, scopes: Iterable[Scope]) -> list[str]:
        """The runs that wait to be published over parts of all these scopes; none if one lacks it.

        The oldest comes first.
        """
        found: list[str] = []
        waits = [each for each in reversed(self.attempted) if each.waits]
        for scope in scopes:
            runs = [each.run for each in waits if each.scope.overlaps(scope)]
            if not runs:
                return []
            found += runs
        return list(dict.fromkeys(found))


def gather(lake: Lake, plan: Plan) -> Evidence:
    """Read what the ledgers know of a plan's target."""
    histories = read_histories(lake, target=plan.target)
    standing = coverage.current(lake, plan.target)
    written = [
        (each.target_version, _written(plan, each, histories.get(each.run))) for each in standing
    ]
    if standing:
        written += _changed(plan, standing[0].target_version)
        written.sort(key=lambda each: each[0])
    stands = {each.run for each in standing}
    return Evidence(
        tuple(each for _, each in written if each is not None),
        tuple(_attempted(lake, plan, histories, stands)),
        retired_boxes(lake, plan.tape),
    )


def _written(plan: Plan, covered: Covered, history: History | None) -> Written | None:
    workers = None if covered.scope.workers is None else frozenset(covered.scope.workers)
    everything = Region(Box.everything(plan.time_type))
    same_shape = plan.same_coordinates(covered.scope.region)
    if covered.stream != plan.tape.name:
        # Another stream's rows are in the way only where they have replaced this one's.
        if history is not None and history.mode not in (None, Mode.REPLACE):
            return None
        region = covered.scope.region if same_shape else everything
        return Written(covered.run, workers, region, current=False)
    # What a copy has told in more coordinates than a pipeline has may lie anywhere.
    region = covered.scope.region if same_shape else everything
    if plan.layout.time is None:
        # The target does not keep the time, so its scope is all times; what was played is less.
        region = (history and history.region) or region
    return Written(covered.run, workers, region, current=not is_stale(plan, covered))


def _changed(plan: Plan, since: int) -> Iterator[tuple[int, Written]]:
    """What others have done to the target, each with its version of that."""
    for each in changes_of_others(plan, since):
        yield each.version, Written("", each.workers, each.region, changed=str(each))


def _attempted(
    lake: Lake, plan: Plan, histories: Mapping[str, History], standing: Collection[str]
) -> Iterable[Attempted]:
    """Attempts by their claims: one may fail before it has written anything else.

    What was claimed to take a run back was no attempt to write, and may be wider than the run was.
    """
    said = {
        (run, row.attempt): row.step for run, history in histories.items() for row in history.rows
    }
    published = {
        run: row.attempt
        for run, history in histories.items()
        for row in history.rows
        if row.step is Step.DONE
    }
    last = {run: waiting(history) for run, history in histories.items()}
    waits = {(run, each.attempt) for run, each in last.items() if each is not None}
    rows = read_rows(lake, "claims", target=plan.target, stream=plan.tape.name, kind="claim")
    released = {(row["run"], row["attempt"]) for row in read_rows(lake, "claims", kind="release")}
    for row in reversed(rows):
        run, attempt = str(row["run"]), int(str(row["attempt"]))
        step = said.get((run, attempt))
        gave_way = step is None and (run, attempt) in released
        takes_back = attempt > published.get(run, attempt)
        if run in standing or gave_way or takes_back:
            continue
        workers = row["workers"]
        chosen = tuple(workers) if isinstance(workers, list) else None
        scope = Scope(plan.target, chosen, parse_region(str(row["region"])))
        yield Attempted(run, scope, step is Step.FAILED, (run, attempt) in waits)


def extent(plan: Plan) -> tuple[int, int] | None:
    """The least and the greatest last coordinate of the chosen workers' records, if there are any.

    Both are integers of the coordinate's kind.
    """
    coordinate = plan.tape.time_type.coordinates[-1]
    own = TimeType((coordinate,))
    found: list[int] = []
    for batch in _events(plan, ["worker", "time"], dataset.field("kind") == "messages"):
        if batch.num_rows:
            values = pc.struct_field(batch.column("time"), [coordinate.name])
            ends = pc.min_max(values)
            pair = pa.array([ends["min"].as_py(), ends["max"].as_py()], values.type)
            struct = pa.StructArray.from_arrays([pair], [coordinate.name])
            found += [time[0] for time in index.arrow_times(struct, own)]
    return (min(found), max(found)) if found else None


def beginnings(plan: Plan) -> dict[int, Antichain]:
    """By worker, from where on it can have records: its frontier after its first event.

    A worker that was opened later than the others moves its capability to the stream's frontier
    before anything else. At the times before there is nothing of it that could be covered.
    """
    time_type = plan.tape.time_type
    held = {worker: ChangeBatch([(time_type.minimum, 1)]) for worker in plan.workers}
    for batch in _events(plan, ["worker", "updates"], dataset.field("seq") == 0):
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


def _events(plan: Plan, columns: list[str], condition: pc.Expression) -> Iterable[pa.RecordBatch]:
    """Events of the chosen workers at the plan's cut, in no order."""
    table = rows_of(plan.tape.paths.events)
    workers = dataset.field("worker").isin(sorted(plan.workers))
    cut = dataset.field("commit") <= plan.cut.commit
    return table.scanner(  # type: ignore[no-any-return]
        columns=columns, filter=condition & workers & cut
    ).to_batches()
