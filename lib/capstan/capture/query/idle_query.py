"""Idle advance for a query of the caller's: Spark says when the query has found no new records."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from capstan.capture.query.running_query import Query


class IdleListener(StreamingQueryListener):
    """Calls a function whenever one query has looked for records and found none."""

    def __init__(
        self, session: SparkSession, query: Query, idle: Callable[[datetime], None]
    ) -> None:
        """Listen until the query ends.

        Args:
            idle: Called with the time at which it had read everything.
        """
        self._identity = query.identity
        self._idle = idle
        # The manager of the session that has started the query; that of a micro-batch is a copy.
        self._manager: JavaObject = query.java.sparkSession().streams()
        streaming = session._jvm.org.apache.spark.sql.streaming  # type: ignore[union-attr]
        self._java = streaming.PythonStreamingQueryListenerWrapper(JStreamingQueryListener(self))
        self._manager.addListener(self._java)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Pass on the time of the event."""
        if str(event.id) == self._identity:
            self._idle(datetime.fromisoformat(event.timestamp).astimezone(UTC))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Stop listening."""
        if str(event.id) == self._identity:
            self._manager.removeListener(self._java)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Ignore."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Ignore."""
