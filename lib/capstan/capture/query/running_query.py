"""A streaming query of the caller's, as the thread that handles its micro-batch finds it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capstan.errors import InvalidRequestError
from capstan.storage.lake import children

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame

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
