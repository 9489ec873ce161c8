"""Handlers of the jobs: each turns a request into a result, and starts Spark when it needs it.

What can be refused is refused before that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Final

from capstan.api.context import Context
from capstan.backfill.planner import BackfillRequest
from capstan.capture.drop_request import Drop
from capstan.capture.fix_request import Fix
from capstan.core.config import format_duration, parse_duration
from capstan.core.config.loading.validation import read_request
from capstan.core.config.request_fields import Names
from capstan.core.config.sources import Expressions
from capstan.core.json_object import Json
from capstan.errors import CapstanError, CheckFailedError, IncompleteError, InvalidRequestError
from capstan.jobs.finished_runs import (
    RollbackRequest,
    RunAudit,
    RunAudits,
    audit_all,
    require_reversible,
    roll_back,
)
from capstan.jobs.job_result import Handler, JobResult
from capstan.replay.execution.approval import Decision, reject, rejected, require_waiting
from capstan.replay.execution.staging import KEEP
from capstan.replay.planning.request import Request, with_stream
from capstan.replay.standalone_audit import TableAudit
from capstan.storage.lake import Lake
from capstan.storage.late.late_rows import LateSelection
from capstan.storage.ledger.made_by import user_name
from capstan.storage.ledger.runs import Step, read_history
from capstan.storage.tape.tape import require_streams


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """The request of `capture`; `reseat` and `rescale` as for `capstan capture`."""

    stream: str
    reseat: bool = False
    rescale: int | None = None


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """The request of `verify`; `workers` are labels or numbers, None for all."""

    stream: str
    workers: Names | None = None
    as_of: int | None = None
    deep: bool = False


@dataclass(frozen=True, slots=True)
class PutBackRequest:
    """The request of `put_back`: the stream whose late records come back.

    With `because`, records are dropped instead: all that are not on tape, or those with this
    `reason`, `cause` and `file`. With `undrop`, those that a batch has dropped are open again.
    With `fix`, SQL, those with the `reason` are repaired; with `dry_run`, nothing is written.
    """

    stream: str
    because: str | None = None
    reason: str | None = None
    cause: str | None = None
    file: str | None = None
    undrop: int | None = None
    fix: Expressions | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        given = (self.fix, self.because, self.undrop)
        if sum(value is not None for value in given) > 1 or (self.dry_run and self.fix is None):
            raise InvalidRequestError(
                "CAP-REQUEST",
                "records are repaired (`fix`, also with `dry_run`), dropped (`because`) or opened "
                "again (`undrop`)",
                "ask for one of them",
            )

    @property
    def repair(self) -> Fix | None:
        """The repair; None without one."""
        selection = LateSelection(self.reason, self.cause, self.file)
        return None if self.fix is None else Fix(user_name(), self.fix, selection, self.dry_run)

    @property
    def drop(self) -> Drop | None:
        """The records to drop, or the drop to undo; None to put late ones back."""
        selection = LateSelection(self.reason, self.cause, self.file)
        if self.because is None and self.undrop is None and not selection.to_json():
            return None
        return Drop(user_name(), self.because or "", selection, self.undrop)


@dataclass(frozen=True, slots=True)
class MaintainRequest:
    """The request of `maintain`; None stands for all streams that are on tape."""

    streams: Names | None = None  # The streams; None for all that are on tape.
    keep: str = format_duration(KEEP)  # Of staged output that cannot be published, and attempts.

    @property
    def kept(self) -> timedelta:
        """The duration of `keep`."""
        try:
            return parse_duration(self.keep)
        except ValueError as error:
            raise InvalidRequestError(
                "CAP-REQUEST", f"keep: {error}", "such as '30 days'"
            ) from None


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """The request of `publish`: a waiting run, and who decided; None if it needs no approval."""

    run: str
    approved: bool = True  # Whether to publish it; otherwise it is rejected.
    by: str | None = field(default=None, metadata={"checked_later": True})
    at: str = ""  # The time of the decision, ISO 8601; now if empty.
    reason: str = ""

    @property
    def decision(self) -> Decision | None:
        """The decision; None if nobody is named."""
        if self.by is None and self.approved:
            return None
        return Decision(self.by or "", self.at, self.reason)


def capture(fields: Json, context: Context) -> JobResult:
    """Capture a declared stream."""
    request = read_request(CaptureRequest, fields)
    return JobResult(context.capture(**asdict(request)).to_json())


def verify(fields: Json, context: Context) -> JobResult:
    """Verify a stream's recordings."""
    found = context.verify(**asdict(read_request(VerifyRequest, fields)))
    return JobResult(found.to_json(), _refusal(found.raise_for_violations))


def replay(fields: Json, context: Context) -> JobResult:
    """Replay; the request is a `capstan.replay.planning.request.Request`."""
    request = read_request(Request, with_stream(fields))
    return JobResult(context.replay(request).to_json())


