"""The certificate: what a replay played, from what, into what, and what it does *not* cover."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from capstan.core.times import Antichain, TimeType
from capstan.core.times.region import Region
from capstan.replay.output.worker_lists import MOST_LISTED, listed
from capstan.storage.arrow_scan import rows_of
from capstan.storage.ledger.region_json import render_bounds
from capstan.storage.tape import index as summary
from capstan.storage.tape.feed import kept_late
from capstan.storage.tape.index import ContentSummary
from capstan.storage.tape.region_mask import in_box, inside, is_timed, numbers_of
from capstan.storage.tape.tape import Cut, Tape

if TYPE_CHECKING:
    from capstan.replay.planning.computation import PipelineComputation
    from capstan.replay.planning.plan import Plan

CERTIFICATE_FORMAT = 1
_OF_MANY = 2
"""The format of a certificate that has more workers than it lists by their labels."""
# What others rely on; a certificate has more.
KEYS = (
    "run", "stream", "cut", "workers", "peers", "records", "since", "until", "frontier",
    "complete", "target", "target_version", "audit", "published",
)  # fmt: skip


def draft(
    plan: Plan, played: ContentSummary, counted: Mapping[str, object] | None = None
) -> dict[str, object]:
    """The certificate as far as it is known before anything is written.

    Args:
        plan: The replay.
        played: What it reads.
        counted: Of a pipeline, what its run has counted.

    Keys are those of `docs/protocol.md`; what the publish adds: `target_version`, `audit`,
    `approval`, `published`, `attempt`, `seconds`.
    """
    time_type = plan.tape.time_type
    bounds = render_bounds(plan.time_type, plan.region)
    workers, missing = listed(plan.workers), _not_covered(plan)
    by_label = isinstance(workers, list) and isinstance(missing["workers"], list)
    return {
        "format": CERTIFICATE_FORMAT if by_label else _OF_MANY,
        "stream": plan.tape.name,
        "cut": plan.cut.commit,
        "workers": workers,
        "peers": plan.peers,
        "replay_workers": _replay_workers(plan, played),
        "records": played.records,
        "times": played.times,
        "fingerprint": played.fingerprint,
        "since": bounds["since"],
        "until": bounds["until"],
        "frontier": [time_type.render(time) for time in plan.frontier.elements],
        "complete": plan.complete,
        "not_covered": missing,
        "late": late_in(plan.tape, plan.cut, tuple(plan.workers), plan.reads, plan.everyone),
        "transform": plan.request.transform,
        "pipeline": None if plan.piped is None else piped_json(plan.piped, counted),
        "code": plan.code or None,
        "mode": str(plan.request.mode),
        "follow": plan.request.follow,
        "target": plan.request.into,
        "target_path": plan.target,
        "published": False,
    }


def piped_json(
    piped: PipelineComputation, counted: Mapping[str, object] | None = None
) -> dict[str, object]:
    """A pipeline as certificates and plans have it: with what it reads around the range."""
    return {
        "name": piped.pipeline.name,
        "sink": piped.sink.node,
        "reads": render_bounds(piped.reach.time_type, piped.reads),
        "resumed": None if piped.resumed is None else piped.resumed.name,
        **(counted or {}),
    }


def _replay_workers(plan: Plan, played: ContentSummary) -> list[dict[str, object]] | None:
    """Per replay worker: its sequences, what it starts out holding, plays, and ends at.

    None where they, or the workers, are too many to be listed: the cut tells it of them.
    """
    if max(plan.peers, len(plan.workers)) > MOST_LISTED:
        return None
    time_type = plan.tape.time_type
    minimum = time_type.render(time_type.minimum)
    dealt: list[list[int]] = [[] for _ in range(plan.peers)]
    for index, worker in enumerate(plan.workers):
        dealt[index % plan.peers].append(worker)
    return [
        {
            "replay_worker": number,
            "sequences": [plan.workers[worker] for worker in sequences],
            "starts_holding": [[minimum, len(sequences)]] if sequences else [],
            "records": sum(played.by_worker.get(worker, 0) for worker in sequences),
            "frontier": [
                time_type.render(time)
                for time in Antichain.of(t for w in sequences for t in plan.frontiers[w])
            ],
        }
        for number, sequences in enumerate(dealt)
    ]


def _not_covered(plan: Plan) -> dict[str, object]:
    time_type = plan.tape.time_type
    left_out = {
        worker: label
        for worker, label in summary.worker_labels(plan.tape, plan.cut).items()
        if worker not in plan.workers
    }
    return {
        "workers": listed(left_out),
        "incomplete_from": None
        if plan.complete
        else [time_type.render(time) for time in plan.frontier.elements],
        "asked_until": plan.box.to_json(time_type)["until"],
    }


def late_in(
    tape: Tape, cut: Cut, workers: Collection[int], region: Region, everyone: bool
) -> dict[str, int]:
    """Late rows of these workers and times by reason; those without either count for everyone."""
    kept, mine = kept_late(tape, cut), dataset.field("worker").isin(sorted(workers))
    there = in_box(tape.time_type, region.simplified().box)
    if everyone:
        mine |= dataset.field("worker").is_null()
        there |= ~is_timed(tape.time_type)
    counts: Counter[str] = Counter()
    scan = rows_of(tape.paths.late).scanner(["time", "reason"], filter=kept & mine & there)
    for batch in scan.to_batches():
        for each in _inside(batch, tape.time_type, region).column("reason").value_counts():
            counts[each["values"].as_py()] += each["counts"].as_py()
    return dict(counts)


def _inside(rows: pa.RecordBatch, time_type: TimeType, region: Region) -> pa.RecordBatch:
    """Rows of a region's box that are in the region; those without a time are."""
    if region.simplified() == Region(region.simplified().box):
        return rows
    timed = pc.is_valid(pc.struct_field(rows.column("time"), 0))
    counted = pc.invert(timed).to_numpy(zero_copy_only=False).copy()
    counted[~counted] = inside(region, numbers_of(rows.column("time").filter(timed), time_type))
    return rows.filter(pa.array(counted))


def finished(
    certificate: Mapping[str, object],
    *,
    run: str,
    attempt: int,
    generation: int,
    target_version: int,
    audit: object,
    approval: Mapping[str, object] | None,
    seconds: float,
) -> dict[str, object]:
    """The whole certificate of a replay that has published."""
    return {
        "run": run,
        **certificate,
        "attempt": attempt,
        "generation": generation,
        "target_version": target_version,
        "audit": audit,
        "approval": approval,
        "published": True,
        "seconds": round(seconds, 3),
    }
