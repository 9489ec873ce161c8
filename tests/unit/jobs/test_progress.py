"""Lines that say how far a job is while nothing else does."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace as Some
from typing import Any

import pytest

from capstan.jobs import progress
from capstan.telemetry.instrumentation import emit
from capstan.telemetry.structured_logging import Log, LogFormat


class Lines(list[str]):
    """Lines of a log, which can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.more = threading.Event()

    def add(self, text: str) -> None:
        self.append(text)
        self.more.set()


def test_a_job_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = {4: Some(numCompletedTasks=31, numTasks=200), 5: Some(numCompletedTasks=1, numTasks=2)}
    tracker = Some(getActiveStageIds=lambda: [4, 5, 6], getStageInfo=stages.get)
    spark: Any = Some(statusTracker=lambda: tracker)
    monkeypatch.setattr(progress.SparkContext, "_active_spark_context", spark)
    lines = Lines()
    log = Log(LogFormat.PLAIN, lines.add)
    with progress.logged(log, every=0.2):
        emit("audit.run", run="t-1", number=1, of=2)
        log.context = log.context.after({"run": "t-1"})
        assert lines.more.wait(20)
    [told, *_] = lines
    assert " INFO job.progress run=t-1 after=audit.run seconds=" in told
    assert told.endswith(" tasks_done=32 tasks=202\n")
    # Nothing is told behind its end.
    count = len(lines)
    time.sleep(0.3)
    assert len(lines) == count


def test_a_job_that_is_heard_of_says_no_more() -> None:
    lines = Lines()
    with progress.logged(Log(LogFormat.PLAIN, lines.add), every=2.0):
        for _ in range(15):
            emit("audit.run", run="t-1", number=1, of=2)
            time.sleep(0.15)
    assert lines == []
    with progress.logged(None):
        pass


def test_a_session_that_ends_meanwhile_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> object:
        raise ConnectionRefusedError

    monkeypatch.setattr(progress.SparkContext, "_active_spark_context", Some(statusTracker=gone))
    assert progress._tasks() == {}
    monkeypatch.setattr(progress.SparkContext, "_active_spark_context", None)
    assert progress._tasks() == {}
