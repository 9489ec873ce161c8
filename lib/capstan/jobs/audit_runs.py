"""Audits of several runs in one app: each is told, and one that cannot be made stops no other."""

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
    asked: Sequence[tuple[History, int | None]],
    *,
    strict: bool = False,
) -> JobResult:
    """Audit what runs have published, each at a version of its target, or as it is now.

    A run that was taken back, whose table is gone, whose transform or pipeline has changed since,
    or whose version is no longer kept, cannot be audited: its entry has `error`, `message` and
    `hint` in place of an audit. So has one by which something turned out to be broken.

    Args:
        spark: The session.
        lake: The lake.
        declarations: What is declared.
        asked: The runs, each with a version of its target, or None for the newest.
        strict: Whether one that cannot be audited is a refusal as well.

    Returns:
        `audits`, `passed` (whether none differs) and `not_audited` (runs); with a refusal if one
        differs, or if something is broken.
    """
    audits: list[dict[str, object]] = []
    broken: list[CapstanError] = []
    for history, version in asked:
        about = _about(history, version)
        try:
            audits.append({**about, **_audit(spark, lake, declarations, history, version)})
        except CapstanError as error:
            audits.append({**about, **error.summary()})
            # A table that a person has removed is none that is broken.
            if not isinstance(error, InvalidRequestError) and is_table(history.last.target):
                broken.append(error)
    wrong = [str(each["run"]) for each in audits if each.get("passed") is False]
    missing = [each["run"] for each in audits if "error" in each]
    refusal: CapstanError | None = None
    if wrong:
        refusal = CheckFailedError(
            "CAP-AUDIT",
            f"{len(wrong)} of {len(audits)} runs are not what the tape promises: "
            + ", ".join(wrong),
            "`capstan audit RUN` shows the rows; roll the run back, or replay it",
            runs=wrong,
        )
    elif broken:
        refusal = broken[0]
    elif missing and strict:
        refusal = CheckFailedError(
            "CAP-AUDIT",
            f"{len(missing)} of {len(audits)} runs cannot be audited any more: "
            + ", ".join(map(str, missing)),
            "replay them, or leave out `strict`",
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
    """An audit, as its entry has it.

    Raises:
        InvalidRequestError: As `require_auditable` and `audit_run`; `CAP-GONE` for what Spark
            cannot read.
    """
    try:
        # Those before it took their time: it may have been taken back meanwhile.
        now = require_auditable(lake, history.last.run, version)
        plan, found = audit_run(spark, lake, declarations, now, version)
    except PySparkException as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        hint = "replay it again, or audit what stands there now with --against"
        raise InvalidRequestError(
            "CAP-GONE", f"it cannot be read any more: {reason}", hint
        ) from error
    return {"cut": plan.cut.commit, **found.to_json(plan.tape.time_type)}
