"""The certificate of a plan: what it reads, from where, into what, and what it does not cover.

Workers are listed by label while they are few, else in ranges of numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from capstan.core.times import Antichain, TimeType
from capstan.core.times.region import Region
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.stamp_checks import timeless_records
from capstan.replay.planning.stream_input import StreamInput, total_content
from capstan.storage.delta.arrow_scan import merge_batches, rows_of
from capstan.storage.late.late_rows import kept_late
from capstan.storage.late.settled import settled_rows, without
from capstan.storage.ledger.certificate import Certificate, NotCovered
from capstan.storage.ledger.region_json import render_bounds
from capstan.storage.tape.index import ContentSummary
from capstan.storage.tape.region_mask import in_box, inside, is_timed, numbers_of
from capstan.storage.tape.region_sql import integer_ranges
from capstan.storage.tape.tape import Cut, Tape

MOST_LISTED = 100
"""The most workers that a certificate lists by their labels, and the most replay workers."""

CERTIFICATE_FORMAT = 1
_FORMAT_BY_NUMBER = 2
"""The format of a certificate that lists workers by number, as there are too many labels."""
_FORMAT_OF_SEVERAL = 3
"""The format of a certificate with a part for each of several streams."""


def draft_certificate(
    plan: Plan, contents: Sequence[ContentSummary], counters: Mapping[str, object] | None = None
) -> Certificate:
    """The certificate, as far as it is known before anything is written."""
    time_type, content = plan.inputs.tape.time_type, total_content(contents)
    bounds = render_bounds(plan.time_type, plan.region)
    workers, left_out = listed(plan.inputs.workers), listed(plan.inputs.keepers[0].left_out)
    by_label = isinstance(workers, list) and isinstance(left_out, list)
    frontier = [time_type.render(time) for time in plan.frontier.elements]
    late = [_late_of(plan, stream) for stream in plan.inputs]
    form = CERTIFICATE_FORMAT if by_label else _FORMAT_BY_NUMBER
    return Certificate(
        format=_FORMAT_OF_SEVERAL if plan.inputs.several else form,
        stream=plan.request.stream,
        cut=plan.inputs.cut.commit,
        workers=workers,
        peers=plan.peers,
        replay_workers=_replay_workers(plan, contents),
        records=content.records,
        times=content.times,
        fingerprint=content.fingerprint,
        since=bounds["since"],
        until=bounds["until"],
        frontier=frontier,
        complete=plan.complete,
        not_covered=NotCovered(
            workers=left_out,
            incomplete_from=None if plan.complete else frontier,
            asked_until=plan.box.to_json(time_type)["until"],
        ),
        late=dict(sum(late, Counter())),
        transform=plan.request.transform,
        pipeline=plan.computation.to_json(counters),
        code=plan.computation.code or None,
        mode=str(plan.request.mode),
        follow=plan.request.follow,
        target=plan.request.into,
        target_path=plan.target,
        streams=[
            _part(stream, content, reasons)
            for stream, content, reasons in zip(plan.inputs, contents, late, strict=True)
        ]
        if plan.inputs.several
        else None,
        changes=None if plan.change_rule is None else plan.change_rule.to_json(),
        timeless=timeless_records(plan),
    )


def _part(
    stream: StreamInput, content: ContentSummary, late: Mapping[str, int]
) -> Mapping[str, object]:
    """The part of a certificate that states what was read of one of several streams."""
    return {
        "source": stream.source,
        "stream": stream.tape.name,
        "cut": stream.cut.commit,
        "workers": listed(stream.workers),
        "left_out": listed(stream.left_out),
        "records": content.records,
        "times": content.times,
        "fingerprint": content.fingerprint,
        "frontier": [stream.tape.time_type.render(time) for time in stream.frontier.elements],
        "late": dict(late),
    }


def _late_of(plan: Plan, stream: StreamInput) -> Counter[str]:
    """Late rows of a stream at the times that a plan reads, by reason."""
    workers = tuple(stream.workers)
    return late_in(stream.tape, stream.cut, workers, plan.reads, stream.everyone)


def late_rows(plan: Plan) -> dict[str, int]:
    """Late rows of all streams at the times that a plan reads, by reason."""
    return dict(sum((_late_of(plan, stream) for stream in plan.inputs), Counter()))


def _replay_workers(
    plan: Plan, contents: Sequence[ContentSummary]
) -> list[Mapping[str, object]] | None:
    """What each replay worker reads; None when there are too many, or too many workers."""
    captured = [
        (stream, worker, content.by_worker.get(worker, 0))
        for stream, content in zip(plan.inputs, contents, strict=True)
        for worker in stream.workers
    ]
    if max(plan.peers, len(captured)) > MOST_LISTED:
        return None
    time_type = plan.inputs.tape.time_type
    minimum = time_type.render(time_type.minimum)
    shares = [captured[number :: plan.peers] for number in range(plan.peers)]
    return [
        {
            "replay_worker": number,
            "sequences": [stream.label(worker) for stream, worker, _ in share],
            "starts_holding": [[minimum, len(share)]] if share else [],
            "records": sum(records for _, _, records in share),
            "frontier": [
                time_type.render(time)
                for time in Antichain.of(
                    (t for s, worker, _ in share for t in s.frontiers[worker]), time_type.order
                )
            ],
        }
        for number, share in enumerate(shares)
    ]


def late_in(
    tape: Tape, cut: Cut, workers: Collection[int], region: Region, everyone: bool
) -> Counter[str]:
    """Late rows of these workers and times, by reason; of everyone, also those without either."""
    kept, chosen = kept_late(tape, cut), dataset.field("worker").isin(sorted(workers))
    within = in_box(tape.time_type, region.simplified().box)
    if everyone:
        chosen |= dataset.field("worker").is_null()
        within |= ~is_timed(tape.time_type)
    counts: Counter[str] = Counter()
    settled = settled_rows(tape, cut)
    columns = ["time", "reason", *(["batch", "pos"] if settled.num_rows else [])]
    scan = rows_of(tape.paths.late).scanner(columns, filter=kept & chosen & within)
    for batch in merge_batches(scan.to_batches()):
        rows = _inside(without(batch, settled), tape.time_type, region)
        for reason in rows.column("reason").value_counts():
            counts[reason["values"].as_py()] += reason["counts"].as_py()
    return counts


def _inside(rows: pa.RecordBatch, time_type: TimeType, region: Region) -> pa.RecordBatch:
    """The rows that lie in a region, given those of its box; rows without a time stay."""
    if region.simplified() == Region(region.simplified().box):
        return rows
    timed = pc.is_valid(pc.struct_field(rows.column("time"), 0))
    kept = pc.invert(timed).to_numpy(zero_copy_only=False).copy()
    kept[~kept] = inside(region, numbers_of(rows.column("time").filter(timed), time_type))
    return rows.filter(pa.array(kept))


def listed(workers: Mapping[int, str]) -> list[str] | dict[str, object]:
    """Workers as a certificate lists them: labels; of many their count, and ranges of numbers."""
    if len(workers) <= MOST_LISTED:
        return list(workers.values())
    return {"count": len(workers), "numbers": list(map(list, integer_ranges(sorted(workers))))}


def may_have(listing: object, workers: Mapping[int, str]) -> bool:
    """Whether a result of `listed`, of the same stream, may have one of `workers`."""
    if isinstance(listing, list):
        return bool(set(listing) & set(workers.values()))
    if not isinstance(listing, Mapping):
        return True
    stretches = (range(first, last + 1) for first, last in listing["numbers"])
    return any(number in workers for stretch in stretches for number in stretch)
