"""The tape of a small stream, with short methods to replay it and to read the results."""

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
from capstan.replay.result import ReplayResult
from capstan.replay.run import publish, replay, rollback
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from tests.support.sample_streams import NAME, SUM_BY_DAY, Row, declared, lay, little_stream


@dataclass(frozen=True)
class Play:
    """A lake with a tape, and its replays.

    Attributes:
        spark: The session.
        lake: Lake of the tape and the tables.
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

    def request(self, into: str, **fields: object) -> Request:
        """A request to replay the stream into a table; `asked` has further fields."""
        return Request(NAME, into, **fields)  # type: ignore[arg-type]

    def __call__(self, into: str, **fields: object) -> ReplayResult:
        """Replay into a table."""
        return replay(self.spark, self.lake, self.declarations, self.request(into, **fields))

    def run(self, into: str, **fields: object) -> str:
        """Replay into a table; returns the name of the run."""
        certificate = self(into, **fields).certificate
        assert certificate is not None
        return str(certificate.run)

    def publish(self, run: str, decision: Decision | None = None) -> ReplayResult:
        """Publish the staged rows of a run."""
        return publish(self.spark, self.lake, self.declarations, run, decision)

    def rollback(self, run: str) -> int:
        """Roll back a run."""
        return rollback(self.spark, self.lake, self.declarations, run)

    def rows(self, into: str) -> pl.DataFrame:
        """All rows of a table, in no particular order."""
        return pl.read_delta(self.lake.table(into))

    def column(self, into: str, name: str = "id") -> list[object]:
        """The values of a column of a table, sorted."""
        return sorted(self.rows(into)[name].to_list())

    def version(self, into: str) -> int | None:
        """The version of a table; None if it does not exist."""
        return delta.version_of(self.lake.table(into))

    def sql(self, statement: str, into: str) -> None:
        """Change a table behind Capstan's back; `{table}` in the statement stands for it."""
        self.spark.sql(statement.format(table=f"delta.`{self.lake.table(into)}`"))
