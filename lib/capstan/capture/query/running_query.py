"""A streaming query of the caller's, as its micro-batch finds it, and a listener for idle ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener

from capstan.errors import InvalidRequestError
from capstan.storage.lake import children

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
# The folder that Spark makes for a query without a checkpoint, and deletes when the query stops.
_RANDOM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TEMPORARY = re.compile(rf"/temporary-{_RANDOM.pattern}$")
# The setting with a folder for the checkpoints of queries that name none.
_LOCATION = "spark.sql.streaming.checkpointLocation"


@dataclass(frozen=True, slots=True)
class Query:
    """A running query of the caller's."""

    identity: str
    folder: str
    run: str
    batch: int
    java: JavaObject

    @classmethod
    def of(cls, frame: DataFrame) -> Query:
        """The query whose micro-batch this thread handles, or one of its threads."""
        session = frame.sparkSession
        context, jvm = session.sparkContext, session._jvm
        identity = context.getLocalProperty(_QUERY_ID) or ""
        number = context.getLocalProperty(_BATCH_ID) or ""
        assert jvm is not None
        # The session of a micro-batch is a copy, which does not list the original's queries.
        active = session._jsparkSession.sharedState().activeStreamingQueries()
        query = active.get(jvm.java.util.UUID.fromString(identity)) if identity else None
        if query is None:
            # Another thread than Spark's knows the query by the session of its frame alone.
            for each in active.values():
                batch = each.lastExecution()
                if batch is not None and batch.sparkSession() == session._jsparkSession:
                    query, number = each, batch.currentBatchId()
        if query is None:
            raise InvalidRequestError(
                "CAP-REQUEST",
                "capture_into was called outside of a streaming query",
                "pass it to `foreachBatch` of a streaming DataFrame, and start the query",
            )
        folder, run = str(query.resolvedCheckpointRoot()), str(query.runId())
        return cls(str(query.id()), folder, run, int(number), query)

    def require_checkpoint(self, stream: str) -> None:
        """Check that the query has a checkpoint that it finds again after a restart."""
        if _TEMPORARY.search(self.folder) or self._is_chosen_anew:
            raise InvalidRequestError(
                "CAP-CHECKPOINT",
                f"stream {stream}: its query has no checkpoint, so it could not continue after a "
                "restart",
                'give the query a folder of its own: `.option("checkpointLocation", ...)`',
                stream=stream,
            )

    @property
    def _is_chosen_anew(self) -> bool:
        """Whether each start of the query takes another folder, below one of its session's setting.

        A query with a name takes the folder of that name.
        """
        session = self.java.sparkSession()
        below = session.conf().getOption(_LOCATION)
        if self.batch or self.java.name() is not None or below.isEmpty():
            return False
        parent, _, name = self.folder.rpartition("/")
        return bool(_RANDOM.fullmatch(name)) and _path(parent) == _path(str(below.get()))

    @property
    def has_state(self) -> bool:
        """Whether operators of the query keep state."""
        return bool(children(f"{self.folder}/state"))


def _path(text: str) -> str:
    """A folder of the local file system without its scheme, and any without a slash at its end."""
    return re.sub(r"^file:(//)?(?=/)", "", text).rstrip("/")


class IdleListener(StreamingQueryListener):
    """Calls a function whenever one query has looked for records and found none."""

    def __init__(
        self, session: SparkSession, query: Query, idle: Callable[[datetime], None]
    ) -> None:
        """Listen until the query ends; `idle` gets the time at which it had read everything."""
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
