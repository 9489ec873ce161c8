"""Tasks that tell the partitions of a stream, or of a declared replay, in bounded batches."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context

from capstan.airflow.tasks.capstan_operator import CapstanOperator
from capstan.airflow.tasks.failures import as_task
from capstan.airflow.tasks.partitions import (
    newest_told,
    tell_coverage,
    tell_partitions,
    untold_coverage,
)

_MOST = 1000  # Airflow maps a task over 1,024 values, unless it is told otherwise.


class CountPartitionsOperator(CapstanOperator):
    """Counts the batches of partitions that are still to be told: of a stream, or of a replay.

    The XCom is a list with an element for each.
    """

    def __init__(
        self, *, stream: str | None = None, replay: str | None = None, **rest: Any
    ) -> None:
        super().__init__(**rest)
        self.stream = stream
        self.replay = replay

    def execute(self, context: Context) -> list[int]:
        """List the batches."""
        with as_task():
            return list(range(min(self._left(), _MOST)))

    def _left(self) -> int:
        from capstan.backfill.passed_intervals import BATCH

        if self.stream is not None:
            passed = newest_told(self.stream)
            return 0 if passed is None else -(-passed.left // BATCH)
        assert self.replay is not None
        batch = untold_coverage(self.settings, self.replay)
        return 0 if batch is None else batch.left + 1


class TellPartitionsOperator(CapstanOperator):
    """Tells the next batch of partitions, whatever its number; one after the other."""

    def __init__(
        self, *, stream: str | None = None, replay: str | None = None, batch: int = 0, **rest: Any
    ) -> None:
        super().__init__(**rest)
        self.stream = stream
        self.replay = replay
        self.batch = batch

    def execute(self, context: Context) -> None:
        """Tell them."""
        settings = self.settings
        with as_task():
            if self.stream is None:
                assert self.replay is not None
                tell_coverage(self, context, settings, self.replay)
            else:
                declared = settings.declarations.stream(self.stream)
                tell_partitions(self, context, settings, declared, {"stream": self.stream})
