"""Contexts for tests: with declarations from no file, and without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capstan.api.context import Context
from capstan.backfill.run import BackfillResult, prepare, run_prepared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.backfill.planner import BackfillRequest
    from capstan.core.config import ProjectConfig
    from capstan.storage.lake import Lake


class DeclaredContext(Context):
    """A context with these declarations."""

    def __init__(self, lake: Lake, declarations: ProjectConfig, spark: SparkSession) -> None:
        super().__init__(lake.root, spark=spark)
        self._declarations = declarations

    def declared(self, *, required: bool = False) -> ProjectConfig:
        """The declarations; `required` changes nothing."""
        return self._declarations


def backfill(
    spark: SparkSession, lake: Lake, declarations: ProjectConfig, request: BackfillRequest
) -> BackfillResult:
    """Carry out a backfill."""
    return run_prepared(spark, lake, declarations, prepare(lake, declarations, request))


class SparkStarted(BaseException):
    """Raised when something would start Spark; no failure that a command could report."""


def refuse_spark() -> SparkSession:
    """Raise `SparkStarted` instead of starting Spark."""
    raise SparkStarted
