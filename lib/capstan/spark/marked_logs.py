"""The run in Spark's own log lines."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from capstan.spark.session import is_ours
from capstan.telemetry.instrumentation import subscribe_call
from capstan.telemetry.structured_logging import LogContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAMES = tuple(LogContext().to_json())
# The runs of the calls that go on in this process.
_present: dict[int, LogContext] = {}
_lock = threading.Lock()


@contextmanager
def marked(session: SparkSession) -> Iterator[None]:
    """Add the run to Spark's own log lines inside the `with` block.

    This covers the lines of its tasks, if the executors' log format includes Spark's MDC, and those
    of a driver that Capstan has started. While several calls overlap, the driver's lines name none.
    """
    context, call = LogContext(), object()
    spark = session.sparkContext
    before = {name: spark.getLocalProperty(f"mdc.{name}") for name in _NAMES}

    def mark(_point: str, facts: Mapping[str, object]) -> None:
        nonlocal context
        updated = context.after(facts)
        if updated != context:
            context = updated
            values = context.to_json().items()
            _mark_tasks(session, {n: "" if v is None else str(v) for n, v in values})
            _mark_driver(session, id(call), context)

    try:
        with subscribe_call(mark):
            yield
    finally:
        if context != LogContext():
            # The JVM may have died.
            with suppress(Exception):
                _mark_tasks(session, before)
                _mark_driver(session, id(call), None)


def _mark_tasks(session: SparkSession, values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        # None removes a property, which pyspark's type does not say.
        session.sparkContext.setLocalProperty(f"mdc.{name}", value)  # type: ignore[arg-type]


def _mark_driver(session: SparkSession, call: int, context: LogContext | None) -> None:
    """Set the run of the lines of a driver, which its layout looks up for each line."""
    if not is_ours(session):
        return
    with _lock:
        _present.pop(call, None)
        if context is not None:
            _present[call] = context
        alone = next(iter(_present.values())) if len(_present) == 1 else LogContext()
        system: Any = session.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
        run = f"[{alone.run} {alone.attempt or ''}".rstrip() + "] " if alone.run else ""
        system.setProperty("capstan.run", run)
        system.setProperty("capstan.about", json.dumps(alone.to_json())[1:-1])
