"""Handlers of the apps: each turns a request into work, or refuses it without Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from capstan.backfill.planner import BackfillRequest
from capstan.backfill.run import prepare
from capstan.core.config import format_duration, parse_duration
from capstan.core.config.validation import read_request
from capstan.errors import CapstanError, CheckFailedError, InvalidRequestError
from capstan.jobs.approval import PublishRequest, decide, require_decidable
from capstan.jobs.audit_runs import audit_all
from capstan.jobs.backfills import fill, fill_all
from capstan.jobs.job_types import JobResult, JsonObject, Place, Work
from capstan.jobs.rollback_runs import RollbackRequest, require_reversible, roll_back
from capstan.replay.execution.staging import KEEP
from capstan.replay.planning.plan import make_plan
from capstan.replay.planning.request import Request
from capstan.replay.run import replay as carry_out_replay
from capstan.replay.standalone_audit import (
    TableAudit,
    audit_against,
    audit_run,
    plan_against,
    require_auditable,
)
from capstan.storage.ledger.runs import read_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.audit import Audit
    from capstan.core.times import TimeType


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """The request of `capstan.jobs.capture`; `reseat` and `rescale` as for `capstan capture`."""

    stream: str
    reseat: bool = False
    rescale: int | None = None


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """The request of `capstan.jobs.verify`; `workers` are labels or numbers, None for all."""

    stream: str
    workers: tuple[str, ...] | None = None
    as_of: int | None = None
    deep: bool = False


@dataclass(frozen=True, slots=True)
class MaintainRequest:
    """The request of `capstan.jobs.maintain`.

    Attributes:
        streams: The streams; None for all that are on tape.
        keep: How long to keep staged output that can no longer be published, such as `30 days`.
    """

    streams: tuple[str, ...] | None = None
    keep: str = format_duration(KEEP)

    @property
    def kept(self) -> timedelta:
        """The duration of `keep`.

        Raises:
            InvalidRequestError: `CAP-REQUEST` when `keep` is not a duration.
        """
        try:
            return parse_duration(self.keep)
        except ValueError as error:
            raise InvalidRequestError(
                "CAP-REQUEST", f"keep: {error}", "such as '30 days'"
            ) from None


@dataclass(frozen=True, slots=True)
class RunAudit:
    """The request of `capstan.jobs.audit` for one run, with a version of its target."""

    run: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class RunAudits:
    """The request of `capstan.jobs.audit` for several runs.

    Attributes:
        audits: The runs.
        strict: Whether a run that can no longer be audited is a refusal too.
    """

    audits: tuple[RunAudit, ...]
    strict: bool = False


def capture(fields: JsonObject, place: Place) -> Work:
    """Prepare the capture of a declared stream."""
    request = read_request(CaptureRequest, fields)
    stream = place.declarations(required=True).stream(request.stream)

    def work(spark: SparkSession) -> JobResult:
        from capstan.capture.run import capture as carry_out

        result = carry_out(
            spark, place.lake, stream, reseat=request.reseat, rescale=request.rescale
        )
        return JobResult(asdict(result))

    return work


def verify(fields: JsonObject, place: Place) -> Work:
    """Prepare the verification of a stream's recordings."""
    from capstan.storage.tape.index import find_cut, resolve_workers
    from capstan.storage.tape.tape import open_tape

    request = read_request(VerifyRequest, fields)
    tape = open_tape(place.lake, request.stream)
    cut = find_cut(tape, request.as_of)
    chosen = request.workers
    workers = None if chosen is None else tuple(resolve_workers(tape, cut, chosen))

    def work(spark: SparkSession) -> JobResult:
        from capstan.verify import verify as carry_out

        result = carry_out(spark, place.lake, tape, workers=workers, cut=cut, deep=request.deep)
        return JobResult(result.to_json(tape), _refusal(lambda: result.require_valid(tape)))

    return work


def replay(fields: JsonObject, place: Place) -> Work:
    """Prepare a replay; its request is a `capstan.replay.planning.request.Request`."""
    request = read_request(Request, fields)
    declarations = place.declarations()
    make_plan(place.lake, declarations, request)

    def work(spark: SparkSession) -> JobResult:
        outcome = carry_out_replay(spark, place.lake, declarations, request)
        return JobResult(outcome.to_json())

    return work


