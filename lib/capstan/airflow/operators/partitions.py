"""Tasks that tell the partitions of a stream which its capture has left, in bounded batches."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context

from capstan.airflow.tasks.capstan_operator import CapstanOperator
from capstan.airflow.tasks.failures import as_task
from capstan.airflow.tasks.partitions import newest_told, tell_partitions

_MOST = 1000  # Airflow maps a task over 1,024 values, unless it is told otherwise.


class CountPartitionsOperator(CapstanOperator):
    """Counts the batches of a stream's partitions that are still to be told.

    The XCom is a list with an element for each.
    """

    def __init__(self, *, stream: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.stream = stream

    def execute(self, context: Context) -> list[int]:
        """List the batches."""
        from capstan.backfill.passed_intervals import BATCH

        told = newest_told(self.stream)
        left = 0 if told is None else -(-told.left // BATCH)
        return list(range(min(left, _MOST)))


class TellPartitionsOperator(CapstanOperator):
    """Tells the next batch of a stream's partitions, whatever its number; one after the other."""

    def __init__(self, *, stream: str, batch: int = 0, **rest: Any) -> None:
        super().__init__(**rest)
        self.stream = stream
        self.batch = batch

    def execute(self, context: Context) -> None:
        """Tell them."""
        settings = self.settings
        with as_task():
            declared = settings.declarations.stream(self.stream)
            tell_partitions(self, context, settings, declared, {"stream": self.stream})
