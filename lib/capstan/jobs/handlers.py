"""The submitted apps: each makes of a request the work to do, or refuses it without Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from capstan.backfill.planner import Backfill
from capstan.backfill.run import prepare
from capstan.core.config import format_duration, parse_duration
from capstan.core.config.names import did_you_mean, one_of
from capstan.core.config.validation import read_model
from capstan.errors import CapstanError, CheckFailedError, InvalidRequestError
from capstan.jobs.approval import PublishRequest, decide, require_decidable
from capstan.jobs.audit_runs import audit_all
from capstan.jobs.backfills import fill, fill_all
from capstan.jobs.job_types import JobResult, JsonObject, Place, Work
from capstan.jobs.rollback_runs import RollbackRequest, require_reversible, take_back
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

Asked = TypeVar("Asked")


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """What `spark_apps/capture.py` is asked: a declared stream, whether to reseat or rescale it."""

    stream: str
    reseat: bool = False
    rescale: int | None = None


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What `spark_apps/verify.py` is asked; `workers` are labels or numbers, None for all."""

    stream: str
    workers: tuple[str, ...] | None = None
    as_of: int | None = None
    deep: bool = False


@dataclass(frozen=True, slots=True)
class MaintainRequest:
    """What `spark_apps/maintain.py` is asked.

    Attributes:
        streams: Which streams; None for all that are on tape.
        keep: How long what was staged and nobody can publish any more is kept, such as `30 days`.
    """

    streams: tuple[str, ...] | None = None
    keep: str = format_duration(KEEP)

    @property
    def kept(self) -> timedelta:
        """The length of time that `keep` says.

        Raises:
            InvalidRequestError: `CAP-REQUEST` when it says none.
        """
        try:
            return parse_duration(self.keep)
        except ValueError as error:
            raise InvalidRequestError(
                "CAP-REQUEST", f"keep: {error}", "such as '30 days'"
            ) from None


@dataclass(frozen=True, slots=True)
class RunAudit:
    """What `spark_apps/audit.py` is asked of a run: its name, and a version of its target."""

    run: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class RunAudits:
    """What `spark_apps/audit.py` is asked of several runs, one after the other.

    Attributes:
        audits: The runs.
        strict: Whether one that cannot be audited any more is a refusal as well.
    """

    audits: tuple[RunAudit, ...]
    strict: bool = False


def capture(fields: JsonObject, place: Place) -> Work:
    """Prepare the capture of a declared stream."""
    asked = _read(CaptureRequest, fields)
    stream = place.declarations(required=True).stream(asked.stream)

    def work(spark: SparkSession) -> JobResult:
        from capstan.capture.run import capture as carry_out

        found = carry_out(spark, place.lake, stream, reseat=asked.reseat, rescale=asked.rescale)
        return JobResult(asdict(found))

    return work


def verify(fields: JsonObject, place: Place) -> Work:
    """Prepare the verification of a stream's recordings."""
    from capstan.storage.tape.index import find_cut, resolve_workers
    from capstan.storage.tape.tape import open_tape

    asked = _read(VerifyRequest, fields)
    tape = open_tape(place.lake, asked.stream)
    cut = find_cut(tape, asked.as_of)
    chosen = asked.workers
    workers = None if chosen is None else tuple(resolve_workers(tape, cut, chosen))

    def work(spark: SparkSession) -> JobResult:
        from capstan.verify import verify as carry_out

        found = carry_out(spark, place.lake, tape, workers=workers, cut=cut, deep=asked.deep)
        return JobResult(found.to_json(tape), _refusal(lambda: found.require_valid(tape)))

    return work


def replay(fields: JsonObject, place: Place) -> Work:
    """Prepare a replay; the request has the fields of `capstan.replay.planning.request.Request`."""
    asked = _read(Request, fields)
    declarations = place.declarations()
    make_plan(place.lake, declarations, asked)

    def work(spark: SparkSession) -> JobResult:
        outcome = carry_out_replay(spark, place.lake, declarations, asked)
        return JobResult(outcome.to_json())

    return work


def backfill(fields: JsonObject, place: Place) -> Work:
    """Prepare the backfill of a declared replay, or of several (`backfills`) in their order."""
    several = fields.get("backfills")
    declarations = place.declarations(required=True)
    if not isinstance(several, list):
        one = _read(Backfill, fields)
        prepare(place.lake, declarations, one)
        return lambda spark: fill(spark, place.lake, declarations, one)
    # Each is refused when its turn comes: one that cannot be meant stops no other.
    asked = [_read(Backfill, each if isinstance(each, dict) else {}) for each in several]
    return lambda spark: fill_all(spark, place.lake, declarations, asked)


