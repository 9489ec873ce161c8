"""The plan of a backfill: groups the selected intervals into replays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from capstan.backfill.interval import Interval, IntervalState
from capstan.backfill.interval_grid import parse_every
from capstan.backfill.survey import Survey, bound_text, survey
from capstan.core.config import BackfillPolicy, Mode, Order, ProjectConfig, check_name
from capstan.core.config.request_fields import LengthText, TimeText
from capstan.errors import InvalidRequestError
from capstan.replay.planning.plan import request_at_cuts
from capstan.replay.planning.request import Request
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import open_tape

if TYPE_CHECKING:
    from capstan.spark.session import Later


class BackfillMode(StrEnum):
    """The intervals to replay; always complete, and never awaiting approval."""

    GAPS = "gaps"
    """Intervals not covered, including those whose last attempt has failed."""
    STALE = "stale"
    """Intervals written with other code than the present."""
    FAILED = "failed"
    """Gaps whose last attempt has failed."""
    ALL = "all"
    """All intervals."""


_STATES = {
    BackfillMode.GAPS: frozenset({IntervalState.GAP, IntervalState.CHANGED, IntervalState.FAILED}),
    BackfillMode.STALE: frozenset({IntervalState.STALE}),
    BackfillMode.FAILED: frozenset({IntervalState.FAILED}),
    BackfillMode.ALL: frozenset(IntervalState)
    - {IntervalState.INCOMPLETE, IntervalState.RETIRED, IntervalState.WAITING},
}


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """A backfill as requested by a person, a form or a schedule.

    Attributes:
        since: The first time, as on the command line; None for the start of the range.
        until: The first time after it; None for the end of the range.
        every: The length of intervals, as on the command line; None for the default of `survey`.
        order: The order of the runs; None for the declared one.
        chunk: The most intervals per run; None for the declared number, if there is one, else for
            one run per stretch of adjacent intervals.
        as_of: The cut of all runs; None for the newest. Of several streams, see `cuts`.
        adopt: Replace rows of the intervals that no replay has written.
        keep_going: Continue with the next run after a failure.
        cuts: The cuts of several streams by source; those that are left out are the newest.
    """

    replay: str
    since: TimeText | None = None
    until: TimeText | None = None
    every: LengthText | None = None
    what: BackfillMode = BackfillMode.GAPS
    order: Order | None = None
    chunk: int | None = None
    as_of: int | None = None
    adopt: bool = False
    direct: InitVar[bool] = False  # A former option: taken, and dropped.
    dry_run: bool = False
    keep_going: bool = False
    cuts: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __post_init__(self, direct: bool) -> None:
        check_name("replay", self.replay)
        if self.chunk is not None and self.chunk < 1:
            raise InvalidRequestError(
                "CAP-CHUNK",
                f"a run cannot have {self.chunk} intervals",
                "use 1 or more, or omit it for one run per stretch of adjacent intervals",
            )

    def under(self, policy: BackfillPolicy) -> BackfillRequest:
        """The request with what a policy says where it says nothing itself."""
        return replace(self, chunk=self.chunk or policy.chunk, order=self.order or policy.order)


def survey_range(
    lake: Lake, config: ProjectConfig, request: BackfillRequest, session: Later | None = None
) -> Survey:
    """Survey the range of a backfill; see `survey`."""
    every = None
    if request.every is not None:
        tape = open_tape(lake, config.replay(request.replay).inputs[0], stamps=True)
        every = parse_every(request.every, tape.time_type.coordinates[-1].kind)
    return survey(
        lake,
        config,
        request.replay,
        every=every,
        since=request.since,
        until=request.until,
        as_of=request.as_of,
        cuts=request.cuts,
        session=session,
    )


def plan_replays(survey: Survey, request: BackfillRequest) -> list[Request]:
    """The replays of a backfill, in the order in which to run them."""
    # Adjacent intervals that lack the same workers form a stretch, and only those workers are
    # replayed. If the replay requires approval, each run stops after its audit. A stretch is cut
    # into chunks from the end where work starts. So after a kill the rest is cut in the same
    # places, and its first run is the interrupted one.
    request = request.under(survey.declared.backfill)
    selected = [i for i in survey.intervals if i.state in _STATES[request.what]]
    _check_append(survey, request, selected)
    replays = [
        _replay_request(survey, request, workers, chunk)
        for workers, stretch in _stretches(survey, request, selected)
        for chunk in _chunks(stretch, request)
    ]
    if request.order is Order.OLDEST or len(replays) < 2:
        return replays
    if survey.plan.request.mode is Mode.MERGE and survey.plan.change_rule is None:
        raise InvalidRequestError(
            "CAP-ORDER",
            f"replay {request.replay} merges: newest first, an older row would replace a newer one "
            "with the same key",
            "backfill the oldest first",
            replay=request.replay,
        )
    return replays[::-1]


def _check_append(survey: Survey, request: BackfillRequest, selected: Sequence[Interval]) -> None:
    if survey.plan.request.mode is not Mode.APPEND:
        return
    rewrites = request.what in (BackfillMode.STALE, BackfillMode.ALL)
    for interval in selected:
        if rewrites or interval.partly:
            raise InvalidRequestError(
                "CAP-APPEND",
                f"replay {request.replay} appends, but rows from {interval.since} to before "
                f"{interval.until} are already there: "
                f"{', '.join(interval.runs) or 'see its runs'}",
                "roll those runs back first, or declare mode replace",
                replay=request.replay,
                since=interval.since,
                until=interval.until,
            )


def _stretches(
    survey: Survey, request: BackfillRequest, selected: Iterable[Interval]
) -> list[tuple[tuple[str, ...] | None, list[Interval]]]:
    """Adjacent intervals with the same workers to replay, together with these workers."""
    stretches: list[tuple[tuple[str, ...] | None, list[Interval]]] = []
    for interval in selected:
        workers = _workers(survey, request, interval)
        if stretches:
            before, stretch = stretches[-1]
            if before == workers and stretch[-1].until == interval.since:
                stretch.append(interval)
                continue
        stretches.append((workers, [interval]))
    return stretches


def _workers(
    survey: Survey, request: BackfillRequest, interval: Interval
) -> tuple[str, ...] | None:
    """The workers to replay: the lacking ones if the target distinguishes workers, else all."""
    labels = list(survey.plan.inputs.workers.values())
    lacking = interval.stale if request.what is BackfillMode.STALE else interval.missing
    distinct = survey.plan.layout.worker is not None and len(set(labels)) == len(labels)
    if request.what is BackfillMode.ALL or not distinct or lacking == interval.workers:
        return survey.declared.workers
    return lacking


def _chunks(stretch: list[Interval], request: BackfillRequest) -> list[list[Interval]]:
    """A stretch cut into chunks, in the order of its times."""
    size, length = request.chunk or len(stretch), len(stretch)
    if request.order is Order.OLDEST:
        return [stretch[start : start + size] for start in range(0, length, size)]
    return [stretch[max(0, end - size) : end] for end in range(length, 0, -size)][::-1]


def _replay_request(
    survey: Survey,
    request: BackfillRequest,
    workers: tuple[str, ...] | None,
    chunk: Sequence[Interval],
) -> Request:
    plan = survey.plan
    time_type = plan.inputs.tape.time_type
    replay_request = replace(
        request_at_cuts(plan),
        workers=workers,
        workers_of={} if workers else plan.request.workers_of,
        adopt=request.adopt,
        approve=bool(survey.declared.approve),
    )
    if survey.whole:
        return replay_request
    return replace(
        replay_request,
        since=bound_text(time_type, chunk[0].since),
        until=bound_text(time_type, chunk[-1].until),
    )