def backfill(fields: JsonObject, place: Place) -> Work:
    """Prepare one backfill of a declared replay, or several (`backfills`) in order."""
    several = fields.get("backfills")
    declarations = place.declarations(required=True)
    if not isinstance(several, list):
        one = read_request(BackfillRequest, fields)
        prepare(place.lake, declarations, one)
        return lambda spark: fill(spark, place.lake, declarations, one)
    # Each is planned when its turn comes: an invalid one does not stop the others.
    requests = [
        read_request(BackfillRequest, entry if isinstance(entry, dict) else {}) for entry in several
    ]
    return lambda spark: fill_all(spark, place.lake, declarations, requests)


def maintain(fields: JsonObject, place: Place) -> Work:
    """Prepare the maintenance of tapes, and of the tables that all streams share."""
    from capstan.storage.tape.tape import require_streams

    request = read_request(MaintainRequest, fields)
    kept = request.kept
    place.lake.require()
    streams = place.lake.streams() if request.streams is None else list(request.streams)
    require_streams(place.lake, streams)

    def work(spark: SparkSession) -> JobResult:
        from capstan.maintenance.run import maintain as carry_out

        result = carry_out(spark, place.lake, streams, keep=kept)
        return JobResult(result.to_json(), result.refusal)

    return work


def plan(fields: JsonObject, place: Place) -> Work:
    """Prepare a plan with the rows it would change; its request is that of a replay."""
    from capstan.replay.preview import preview

    request = read_request(Request, fields)
    previewed = preview(place.lake, place.declarations(), request)

    def work(spark: SparkSession) -> JobResult:
        from capstan.replay.output.diff import difference

        diff = difference(spark, previewed.plan).to_json(previewed.plan.tape.time_type)
        return JobResult({**previewed.to_json(), "diff": diff})

    return work


def publish(fields: JsonObject, place: Place) -> Work:
    """Prepare the publish of a waiting run, or its rejection."""
    request = read_request(PublishRequest, fields)
    require_decidable(place, request)
    return lambda spark: decide(spark, place, request)


def rollback(fields: JsonObject, place: Place) -> Work:
    """Prepare the rollback of a run."""
    request = read_request(RollbackRequest, fields)
    require_reversible(place.lake, request.run)
    return lambda spark: roll_back(spark, place, request)


def audit(fields: JsonObject, place: Place) -> Work:
    """Prepare an audit of one run (`run`), several (`audits`) or a table (`table`)."""
    if "audits" in fields:
        return _audit_of_runs(fields, place)
    return _audit_of_run(fields, place) if "run" in fields else _audit_of_table(fields, place)


def _audit_of_run(fields: JsonObject, place: Place) -> Work:
    request = read_request(RunAudit, fields)
    declarations = place.declarations()
    history = require_auditable(place.lake, request.run, request.version)

    def work(spark: SparkSession) -> JobResult:
        plan, result = audit_run(spark, place.lake, declarations, history, request.version)
        about = {"run": request.run, "stream": plan.tape.name, "cut": plan.cut.commit}
        target = {
            "target": plan.request.into,
            "target_path": plan.target,
            "version": request.version,
        }
        return _audited({**about, **target}, result, plan.tape.time_type, f"run {request.run}")

    return work


def _audit_of_runs(fields: JsonObject, place: Place) -> Work:
    request = read_request(RunAudits, fields)
    declarations = place.declarations()
    place.lake.require()
    # Unknown runs are refused here; a run that can no longer be audited does not stop the others.
    runs = [(read_history(place.lake, audit.run), audit.version) for audit in request.audits]

    def work(spark: SparkSession) -> JobResult:
        return audit_all(spark, place.lake, declarations, runs, strict=request.strict)

    return work


def _audit_of_table(fields: JsonObject, place: Place) -> Work:
    request = read_request(TableAudit, fields)
    plan = plan_against(place.lake, place.declarations(), request)

    def work(spark: SparkSession) -> JobResult:
        result = audit_against(spark, plan, request)
        about = {"stream": request.stream, "cut": plan.cut.commit}
        target = {"target": request.table, "target_path": plan.target, "version": request.version}
        return _audited({**about, **target}, result, plan.tape.time_type, request.table)

    return work


def _audited(about: JsonObject, result: Audit, time_type: TimeType, subject: str) -> JobResult:
    refusal = _refusal(lambda: result.require_passed(subject))
    return JobResult({**about, **result.to_json(time_type)}, refusal)


def _refusal(check: Callable[[], None]) -> CapstanError | None:
    try:
        check()
    except CheckFailedError as error:
        return error
    return None
