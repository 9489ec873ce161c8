"""The tape of a little stream, and short ways to replay it and to look at what came of that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import polars as pl
from pyspark.sql import SparkSession

from capstan.capture.run import capture
from capstan.core.config import ProjectConfig, Target, Transform
from capstan.replay.execution.approval import Decision
from capstan.replay.planning.request import Request
from capstan.replay.run import ReplayResult, publish, replay, rollback
from capstan.storage import delta
from capstan.storage.lake import Lake
from tests.support.sample_streams import NAME, SUM_BY_DAY, Row, declared, lay, little_stream


@dataclass(frozen=True)
class Play:
    """What may be replayed from a lake, and where to.

    Attributes:
        spark: The session that does the work.
        lake: Where the tape is, and the tables.
        declarations: One stream, named `tests.support.sample_streams.NAME`.
    """

    spark: SparkSession
    lake: Lake
    declarations: ProjectConfig

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        folder: Path,
        content: Sequence[Row],
        transforms: Iterable[Transform] = (SUM_BY_DAY,),
        targets: Mapping[str, Target] | None = None,
    ) -> Self:
        """Capture rows, as one file, into a lake in `folder`."""
        lay(folder / "source", "0", content)
        stream = little_stream(folder / "source")
        lake = Lake.at(folder / "lake")
        capture(spark, lake, stream)
        return cls(spark, lake, declared(stream, transforms, targets))

    def request(self, into: str, **asked: object) -> Request:
        """A request to replay the stream into a table; `asked` has further fields of it."""
        return Request(NAME, into, **asked)  # type: ignore[arg-type]

    def __call__(self, into: str, **asked: object) -> ReplayResult:
        """Do what is requested."""
        return replay(self.spark, self.lake, self.declarations, self.request(into, **asked))

    def run(self, into: str, **asked: object) -> str:
        """The same; the run's name."""
        return str(self(into, **asked).certificate["run"])

    def publish(self, run: str, decision: Decision | None = None) -> ReplayResult:
        """Publish what a run has staged."""
        return publish(self.spark, self.lake, self.declarations, run, decision)

    def rollback(self, run: str) -> int:
        """Take a run back."""
        return rollback(self.spark, self.lake, self.declarations, run)

    def rows(self, into: str) -> pl.DataFrame:
        """All rows of a table, in no order."""
        return pl.read_delta(self.lake.table(into))

    def column(self, into: str, name: str = "id") -> list[object]:
        """What stands in a column of a table, sorted."""
        return sorted(self.rows(into)[name].to_list())

    def version(self, into: str) -> int | None:
        """The version of a table; None where there is none."""
        return delta.version_of(self.lake.table(into))

    def sql(self, statement: str, into: str) -> None:
        """Do something to a table behind Capstan's back: `{table}` in the statement is it."""
        self.spark.sql(statement.format(table=f"delta.`{self.lake.table(into)}`"))
