"""The jobs of runs that have ended: `audit` of several of them, and `rollback` of one."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pyspark.errors import PySparkException

from capstan.api.context import Context
from capstan.errors import CapstanError, CheckFailedError, InvalidRequestError
from capstan.jobs.job_result import JobResult
from capstan.replay.execution.job import require_intent
from capstan.replay.result import RollbackResult
from capstan.replay.target import target_table
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger import coverage
from capstan.storage.ledger.runs import History, Step, read_history
from capstan.telemetry.instrumentation import emit


@dataclass(frozen=True, slots=True)
class RunAudit:
    """The request of `audit` for one run, with a version of its target."""

    run: str
    version: int | None = None
    deep: bool = False  # Whether the engine computes all rows of a pipeline again.


@dataclass(frozen=True, slots=True)
class RunAudits:
    """The request of `audit` for several runs."""

    audits: tuple[RunAudit, ...]
    strict: bool = False  # Whether a run that can no longer be audited is a refusal too.


def audit_all(context: Context, request: RunAudits) -> JobResult:
    """Audit published runs, each at a version of its target, or as the target is now.

    One that fails does not stop the others. A run cannot be audited if it was rolled back, its
    table is gone, its transform or pipeline has changed, or its version is no longer kept: its
    entry has `error`, `message` and `hint` instead of an audit. The result has a refusal if a run
    differs, or something is broken.
    """
    context.lake.require()
    runs = [(read_history(context.lake, audit.run), audit) for audit in request.audits]
    audits: list[dict[str, object]] = []
    broken: list[CapstanError] = []
    for number, (history, requested) in enumerate(runs, start=1):
        emit("audit.run", run=requested.run, number=number, of=len(runs))
        about = _about(history, requested.version)
        try:
            audits.append({**about, **_audit(context, requested)})
        except CapstanError as error:
            audits.append({**about, **error.summary()})
            # A table that somebody deleted is not broken.
            if not isinstance(error, InvalidRequestError) and is_table(history.last.target):
                broken.append(error)
    wrong = [str(audit["run"]) for audit in audits if audit.get("passed") is False]
    missing = [audit["run"] for audit in audits if "error" in audit]
    refusal: CapstanError | None = None
    if wrong:
        refusal = CheckFailedError(
            "CAP-AUDIT",
            f"the targets of {len(wrong)} of {len(audits)} runs differ from the tape: "
            + ", ".join(wrong),
            "`capstan audit RUN` shows the rows; roll the run back, or replay it",
            runs=wrong,
        )
    elif broken:
        refusal = broken[0]
    elif missing and request.strict:
        refusal = CheckFailedError(
            "CAP-AUDIT",
            f"{len(missing)} of {len(audits)} runs can no longer be audited: "
            + ", ".join(map(str, missing)),
            "replay them, or omit `strict`",
            runs=missing,
        )
    return JobResult({"audits": audits, "passed": not wrong, "not_audited": missing}, refusal)


def _about(history: History, version: int | None) -> dict[str, object]:
    return {
        "run": history.last.run,
        "stream": history.last.stream,
        "target": history.last.target,
        "target_path": history.last.target,
        "version": version,
    }


def _audit(context: Context, requested: RunAudit) -> dict[str, object]:
    """The audit part of a run's entry."""
    try:
        report = context.audit(requested.run, version=requested.version, deep=requested.deep)
    except PySparkException as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        hint = "replay it again, or audit the table as it is now with --against"
        raise InvalidRequestError(
            "CAP-GONE", f"it can no longer be read: {reason}", hint
        ) from error
    return {"cut": report.cut, **report.audit.to_json(report.time_type)}


@dataclass(frozen=True, slots=True)
class RollbackRequest:
    """The request of `rollback`: the run to roll back."""

    run: str


def require_reversible(lake: Lake, run: str) -> History:
    """Check without a JVM that a run can be rolled back, or already was."""
    # After an interrupted publish, only the target shows how far it got; the rollback itself
    # completes the ledgers.
    lake.require()
    history = read_history(lake, run)
    if history.rolled_back:
        return history
    unpublished = history.last.step in (Step.FAILED, Step.REJECTED, Step.AUDITED, Step.APPROVED)
    unpublished = (
        unpublished and not history.published and target_table.find_landed(history) is None
    )
    if history.effective_intent is None or unpublished:
        raise InvalidRequestError(
            "CAP-NOT-PUBLISHED",
            f"run {run} has no published rows: its last step was {history.last.step}",
            "see `capstan runs`",
            run=run,
        )
    published = coverage.current(lake, history.last.target)
    for covered in (each for each in published if each.run == run):
        later = next((each for each in published if covered.is_overlaid_by(each)), None)
        if later is not None:
            raise InvalidRequestError(
                "CAP-LATER",
                f"run {later.run} overwrote part of what {run} published",
                f"roll back {later.run} first",
                run=run,
                later=later.run,
            )
    return history


def roll_back(context: Context, request: RollbackRequest) -> JobResult:
    """Roll a run back; the result is a `RollbackResult`."""
    repeated = read_history(context.lake, request.run).rolled_back
    version = context.rollback(request.run)
    history = read_history(context.lake, request.run)
    return JobResult(asdict(_rolled_back(history, version, unchanged=repeated)))


def rolled_back_before(history: History) -> RollbackResult | None:
    """What a rollback of a run would come to that already was, without a JVM; else None."""
    done = next((row for row in history.rows if row.step is Step.ROLLED_BACK), None)
    return None if done is None else _rolled_back(history, done.target_version, unchanged=True)


def _rolled_back(history: History, version: int, *, unchanged: bool) -> RollbackResult:
    draft = require_intent(history).certificate
    return RollbackResult(
        run=history.last.run,
        stream=draft.stream,
        target=draft.target,
        workers=draft.workers,
        since=draft.since,
        until=draft.until,
        target_path=history.last.target,
        target_version=version,
        unchanged=unchanged,
    )