def backfill(fields: Json, context: Context) -> JobResult:
    """Fill gaps of one declared replay, or of several (`backfills`) in order."""
    several = fields.get("backfills")
    if not isinstance(several, list):
        result = context.backfill(read_request(BackfillRequest, fields))
        return JobResult(result.to_json(), result.error)
    context.declared(required=True)
    # Each is planned when its turn comes: one that is refused does not stop the others.
    return fill_all(
        context,
        [read_request(BackfillRequest, each if isinstance(each, dict) else {}) for each in several],
    )


def fill_all(context: Context, requests: Sequence[BackfillRequest]) -> JobResult:
    """Carry out several backfills in order; one that fails does not stop the others.

    Its entry has `error`, `message` and `hint`. The first failure is the refusal, else the first
    one that is not complete or may not begin yet.
    """
    entries: list[dict[str, object]] = []
    errors: list[CapstanError] = []
    for request in requests:
        error: CapstanError | None
        try:
            result = context.backfill(request)
            value, error = result.to_json(), result.error
        except CapstanError as refused:
            value, error = {"replay": request.replay, "what": str(request.what)}, refused
        entries.append(value if error is None else {**value, **error.summary()})
        errors += [] if error is None else [error]
    failed = [error for error in errors if not isinstance(error, IncompleteError)]
    return JobResult({"backfills": entries}, next(iter(failed or errors), None))


def maintain(fields: Json, context: Context) -> JobResult:
    """Maintain tapes, and the tables that all streams share."""
    request = read_request(MaintainRequest, fields)
    kept, lake = request.kept, context.lake
    lake.require()
    streams = lake.streams() if request.streams is None else list(request.streams)
    require_streams(lake, streams)
    with context.session() as spark:
        from capstan.maintenance.run import maintain as carry_out

        result = carry_out(spark, lake, streams, keep=kept)
    return JobResult(result.to_json(), result.refusal)


def plan(fields: Json, context: Context) -> JobResult:
    """Plan a replay, with the rows it would change; the request is that of a replay."""
    request = read_request(Request, with_stream(fields))
    return JobResult(context.plan(request, compare=True).to_json())


def publish(fields: Json, context: Context) -> JobResult:
    """Carry out a person's decision: publish a waiting run, or mark it as rejected (a refusal)."""
    request = read_request(PublishRequest, fields)
    _require_decidable(context.lake, request)
    decision = request.decision
    if request.approved:
        return JobResult(context.publish(request.run, decision).to_json())
    assert decision is not None
    row = reject(context.lake, request.run, decision)
    value = {"run": row.run, "stream": row.stream, "target_path": row.target, "published": False}
    return JobResult({**value, "rejected": row.stated}, rejected(row))


def _require_decidable(lake: Lake, request: PublishRequest) -> None:
    """Check without a JVM that the run can be published or rejected."""
    lake.require()
    history = read_history(lake, request.run)
    rejected_before = history.last.step is Step.REJECTED
    # After an interrupted publish, only the target shows how far it got.
    begun = history.effective_intent is not None and not rejected_before
    if not (begun if request.approved else rejected_before):
        require_waiting(history)
    if request.by is not None or not request.approved:
        Decision(request.by or "")


def put_back(fields: Json, context: Context) -> JobResult:
    """Put the late records of a stream back on its tape, once each; or repair or drop some."""
    request = read_request(PutBackRequest, fields)
    repair = request.repair
    drop = request.drop if repair is None else None
    lake = context.lake
    lake.require()
    require_streams(lake, [request.stream])
    declared = None if repair is None else context.declared(required=True).stream(request.stream)
    with context.session() as spark:
        from capstan.capture.dead_letters import drop as drop_records
        from capstan.capture.dead_letters import fix as repair_records
        from capstan.capture.run import put_back as carry_out

        if repair is not None and declared is not None:
            return JobResult(repair_records(spark, lake, declared, repair).to_json())
        if drop is not None:
            return JobResult(drop_records(spark, lake, request.stream, drop).to_json())
        return JobResult(asdict(carry_out(spark, lake, request.stream)))


def rollback(fields: Json, context: Context) -> JobResult:
    """Roll a run back."""
    request = read_request(RollbackRequest, fields)
    require_reversible(context.lake, request.run)
    return roll_back(context, request)


def audit(fields: Json, context: Context) -> JobResult:
    """Audit one run (`run`), several (`audits`) or a table (`table`)."""
    if "audits" in fields:
        return audit_all(context, read_request(RunAudits, fields))
    if "run" in fields:
        one = read_request(RunAudit, fields)
        report, subject = (
            context.audit(one.run, version=one.version, deep=one.deep),
            f"run {one.run}",
        )
    else:
        request = read_request(TableAudit, fields)
        report, subject = context.audit_table(request), request.table
    refusal = _refusal(lambda: report.audit.require_passed(subject))
    return JobResult(report.to_json(), refusal)


def _refusal(check: Callable[[], object]) -> CapstanError | None:
    try:
        check()
    except CheckFailedError as error:
        return error
    return None


JOBS: Final[Mapping[str, Handler]] = {
    handler.__name__: handler
    for handler in (
        *(audit, backfill, capture, maintain, plan, publish, put_back, replay, rollback, verify),
    )
}
"""The jobs by name."""
