"""Audits of several runs in one app: each is told, and one that cannot be made stops no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from capstan.declare import Declarations
from capstan.errors import AnswerIsNo, BadRequest
from capstan.ledger.runs import History
from capstan.replay.foreign import audit_run
from capstan.submit.values import Answer
from capstan.tape.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def audit_all(
    spark: SparkSession,
    lake: Lake,
    declarations: Declarations,
    asked: Sequence[tuple[History, int | None]],
    *,
    strict: bool = False,
) -> Answer:
    """Audit what runs have published, each at a version of its target, or as it is now.

    A run whose transform or pipeline has changed since, or whose version is no longer kept, cannot
    be audited: its entry has `error`, `message` and `hint` in place of an audit.

    Args:
        spark: The session.
        lake: The lake.
        declarations: What is declared.
        asked: The runs, each with a version of its target, or None for the newest.
        strict: Whether one that cannot be audited is a refusal as well.

    Returns:
        `audits`, `passed` (whether none differs) and `not_audited` (runs); with a refusal if one
        differs.
    """
    audits = [_audited(spark, lake, declarations, history, version) for history, version in asked]
    wrong = [str(each["run"]) for each in audits if each.get("passed") is False]
    missing = [each["run"] for each in audits if "error" in each]
    refusal = None
    if wrong:
        refusal = AnswerIsNo(
            "CAP-AUDIT",
            f"{len(wrong)} of {len(audits)} runs are not what the tape promises: "
            + ", ".join(wrong),
            "`capstan audit RUN` shows the rows; roll the run back, or replay it",
            runs=wrong,
        )
    elif missing and strict:
        refusal = AnswerIsNo(
            "CAP-AUDIT",
            f"{len(missing)} of {len(audits)} runs cannot be audited any more: "
            + ", ".join(map(str, missing)),
            "replay them, or leave out `strict`",
            runs=missing,
        )
    return Answer({"audits": audits, "passed": not wrong, "not_audited": missing}, refusal)


def _audited(
    spark: SparkSession,
    lake: Lake,
    declarations: Declarations,
    history: History,
    version: int | None,
) -> dict[str, object]:
    about: dict[str, object] = {
        "run": history.last.run,
        "stream": history.last.stream,
        "target": history.last.target,
        "target_path": history.last.target,
        "version": version,
    }
    try:
        plan, found = audit_run(spark, lake, declarations, history, version)
    except BadRequest as error:
        return {**about, **error.told()}
    except PySparkException as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        hint = "replay it again, or audit what stands there now with --against"
        gone = BadRequest("CAP-GONE", f"it cannot be read any more: {reason}", hint)
        return {**about, **gone.told()}
    return {**about, "cut": plan.cut.commit, **found.as_json(plan.tape.time_type)}
