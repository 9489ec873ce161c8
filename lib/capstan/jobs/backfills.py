"""Backfills in one app, one after the other: each is told, and one that fails stops no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from capstan.backfill.planner import Backfill
from capstan.backfill.run import backfill
from capstan.core.config import ProjectConfig
from capstan.errors import CapstanError
from capstan.jobs.job_types import JobResult
from capstan.storage.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fill(
    spark: SparkSession, lake: Lake, declarations: ProjectConfig, asked: Backfill
) -> JobResult:
    """Carry out one backfill; with a refusal if a run of it has failed."""
    found = backfill(spark, lake, declarations, asked)
    return JobResult(found.to_json(), found.error)


def fill_all(
    spark: SparkSession, lake: Lake, declarations: ProjectConfig, asked: Sequence[Backfill]
) -> JobResult:
    """Carry out several backfills; each looks at what is missing when its turn comes.

    Returns:
        `backfills`, an entry each, with `error`, `message` and `hint` where one has failed; with
        the first of these as a refusal.
    """
    told: list[dict[str, object]] = []
    errors: list[CapstanError] = []
    for each in asked:
        try:
            answer = fill(spark, lake, declarations, each)
            value, error = dict(answer.value), answer.refusal
        except CapstanError as refused:
            value, error = {"replay": each.replay, "what": str(each.what)}, refused
        told.append(value if error is None else {**value, **error.summary()})
        errors += [] if error is None else [error]
    return JobResult({"backfills": told}, errors[0] if errors else None)
