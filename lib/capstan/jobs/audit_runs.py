"""Audits of several runs in one app; one that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from capstan.core.config import ProjectConfig
from capstan.errors import CapstanError, CheckFailedError, InvalidRequestError
from capstan.jobs.job_types import JobResult
from capstan.replay.standalone_audit import audit_run, require_auditable
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.runs import History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def audit_all(
    spark: SparkSession,
    lake: Lake,
    declarations: ProjectConfig,
    runs: Sequence[tuple[History, int | None]],
    *,
    strict: bool = False,
) -> JobResult:
    """Audit published runs, each at a version of its target, or as the target is now.

    A run cannot be audited if it was rolled back, its table is gone, its transform or pipeline has
    changed, or its version is no longer kept: its entry has `error`, `message` and `hint` instead
    of an audit. The same applies when the audit finds something broken.

    Args:
        spark: The session.
        lake: The lake.
        declarations: The declarations.
        runs: The runs, each with a version of its target, or None for the newest.
        strict: Whether a run that cannot be audited is a refusal too.

    Returns:
        `audits`, `passed` (whether no run differs) and `not_audited` (runs); with a refusal if a
        run differs, or something is broken.
    """
    audits: list[dict[str, object]] = []
    broken: list[CapstanError] = []
    for history, version in runs:
        about = _about(history, version)
        try:
            audits.append({**about, **_audit(spark, lake, declarations, history, version)})
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
    elif missing and strict:
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


def _audit(
    spark: SparkSession,
    lake: Lake,
    declarations: ProjectConfig,
    history: History,
    version: int | None,
) -> dict[str, object]:
    """The audit part of a run's entry.

    Raises:
        InvalidRequestError: As `require_auditable`.
    """
    try:
        # The run may have been rolled back during the audits before this one.
        current = require_auditable(lake, history.last.run, version)
        plan, audit = audit_run(spark, lake, declarations, current, version)
    except PySparkException as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        hint = "replay it again, or audit the table as it is now with --against"
        raise InvalidRequestError(
            "CAP-GONE", f"it can no longer be read: {reason}", hint
        ) from error
    return {"cut": plan.cut.commit, **audit.to_json(plan.tape.time_type)}
