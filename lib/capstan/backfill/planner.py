"""What a backfill would run: the intervals that are wanted, in stretches, as replays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from capstan.backfill.interval import Interval, State
from capstan.backfill.interval_grid import parse_every
from capstan.backfill.survey import Survey, bound_text, survey
from capstan.core.config import Mode, ProjectConfig, check_name
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import open_tape


class BackfillMode(StrEnum):
    """Which intervals are replayed: only complete ones, and none that waits for a decision."""

    GAPS = "gaps"
    """What is not covered, also where the last attempt has failed."""
    STALE = "stale"
    """What was written by other code than today's."""
    FAILED = "failed"
    """Gaps over which the last attempt has failed."""
    ALL = "all"
    """Everything."""


class Order(StrEnum):
    """Which of the runs comes first."""

    OLDEST = "oldest"
    NEWEST = "newest"


_STATES = {
    BackfillMode.GAPS: frozenset({State.GAP, State.CHANGED, State.FAILED}),
    BackfillMode.STALE: frozenset({State.STALE}),
    BackfillMode.FAILED: frozenset({State.FAILED}),
    BackfillMode.ALL: frozenset(State) - {State.INCOMPLETE, State.RETIRED, State.WAITING},
}


@dataclass(frozen=True, slots=True)
class Backfill:
    """A backfill as a person, a form or a schedule asks for it.

    Attributes:
        replay: The declared replay.
        since: First time to look at, as the command line writes it; None from the range's start.
        until: First time after that; None to the range's end.
        every: How long an interval is, as the command line writes it; None as `survey` has it.
        what: Which intervals are replayed.
        order: Which run comes first.
        chunk: How many intervals a run has at most; None for one run over each stretch of
            adjacent ones.
        as_of: The cut; None for the newest. All runs of a backfill have the same.
        adopt: Replace rows of the intervals that no replay has put there.
        direct: Write to the target at once, and audit there.
        dry_run: Only tell what would be run.
        keep_going: Go on with the next run after one has failed.
    """

    replay: str
    since: str | None = None
    until: str | None = None
    every: str | None = None
    what: BackfillMode = BackfillMode.GAPS
    order: Order = Order.OLDEST
    chunk: int | None = None
    as_of: int | None = None
    adopt: bool = False
    direct: bool = False
    dry_run: bool = False
    keep_going: bool = False

    def __post_init__(self) -> None:
        check_name("replay", self.replay)
        if self.chunk is not None and self.chunk < 1:
            raise InvalidRequestError(
                "CAP-CHUNK",
                f"a run cannot have {self.chunk} intervals",
                "give 1 or more, or leave it out for one run over each stretch",
            )


def surveyed(lake: Lake, declarations: ProjectConfig, asked: Backfill) -> Survey:
    """The survey of a backfill's range, without a JVM.

    Raises:
        InvalidRequestError: As `survey`.
    """
    every = None
    if asked.every is not None:
        tape = open_tape(lake, declarations.replay(asked.replay).stream)
        every = parse_every(asked.every, tape.time_type.coordinates[-1].kind)
    return survey(
        lake,
        declarations,
        asked.replay,
        every=every,
        since=asked.since,
        until=asked.until,
        as_of=asked.as_of,
    )


def propose(found: Survey, asked: Backfill) -> list[Request]:
    """The replays of a backfill, in the order in which they are to be run.

    Adjacent intervals make a stretch; one that lacks other workers than its neighbour is a stretch
    of its own, and only the workers that it lacks are played. Of a replay that a person has to
    approve each run stops after its audit. A stretch is cut into chunks from
    the end where the work begins: so what is left after a kill is cut in the same places, and its
    first run is the one that was cut off.

    Raises:
        InvalidRequestError: `CAP-APPEND` when rows would be appended that may stand there already;
            `CAP-ORDER` when older rows would be merged over newer ones.
    """
    chosen = [each for each in found.intervals if each.state in _STATES[asked.what]]
    _check_append(found, asked, chosen)
    requests = [
        _request(found, asked, workers, chunk)
        for workers, stretch in _stretches(found, asked, chosen)
        for chunk in _chunks(stretch, asked)
    ]
    if asked.order is Order.OLDEST or len(requests) < 2:
        return requests
    if found.plan.request.mode is Mode.MERGE:
        raise InvalidRequestError(
            "CAP-ORDER",
            f"replay {asked.replay} merges, and newest first an older row would win over a newer "
            "one of its key",
            "backfill the oldest first",
            replay=asked.replay,
        )
    return requests[::-1]


def _check_append(found: Survey, asked: Backfill, chosen: Sequence[Interval]) -> None:
    if found.plan.request.mode is not Mode.APPEND:
        return
    standing = asked.what in (BackfillMode.STALE, BackfillMode.ALL)
    for each in chosen:
        if standing or each.partly:
            raise InvalidRequestError(
                "CAP-APPEND",
                f"replay {asked.replay} appends, and rows from {each.since} to before {each.until} "
                f"stand already: {', '.join(each.runs) or 'see its runs'}",
                "roll those runs back first, or declare mode replace",
                replay=asked.replay,
                since=each.since,
                until=each.until,
            )


def _stretches(
    found: Survey, asked: Backfill, chosen: Iterable[Interval]
) -> list[tuple[tuple[str, ...] | None, list[Interval]]]:
    """Adjacent intervals of the same workers, each with the workers to play."""
    stretches: list[tuple[tuple[str, ...] | None, list[Interval]]] = []
    for each in chosen:
        workers = _workers(found, asked, each)
        if stretches:
            before, stretch = stretches[-1]
            if before == workers and stretch[-1].until == each.since:
                stretch.append(each)
                continue
        stretches.append((workers, [each]))
    return stretches


def _workers(found: Survey, asked: Backfill, each: Interval) -> tuple[str, ...] | None:
    """Whom to play: those who lack something, where the target can tell workers apart."""
    labels = list(found.plan.workers.values())
    lacking = each.stale if asked.what is BackfillMode.STALE else each.missing
    apart = found.plan.layout.worker is not None and len(set(labels)) == len(labels)
    if asked.what is BackfillMode.ALL or not apart or lacking == each.workers:
        return found.declared.workers
    return lacking


def _chunks(stretch: list[Interval], asked: Backfill) -> list[list[Interval]]:
    """A stretch cut into chunks, in the order of its times."""
    size, whole = asked.chunk or len(stretch), len(stretch)
    if asked.order is Order.OLDEST:
        return [stretch[start : start + size] for start in range(0, whole, size)]
    return [stretch[max(0, end - size) : end] for end in range(whole, 0, -size)][::-1]


def _request(
    found: Survey, asked: Backfill, workers: tuple[str, ...] | None, chunk: Sequence[Interval]
) -> Request:
    plan = found.plan
    time_type = plan.tape.time_type
    request = replace(
        plan.request,
        workers=workers,
        as_of=plan.cut.commit,
        adopt=asked.adopt,
        direct=asked.direct,
        approve=found.declared.approve,
    )
    if found.whole:
        return request
    return replace(
        request,
        since=bound_text(time_type, chunk[0].since),
        until=bound_text(time_type, chunk[-1].until),
    )