def maintain(fields: JsonObject, place: Place) -> Work:
    """Prepare the maintenance of streams' tapes, and of what all streams of the lake share."""
    from capstan.storage.tape.tape import require_streams

    asked = _read(MaintainRequest, fields)
    kept = asked.kept
    place.lake.require()
    streams = place.lake.streams() if asked.streams is None else list(asked.streams)
    require_streams(place.lake, streams)

    def work(spark: SparkSession) -> JobResult:
        from capstan.maintenance.run import maintain as carry_out

        found = carry_out(spark, place.lake, streams, keep=kept)
        return JobResult(found.to_json(), found.refusal)

    return work


def plan(fields: JsonObject, place: Place) -> Work:
    """Prepare a plan with the rows that it would change; the request is that of a replay."""
    from capstan.replay.preview import preview

    asked = _read(Request, fields)
    found = preview(place.lake, place.declarations(), asked)

    def work(spark: SparkSession) -> JobResult:
        from capstan.replay.output.diff import difference

        told = difference(spark, found.plan).to_json(found.plan.tape.time_type)
        return JobResult({**found.to_json(), "diff": told})

    return work


def publish(fields: JsonObject, place: Place) -> Work:
    """Prepare the publish of a run that waits, or its rejection."""
    asked = _read(PublishRequest, fields)
    require_decidable(place, asked)
    return lambda spark: decide(spark, place, asked)


def rollback(fields: JsonObject, place: Place) -> Work:
    """Prepare the rollback of a run."""
    asked = _read(RollbackRequest, fields)
    require_reversible(place.lake, asked.run)
    return lambda spark: take_back(spark, place, asked)


def audit(fields: JsonObject, place: Place) -> Work:
    """Prepare an audit: of a run (`run`), of several (`audits`), or of a table (`table`)."""
    if "audits" in fields:
        return _audit_of_runs(fields, place)
    return _audit_of_run(fields, place) if "run" in fields else _audit_of_table(fields, place)


def _audit_of_run(fields: JsonObject, place: Place) -> Work:
    asked = _read(RunAudit, fields)
    declarations = place.declarations()
    history = require_auditable(place.lake, asked.run, asked.version)

    def work(spark: SparkSession) -> JobResult:
        plan, found = audit_run(spark, place.lake, declarations, history, asked.version)
        about = {"run": asked.run, "stream": plan.tape.name, "cut": plan.cut.commit}
        where = {"target": plan.request.into, "target_path": plan.target, "version": asked.version}
        return _audited({**about, **where}, found, plan.tape.time_type, f"run {asked.run}")

    return work


def _audit_of_runs(fields: JsonObject, place: Place) -> Work:
    asked = _read(RunAudits, fields)
    declarations = place.declarations()
    place.lake.require()
    # A run that nobody knows is refused; what cannot be audited any more stops no other.
    found = [(read_history(place.lake, a.run), a.version) for a in asked.audits]

    def work(spark: SparkSession) -> JobResult:
        return audit_all(spark, place.lake, declarations, found, strict=asked.strict)

    return work


def _audit_of_table(fields: JsonObject, place: Place) -> Work:
    asked = _read(TableAudit, fields)
    plan = plan_against(place.lake, place.declarations(), asked)

    def work(spark: SparkSession) -> JobResult:
        found = audit_against(spark, place.lake, plan, asked)
        about = {"stream": asked.stream, "cut": plan.cut.commit}
        where = {"target": asked.table, "target_path": plan.target, "version": asked.version}
        return _audited({**about, **where}, found, plan.tape.time_type, asked.table)

    return work


def _audited(about: JsonObject, found: Audit, time_type: TimeType, where: str) -> JobResult:
    refusal = _refusal(lambda: found.require_passed(where))
    return JobResult({**about, **found.to_json(time_type)}, refusal)


def _refusal(check: Callable[[], None]) -> CapstanError | None:
    try:
        check()
    except CheckFailedError as error:
        return error
    return None


def _read(kind: type[Asked], fields: JsonObject) -> Asked:
    """The request that `fields` make.

    Raises:
        InvalidRequestError: `CAP-REQUEST`, naming a key that is unknown, missing or has a wrong
            value.
    """
    known = [each.name for each in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in fields:
        if key not in known:
            raise InvalidRequestError(
                "CAP-REQUEST",
                f"the request has an unknown key {key[:80]!r}{did_you_mean(key, known)}",
                f"keys are {one_of(known)}",
                key=key,
            )
    return read_model(kind, fields, "CAP-REQUEST")
