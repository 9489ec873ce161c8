"""Backfills in one app, one after the other; one that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from capstan.backfill.planner import BackfillRequest
from capstan.backfill.run import backfill
from capstan.core.config import ProjectConfig
from capstan.errors import CapstanError
from capstan.jobs.job_types import JobResult
from capstan.storage.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fill(
    spark: SparkSession, lake: Lake, declarations: ProjectConfig, request: BackfillRequest
) -> JobResult:
    """Carry out one backfill; the result has a refusal if one of its runs failed."""
    result = backfill(spark, lake, declarations, request)
    return JobResult(result.to_json(), result.error)


def fill_all(
    spark: SparkSession,
    lake: Lake,
    declarations: ProjectConfig,
    requests: Sequence[BackfillRequest],
) -> JobResult:
    """Carry out several backfills; each one is planned when its turn comes.

    Returns:
        `backfills`, one entry each, with `error`, `message` and `hint` if it failed; the first
        failure is the refusal.
    """
    entries: list[dict[str, object]] = []
    errors: list[CapstanError] = []
    for request in requests:
        try:
            result = fill(spark, lake, declarations, request)
            value, error = dict(result.value), result.refusal
        except CapstanError as refused:
            value, error = {"replay": request.replay, "what": str(request.what)}, refused
        entries.append(value if error is None else {**value, **error.summary()})
        errors += [] if error is None else [error]
    return JobResult({"backfills": entries}, errors[0] if errors else None)
