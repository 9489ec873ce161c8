"""Preview of a replay, before Spark starts: from the index, the ledgers and the file lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from capstan.core.config import ByColumn, ByKey, ProjectConfig
from capstan.core.config.names import normalised
from capstan.core.times import Time
from capstan.replay.output.certificate import late_rows
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request
from capstan.replay.planning.stamp_checks import timeless_records
from capstan.replay.planning.stream_input import StreamInput, total_content
from capstan.replay.publish.diff import Difference
from capstan.replay.target.already_published import find_equivalent_run
from capstan.replay.target.conflicts import require_no_clash
from capstan.replay.target.ownership import Ownership
from capstan.replay.target.standing import ForeignChange, is_stale
from capstan.spark.session import Later
from capstan.storage.delta import delta
from capstan.storage.delta.arrow_scan import rows_of
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims, runs
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.region_json import render_bounds
from capstan.storage.ledger.run_identity import have_same_identity
from capstan.storage.ledger.tables import read_places
from capstan.storage.tape import index
from capstan.storage.tape.bounds import files_of
from capstan.storage.tape.index import ContentSummary
from capstan.storage.tape.region_mask import Mask, Numbers, in_box, inside, numbers_of

_ANY = -1
"""The worker of records on which rows of any worker may depend."""


@dataclass(frozen=True, slots=True)
class PublishedOverlap:
    """The records of a replay by whether they are already published in its target."""

    current: int  # Records of cells that were last written by the same computation and code.
    stale: int  # Records of cells that were last written by another computation or code.
    missing: int  # Records of cells that no published run has written.
    by_run: Mapping[str, int]  # Records by the run that last wrote their cell.


@dataclass(frozen=True, slots=True)
class WorkerGaps:
    """Labels of workers that are missing from a replay, or hold it back."""

    left_out: tuple[str, ...]  # Workers on tape that were not chosen.
    behind: Mapping[str, tuple[Time, ...]]  # With the frontier, which does not complete the range.
    silent: tuple[str, ...]  # Chosen workers without a record in the range.
    not_on_tape: tuple[str, ...]  # Declared workers that were never captured.


@dataclass(frozen=True, slots=True)
class Preview:
    """What a replay would read and write; `Context.replay` carries it out at the same cut.

    Attributes:
        files: The number of files of `records` that it would read.
        files_all: The number of all files of `records`.
        bytes: The stored size of the files that it would read.
        covered: Published runs in the part of the target that it would change.
        overlap: The number of its records that are already published.
        gaps: Workers that are left out, lag behind, or have no records.
        equivalent: The run that has already published the same, of the same identity or at an
            earlier cut; None for none.
        held_by: Other runs that now hold part of the range.
        comparison: Rows that it would add, remove and change; None when they were not compared.
        timeless: Of a tape of stamps, the number of records under no element that it would read,
            and of those that it would leave out; None for other tapes.
    """

    plan: Plan
    contents: tuple[ContentSummary, ...]
    files: int
    files_all: int
    bytes: int
    covered: tuple[Covered, ...]
    changes: tuple[ForeignChange, ...]
    overlap: PublishedOverlap
    gaps: WorkerGaps
    late: Mapping[str, int]
    equivalent: str | None
    held_by: tuple[str, ...]
    comparison: Difference | None = None
    timeless: Mapping[str, int] | None = None

    @property
    def complete(self) -> bool:
        """Whether no record of its times can arrive any more."""
        return self.plan.complete

    @property
    def records(self) -> int:
        """How many records it plays."""
        return self.content.records

    @property
    def content(self) -> ContentSummary:
        """The content that it would read of all streams together."""
        return total_content(self.contents)

    @property
    def unseen(self) -> str | None:
        """The name of its target in a catalog, if the lake does not know yet where that is."""
        name = None if self.plan.declared is None else self.plan.declared.table
        known = name is None or read_places(self.plan.lake).named(normalised(name)) is not None
        return None if known else name

    def to_json(self) -> dict[str, object]:
        """The object that `--json` prints."""
        plan = self.plan
        time_type = plan.inputs.tape.time_type
        bounds = render_bounds(plan.time_type, plan.region)
        return {
            "stream": plan.request.stream,
            "cut": plan.inputs.cut.commit,
            "workers": list(plan.inputs.workers.values()),
            "peers": plan.peers,
            "left_out": list(self.gaps.left_out),
            "behind": {
                label: [time_type.render(time) for time in frontier]
                for label, frontier in self.gaps.behind.items()
            },
            "silent": list(self.gaps.silent),
            "not_on_tape": list(self.gaps.not_on_tape),
            "since": bounds["since"],
            "until": bounds["until"],
            "asked_until": plan.box.to_json(time_type)["until"],
            "frontier": [time_type.render(time) for time in plan.frontier.elements],
            "complete": plan.complete,
            "records": self.records,
            "times": self.content.times,
            "messages": self.content.messages,
            "files": self.files,
            "files_all": self.files_all,
            "bytes": self.bytes,
            "late": dict(self.late),
            "transform": plan.request.transform,
            "pipeline": plan.computation.to_json(),
            "mode": str(plan.request.mode),
            "target": plan.request.into,
            "target_path": plan.target,
            **({"unseen": self.unseen} if self.unseen else {}),
            "covered": [
                {**_covered_json(plan, entry), "records": self.overlap.by_run.get(entry.run, 0)}
                for entry in self.covered
            ],
            "changed": list(map(str, self.changes)),
            "standing": {
                "current": self.overlap.current,
                "stale": self.overlap.stale,
                "missing": self.overlap.missing,
            },
            "stands": self.equivalent,
            "held_by": list(self.held_by),
            "checks": [check.title for check in plan.checks],
            "approve": plan.request.approve,
            **({"streams": self._parts()} if plan.inputs.several else {}),
            **({} if plan.change_rule is None else {"changes": plan.change_rule.to_json()}),
            **({} if self.timeless is None else {"timeless": self.timeless}),
            **({} if self.comparison is None else {"diff": self.comparison.to_json(time_type)}),
        }

    def _parts(self) -> list[dict[str, object]]:
        """The streams, if there are several."""
        return [
            {
                "source": stream.source,
                "stream": stream.tape.name,
                "cut": stream.cut.commit,
                "workers": list(stream.workers.values()),
                "frontier": [
                    stream.tape.time_type.render(time) for time in stream.frontier.elements
                ],
                "records": content.records,
            }
            for stream, content in zip(self.plan.inputs, self.contents, strict=True)
        ]


def preview(
    lake: Lake, config: ProjectConfig, request: Request, session: Later | None = None
) -> Preview:
    """Preview a replay, without changes, and without a JVM unless a catalog must be asked."""
    plan = make_plan(lake, config, request, session=session)
    owner = Ownership(plan)
    equivalent = _equivalent_run(owner)
    if equivalent is None:
        plan.require_records()
        # A run of the same identity that was cut off may have published nevertheless.
        require_no_clash(owner, runs.read_histories(lake, identity=plan.identity))
    by_stream = [_files_to_read(plan, stream) for stream in plan.inputs]
    files, files_all, size = (sum(counts) for counts in zip(*by_stream, strict=True))
    contents = tuple(stream.content(plan.reads) for stream in plan.inputs)
    covered = tuple(owner.within(plan.scope))
    return Preview(
        plan,
        contents,
        files,
        files_all,
        size,
        covered,
        # A followed replay does not replace its earlier rows, so changes to them count as well.
        owner.changes(covered if request.follow is None else owner.covered),
        published_overlap(plan, covered),
        worker_gaps(plan, config, contents),
        late_rows(plan),
        equivalent,
        _holders(lake, plan),
        timeless=timeless_records(plan),
    )


def _holders(lake: Lake, plan: Plan) -> tuple[str, ...]:
    run = runs.name_run(lake, plan.identity, 1, plan.target).name
    held = [claim for claim in claims.active(lake, plan.target) if claim.scope.overlaps(plan.locks)]
    return tuple(claim.run for claim in held if not have_same_identity(claim.run, run))


def _equivalent_run(owner: Ownership) -> str | None:
    plan = owner.plan
    if plan.request.follow is not None:
        return None
    last = runs.read_last(plan.lake, plan.identity, plan.target)
    if last is None or not last.published:
        last = find_equivalent_run(owner)
    return None if last is None else last.last.run


def _files_to_read(plan: Plan, stream: StreamInput) -> tuple[int, int, int]:
    """The files that the scan cannot skip by bounds: their number, that of all files, and bytes."""
    tape, workers, batch = stream.tape, tuple(stream.workers), stream.cut.batch
    table = delta.open_table(tape.paths.records)
    files = pa.table(table.get_add_actions())
    sizes = dict(zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True))
    read = files_of(table, tape.time_type, workers=workers, batch=batch, region=plan.reads)
    return len(read), len(sizes), sum(sizes[path] for path in read)


def _covered_json(plan: Plan, covered: Covered) -> dict[str, object]:
    same = covered.stream == plan.request.stream and covered.scope.region.is_in(plan.time_type)
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


def published_overlap(plan: Plan, covered: Sequence[Covered]) -> PublishedOverlap:
    """Count published records; of the runs `covered`, the newest is the last."""
    workers, times, records = (
        np.concatenate(parts)
        for parts in zip(*map(partial(_cells, plan), plan.inputs), strict=True)
    )
    played = inside(plan.reads, times)
    # Records that a pipeline reads around the range only serve to compute the rows inside it.
    times = times[:, plan.computation.axes(plan.inputs.tape.time_type)]
    played &= inside(plan.region, times)
    workers, times, records = workers[played], times[played], records[played]
    uncovered: Mask = np.ones(len(records), dtype=np.bool_)
    by_run: dict[str, int] = {}
    stale = 0
    for entry in reversed(covered):
        if entry.stream != plan.request.stream or not entry.scope.region.is_in(plan.time_type):
            continue  # Its times are those of another stream, or in other coordinates.
        written = uncovered & inside(entry.scope.region, times)
        if entry.scope.workers is not None:
            written &= np.isin(workers, entry.scope.workers) | (workers == _ANY)
        count = int(records[written].sum())
        by_run[entry.run] = count
        stale += count if is_stale(plan, entry) else 0
        uncovered &= ~written
    missing = int(records[uncovered].sum())
    return PublishedOverlap(int(records.sum()) - stale - missing, stale, missing, by_run)


def _cells(plan: Plan, stream: StreamInput) -> tuple[Numbers, Numbers, Numbers]:
    """Workers, times and record counts of the messages of a stream in the box that a plan reads."""
    if stream.tape.stamped:
        return _placed_cells(plan, stream)
    events = rows_of(stream.tape.paths.events)
    time_type, box = stream.tape.time_type, plan.reads.simplified().box
    wanted = (
        (dataset.field("commit") <= stream.cut.commit)
        & (dataset.field("kind") == "messages")
        & dataset.field("worker").isin(sorted(stream.workers))
        & in_box(time_type, box)
    )
    messages = events.to_table(columns=["worker", "time", "records"], filter=wanted)
    messages = messages.combine_chunks()
    times = [numbers_of(chunk, time_type) for chunk in messages["time"].chunks]
    workers = np.asarray(pc.cast(messages["worker"], "int64").to_numpy(), dtype=np.int64)
    return (
        workers if stream in plan.inputs.keepers else np.full_like(workers, _ANY),
        np.concatenate([np.empty((0, len(time_type.coordinates)), dtype=np.int64), *times]),
        np.asarray(pc.fill_null(messages["records"], 0).to_numpy(), dtype=np.int64),
    )


def _placed_cells(plan: Plan, stream: StreamInput) -> tuple[Numbers, Numbers, Numbers]:
    """The same of a tape of stamps; messages without elements stand in no run."""
    width = len(stream.tape.time_type.coordinates)
    found = index.messages(stream.tape, stream.cut, stream.workers, plan.reads)
    timed = [each for each in found if None not in each.time]
    workers = np.array([each.worker for each in timed], dtype=np.int64)
    return (
        workers if stream in plan.inputs.keepers else np.full_like(workers, _ANY),
        np.array([each.time for each in timed], dtype=np.int64).reshape(-1, width),
        np.array([each.records for each in timed], dtype=np.int64),
    )


def worker_gaps(
    plan: Plan, config: ProjectConfig, contents: Sequence[ContentSummary]
) -> WorkerGaps:
    """Find workers that are missing, and how; those of several streams by source and label."""
    left_out, silent, not_on_tape = list[str](), list[str](), list[str]()
    behind: dict[str, tuple[Time, ...]] = {}
    for stream, content in zip(plan.inputs, contents, strict=True):
        left_out += map(stream.label, stream.left_out)
        silent += [stream.label(n) for n in stream.workers if not content.by_worker.get(n)]
        behind |= {
            stream.label(worker): tuple(frontier.elements)
            for worker, frontier in stream.frontiers.items()
            if not plan.is_complete(frontier)
        }
        known = set(stream.labels.values())
        declared = _declared(stream, config)
        not_on_tape += [stream.named(label) for label in declared if label not in known]
    return WorkerGaps(tuple(left_out), behind, tuple(silent), tuple(not_on_tape))


def _declared(stream: StreamInput, config: ProjectConfig) -> tuple[str, ...]:
    declared = config.streams.get(stream.tape.name)
    by = None if declared is None else declared.workers
    if isinstance(by, ByKey):
        return tuple(str(number) for number in range(by.count))
    return by.labels or () if isinstance(by, ByColumn) else ()
