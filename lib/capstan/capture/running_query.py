"""A streaming query of the caller's, as the thread that handles its micro-batch finds it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capstan.errors import InvalidRequestError
from capstan.storage.lake import children

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
# The folder that Spark makes for a query without a checkpoint, and deletes when the query stops.
_TEMPORARY = re.compile(r"/temporary-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


@dataclass(frozen=True, slots=True)
class Query:
    """A running query of the caller's.

    Attributes:
        identity: The id of its checkpoint.
        folder: The folder of its checkpoint.
        run: The id of this run of it.
        batch: Its number of the micro-batch that it is at.
        java: The query in the JVM.
    """

    identity: str
    folder: str
    run: str
    batch: int
    java: JavaObject

    @classmethod
    def of_thread(cls, session: SparkSession) -> Query:
        """The query whose micro-batch this thread handles.

        Raises:
            InvalidRequestError: `CAP-REQUEST` outside of `foreachBatch`.
        """
        identity = session.sparkContext.getLocalProperty(_QUERY_ID) or ""
        batch = session.sparkContext.getLocalProperty(_BATCH_ID) or ""
        jvm, query = session._jvm, None
        if identity and jvm is not None:
            # The session of a micro-batch is a copy, which does not list the original's queries.
            active = session._jsparkSession.sharedState().activeStreamingQueries()
            query = active.get(jvm.java.util.UUID.fromString(identity))
        if query is None:
            raise InvalidRequestError(
                "CAP-REQUEST",
                "capture_into was called outside of a streaming query",
                "pass it to `foreachBatch` of a streaming DataFrame, and start the query",
            )
        folder, run = str(query.resolvedCheckpointRoot()), str(query.runId())
        return cls(identity, folder, run, int(batch), query)

    def require_checkpoint(self, stream: str) -> None:
        """Check that the query has a checkpoint that outlives it.

        Raises:
            InvalidRequestError: `CAP-CHECKPOINT`.
        """
        if _TEMPORARY.search(self.folder):
            raise InvalidRequestError(
                "CAP-CHECKPOINT",
                f"stream {stream}: its query has no checkpoint, so it could not continue after a "
                "restart",
                'give the query a folder of its own: `.option("checkpointLocation", ...)`',
                stream=stream,
            )

    @property
    def has_state(self) -> bool:
        """Whether operators of the query keep state."""
        return bool(children(f"{self.folder}/state"))
