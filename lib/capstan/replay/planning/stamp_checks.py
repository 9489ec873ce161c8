"""Checks of replays of tapes that have messages under several times, or under none.

A range has the records under a stamp when some element is before its end, and none was in an
earlier range: complete, and before its beginning. So each record is replayed once by ranges that
follow each other. For one coordinate, and for pairs, the least element decides. Otherwise, the row
in the target has the first element that is in the range. Records without elements are read only
where nothing bounds the times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from capstan.core.config import Mode
from capstan.core.protocol.events import stamp_text
from capstan.core.times import Time
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.request import Request
from capstan.replay.planning.stream_input import Inputs, StreamInput
from capstan.storage.ledger.claims import Scope
from capstan.storage.tape import index
from capstan.storage.tape.tape import require_single_times


def require_copied(inputs: Inputs, request: Request) -> None:
    """Check that streams with such messages of several coordinates are copied.

    All else needs one time of each record: for one coordinate it is the least.
    """
    wants = {
        f"pipeline {request.pipeline}": request.pipeline,
        f"transform {request.transform}": request.transform,
        "mode merge": request.mode is Mode.MERGE,
    }
    for stream in inputs:
        for what, wanted in wants.items():
            if wanted and len(stream.tape.columns) > 1:
                require_single_times(stream.tape, what)


def require_placed(plan: Plan) -> None:
    """Check that the range of a replay has a meaning for all stamps of its streams."""
    for stream in plan.inputs:
        if not stream.tape.stamped:
            continue
        if plan.request.follow is not None and not is_ordered(stream):
            require_single_times(stream.tape, "a followed replay")
        bounds = zip(plan.box.since, plan.box.until, strict=True)
        if not is_ordered(stream) and sum(bound != (None, None) for bound in bounds) > 1:
            # Ranges of one coordinate follow each other. Of several, a stamp may be in no range.
            _require_whole(Region(plan.box), stream)


def require_tape_times(plan: Plan) -> None:
    """Check that copies of such streams keep the times that their records have on tape."""
    if plan.computation.own_time(plan.layout) is not None:
        for stream in plan.inputs:
            require_single_times(stream.tape, "a target with a time of its own")


def is_ordered(stream: StreamInput) -> bool:
    """Whether all times of a stream are in one row, so that the least of a stamp decides."""
    return stream.tape.time_type.is_total


def _require_whole(region: Region, stream: StreamInput) -> None:
    for worker, stamp, _ in index.stamps(stream.tape, stream.cut, stream.workers):
        if region.splits(stamp):
            raise _refusal(stream, worker, stamp, "some of them are in the range, others not")


def require_same_places(plan: Plan, others: Iterable[Scope], *, exactly: bool = False) -> None:
    """Check that a plan replaces what other ranges in the target have of its records, no more.

    A row has the element of its stamp by which it is in its range. For several coordinates that
    can be another one in another range. An audit needs the same element, `exactly`.
    """
    streams = [stream for stream in plan.inputs if stream.tape.stamped and not is_ordered(stream)]
    met = [each for each in others if streams and each.region != plan.region]
    for stream in streams if met else ():
        for worker, stamp, _ in index.stamps(stream.tape, stream.cut, stream.workers):
            here = plan.region.place(stamp)
            for scope in met:
                there = scope.region.place(stamp)
                if there is None or (scope.workers is not None and worker not in scope.workers):
                    continue
                within = plan.region.contains(there)
                if within != (here is not None) or (exactly and within and here != there):
                    words = "they are elsewhere in another range that the table has"
                    raise _refusal(stream, worker, stamp, words)


def _refusal(
    stream: StreamInput, worker: int, stamp: tuple[Time, ...], words: str
) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-STAMP",
        f"stream {stream.tape.name}, worker {stream.label(worker)}: messages have "
        f"{stamp_text(stamp)}; {words}",
        "replay all times, or ranges of one coordinate that follow each other, into a new table",
        stream=stream.tape.name,
        worker=worker,
    )


def timeless_records(plan: Plan) -> Mapping[str, int] | None:
    """The records under no element that a replay reads, and leaves out; None without stamps."""
    counts = [
        sum(records for _, stamp, records in index.stamps(s.tape, s.cut, s.workers) if not stamp)
        for s in plan.inputs
        if s.tape.stamped
    ]
    if not counts:
        return None
    count, everything = sum(counts), plan.reads.is_everything
    return {"read": count if everything else 0, "left_out": 0 if everything else count}
