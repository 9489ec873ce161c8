"""Progress of a job: a line each half minute in which no other says how far it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from pyspark import SparkContext

from capstan.telemetry.instrumentation import Facts, subscribe
from capstan.telemetry.structured_logging import Log

EVERY = 30.0
"""Seconds between two lines."""


@dataclass(slots=True)
class _Progress:
    """The point that a job has reached, and when it did."""

    log: Log
    begun: float = field(default_factory=time.monotonic)
    point: str = "start"
    at: float = field(default_factory=time.monotonic)
    ended: threading.Event = field(default_factory=threading.Event)

    def reached(self, point: str, _: Facts) -> None:
        self.point, self.at = point, time.monotonic()

    def tell(self, every: float) -> None:
        """Log how far the job is whenever nothing else was logged for so long."""
        last = self.at
        while not self.ended.wait(max(0.0, max(last, self.at) + every - time.monotonic())):
            if time.monotonic() - max(last, self.at) >= every:
                last = time.monotonic()
                facts = {"after": self.point, "seconds": round(last - self.begun), **_tasks()}
                self.log.point("job.progress", facts)


@contextmanager
def logged(log: Log | None, every: float = EVERY) -> Iterator[None]:
    """Log `job.progress` inside the `with` block: the last point, and Spark's tasks."""
    if log is None:
        yield
        return
    progress = _Progress(log)
    thread = threading.Thread(target=progress.tell, args=(every,), daemon=True)
    with subscribe(progress.reached):
        thread.start()
        try:
            yield
        finally:
            progress.ended.set()
            thread.join()


def _tasks() -> dict[str, int]:
    """How many tasks of Spark's running stages are done; empty without a session."""
    context = SparkContext._active_spark_context
    if context is None:
        return {}
    done = of = 0
    # The session may end meanwhile.
    with suppress(Exception):
        tracker = context.statusTracker()
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                done, of = done + info.numCompletedTasks, of + info.numTasks
    return {"tasks_done": done, "tasks": of} if of else {}
