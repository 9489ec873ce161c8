"""What a replay would do, told before Spark starts: from the index, the ledgers, the file lists."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.config import ProjectConfig
from capstan.core.times import Kind
from capstan.replay.output.already_published import find_equivalent_run
from capstan.replay.output.certificate import late_in, piped_json
from capstan.replay.output.conflicting_rows import require_no_clash
from capstan.replay.output.foreign_changes import Change, changes_since
from capstan.replay.overlap import PublishedOverlap, WorkerGaps, absent_from, is_stale, standing_in
from capstan.replay.planning.cursor import find_cursor, follow_identity
from capstan.replay.planning.plan import Plan, make_plan, target_path
from capstan.replay.planning.request import Request
from capstan.storage import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims, coverage, runs
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.region_json import render_bounds
from capstan.storage.ledger.run_identity import have_same_identity
from capstan.storage.tape import index as summary
from capstan.storage.tape.index import ContentSummary
from capstan.storage.tape.tape import open_tape

# The bounds of timestamps are cut to milliseconds: what was cut may reach this far.
_CUT_US = 1000


@dataclass(frozen=True, slots=True)
class Preview:
    """What a replay would do.

    Attributes:
        plan: The replay, resolved.
        played: What it would play.
        files: Files of `records` that it would read.
        files_all: Files that `records` has.
        bytes: Their size, as they are stored.
        covered: What stands already in the part of the target that it would change.
        changes: What others have done to that since.
        standing: How much of what it would play that is.
        absent: Workers that are missing in one way or another.
        late: Late rows of the range, by reason.
        stands: The run that has published the same, if one has: of the same identity, or at an
            earlier cut.
        held_by: Other runs that hold part of the range now.
    """

    plan: Plan
    played: ContentSummary
    files: int
    files_all: int
    bytes: int
    covered: tuple[Covered, ...]
    changes: tuple[Change, ...]
    standing: PublishedOverlap
    absent: WorkerGaps
    late: Mapping[str, int]
    stands: str | None
    held_by: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """The preview as the object that `--json` prints."""
        plan = self.plan
        time_type = plan.tape.time_type
        bounds = render_bounds(plan.time_type, plan.region)
        return {
            "stream": plan.tape.name,
            "cut": plan.cut.commit,
            "workers": list(plan.workers.values()),
            "peers": plan.peers,
            "left_out": list(self.absent.left_out),
            "behind": {
                label: [time_type.render(time) for time in frontier]
                for label, frontier in self.absent.behind.items()
            },
            "silent": list(self.absent.silent),
            "not_on_tape": list(self.absent.not_on_tape),
            "since": bounds["since"],
            "until": bounds["until"],
            "asked_until": plan.box.to_json(time_type)["until"],
            "frontier": [time_type.render(time) for time in plan.frontier.elements],
            "complete": plan.complete,
            "records": self.played.records,
            "times": self.played.times,
            "messages": self.played.messages,
            "files": self.files,
            "files_all": self.files_all,
            "bytes": self.bytes,
            "late": dict(self.late),
            "transform": plan.request.transform,
            "pipeline": None if plan.piped is None else piped_json(plan.piped),
            "mode": str(plan.request.mode),
            "target": plan.request.into,
            "target_path": plan.target,
            "covered": [
                {**_covered_json(plan, each), "records": self.standing.by_run.get(each.run, 0)}
                for each in self.covered
            ],
            "changed": list(map(str, self.changes)),
            "standing": self.standing.to_json(),
            "stands": self.stands,
            "held_by": list(self.held_by),
            "checks": [check.title for check in plan.checks],
            "approve": plan.request.approve,
        }


def preview(lake: Lake, declarations: ProjectConfig, request: Request) -> Preview:
    """Look at what a replay would do, without a JVM and without changing anything.

    Raises:
        InvalidRequestError: As `make_plan`; `CAP-FOLLOW` when it was followed otherwise before;
            `CAP-RETIRED` when records that it needs were deleted; `CAP-APPEND` when it would put
            rows into the target twice; `CAP-ORDER` when it would merge rows over newer ones.
    """
    before = None
    if request.follow is not None:
        identity = follow_identity(request, target_path(lake, declarations, request.into)[0])
        before = find_cursor(lake, request, runs.read_last_published(lake, identity))
    tape = open_tape(lake, request.stream)
    cut = summary.find_cut(tape, request.as_of)
    states = summary.worker_states(tape, cut)
    plan = make_plan(lake, declarations, request, states=states, cut=cut, cursor=before)
    standing = _standing_run(lake, declarations, plan)
    if standing is None:
        plan.require_records()
        require_no_clash(lake, plan, _own_runs(lake, plan))
    files, files_all, size = _to_read(plan)
    played = summary.content_summary(plan.tape, plan.cut, tuple(plan.workers), plan.reads)
    standing_there = coverage.current(lake, plan.target)
    covered = tuple(each for each in standing_there if each.scope.overlaps(plan.scope))
    return Preview(
        plan,
        played,
        files,
        files_all,
        size,
        covered,
        # A followed replay passes over what it has played: it is told of changes there as well.
        changes_since(plan, covered if request.follow is None else standing_there),
        standing_in(plan, covered),
        absent_from(plan, declarations, states, played.by_worker),
        late_in(plan.tape, plan.cut, tuple(plan.workers), plan.reads, plan.everyone),
        standing,
        _holders(lake, plan),
    )


def _holders(lake: Lake, plan: Plan) -> tuple[str, ...]:
    own = runs.name_run(lake, plan.identity, 1, plan.target).name
    held = [each for each in claims.active(lake, plan.target) if each.scope.overlaps(plan.scope)]
    return tuple(each.run for each in held if not have_same_identity(each.run, own))


def _standing_run(lake: Lake, declarations: ProjectConfig, plan: Plan) -> str | None:
    if plan.request.follow is not None:
        return None
    last = runs.read_last(lake, plan.identity)
    if last is None or not last.published:
        last = find_equivalent_run(lake, declarations, plan)
    return None if last is None else last.last.run


def _own_runs(lake: Lake, plan: Plan) -> Collection[str]:
    """The runs of the replay itself: one that was cut off may have published nevertheless."""
    return runs.read_histories(lake, identity=plan.identity)


def _to_read(plan: Plan) -> tuple[int, int, int]:
    """Files to read, files in all, bytes to read: those that the scan cannot skip by bounds."""
    actions = delta.open_table(plan.tape.paths.records).get_add_actions(flatten=True)
    files = pa.table(actions)
    if not files.num_rows:
        return 0, 0, 0
    workers = _between(files, "worker", sorted(plan.workers))
    masks = [workers, *_within_times(files, plan)]
    batches = _bound(files, "min.batch")
    if batches is not None:
        masks.append(pc.fill_null(pc.less_equal(batches, plan.cut.batch), True))
    chosen = files.filter(reduce(pc.and_, masks))
    return chosen.num_rows, files.num_rows, pc.sum(chosen["size_bytes"]).as_py() or 0


def _between(files: pa.Table, column: str, values: list[int]) -> pa.ChunkedArray:
    """Which files can hold one of `values`."""
    low, high = _bound(files, f"min.{column}"), _bound(files, f"max.{column}")
    if low is None or high is None:
        return pa.chunked_array([pa.array([True] * files.num_rows)])
    nothing = pa.chunked_array([pa.array([False] * files.num_rows)])
    found = [pc.and_(pc.less_equal(low, v), pc.greater_equal(high, v)) for v in values]
    return pc.fill_null(reduce(pc.or_, found, nothing), True)


def _within_times(files: pa.Table, plan: Plan) -> list[pa.ChunkedArray]:
    """Per bound of the played box, which files can hold a time inside it."""
    box, masks = plan.reads.simplified().box, []
    for index, coordinate in enumerate(plan.tape.time_type.coordinates):
        since, until = box.since[index], box.until[index]
        slack = _CUT_US if coordinate.kind is Kind.TIMESTAMP else 0
        low = _bound(files, f"min.time.{coordinate.name}")
        high = _bound(files, f"max.time.{coordinate.name}")
        if since is not None and high is not None:
            masks.append(pc.fill_null(pc.greater_equal(high, since - slack), True))
        if until is not None and low is not None:
            masks.append(pc.fill_null(pc.less(low, until), True))
    return masks


def _bound(files: pa.Table, name: str) -> pa.ChunkedArray | None:
    """A bound of all files as integers: days, microseconds; None when there is none."""
    if name not in files.column_names:
        return None
    column = files[name]
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    if pa.types.is_date(column.type):
        return column.cast(pa.int32()).cast(pa.int64())
    return column.cast(pa.int64())


def _covered_json(plan: Plan, covered: Covered) -> dict[str, object]:
    same = covered.stream == plan.tape.name and plan.tells(covered.scope.region)
    bounds = render_bounds(plan.time_type, covered.scope.region) if same else {}
    labels = plan.layout.labels if same else {}
    numbers = covered.scope.workers
    return {
        "run": covered.run,
        "stream": covered.stream,
        "workers": None if numbers is None else [labels.get(n, str(n)) for n in numbers],
        "since": bounds.get("since"),
        "until": bounds.get("until"),
        "transform": covered.transform or None,
        "cut": covered.cut,
        "target_version": covered.target_version,
        "stale": is_stale(plan, covered),
    }
