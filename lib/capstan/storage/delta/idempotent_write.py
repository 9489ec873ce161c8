"""Writes under a transaction identity, without the cost of Delta's own writer.

Given `txnAppId`, Delta's writer looks the identity up in the table's state and rebuilds that state
for each commit. These jobs over the whole log take two thirds of the processor time of a small
micro-batch. The last version of one identity can be read without a JVM. So this module calls the
parts of that writer one by one, in the same order, without the look-up. They are not a public
interface of Delta; the tests of this module check them when Delta is upgraded.

The same parts write files ahead of the commit that adds them (`write_files`), so that rows can be
audited before anybody sees them, and are written once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from capstan.storage.delta.commit_lock import committing
from capstan.storage.delta.opened_table import newest_table
from capstan.storage.lake import is_table
from capstan.storage.stored_log import look_again

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject, JVMView
    from pyspark.sql import DataFrame, SparkSession

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Txn:
    """A Delta transaction identity; for one `app` only increasing versions are committed."""

    app: str
    version: int


def write_once(
    frame: DataFrame,
    path: str,
    mode: str,
    options: Mapping[str, str],
    txn: Txn,
    creation_properties: Mapping[str, str] = _NONE,
    unless: Txn | None = None,
    files: Sequence[str] = (),
) -> int | None:
    """Write `frame` in one commit with a transaction identity, to a table that may not exist yet.

    `mode` is `Append` or `Overwrite`; `options` are Delta's, such as `replaceWhere` and
    `userMetadata`. `files` are the actions of `write_files`, which has written the frame: those
    files become part of the table in this commit. Returns the commit's version. None if the table
    has this transaction, a later one of its app, or the one of `unless`, which shuts this writer
    out; nothing was written.
    """
    transaction = {"txnAppId": txn.app, "txnVersion": str(txn.version)}
    writer = DeltaWriter(frame.sparkSession, path, mode, {**options, **transaction})
    look_again()
    # A transaction committed after this line either is seen by the check or conflicts.
    for each in (txn, unless):
        if each is not None:
            if is_committed(path, each):
                return None
            writer.transaction.readTxn().addOne(each.app)
    if files and mode == "Append" and writer.has_columns_of(frame):
        # Nothing else is to be written, so no job has to run.
        actions, tags = writer.transaction_of(txn)
    else:
        none = frame.sparkSession.createDataFrame([], frame.schema) if files else frame
        data = writer.write(none, creation_properties)
        actions, tags = data.actions(), data.stringTags()
    if files:
        actions = writer.with_files(actions, files)
    with committing(path):
        # With a transaction identity there always is something to commit.
        committed = writer.transaction.commitIfNeeded(actions, writer.operation(), tags)
    return int(committed.get())


def write_files(
    frame: DataFrame, path: str, options: Mapping[str, str], apart: str | None = None
) -> list[str]:
    """Write `frame` into files of a table without a commit; no reader sees them.

    Rows with another value of the integer column `apart`, which the table does not have, get other
    files; their actions have it as a partition. The table has all other columns then.

    Returns the actions, each as the JSON of a log entry: protocol and metadata that the table has
    with these rows, then the files.
    """
    writer = DeltaWriter(frame.sparkSession, path, "Append", options)
    table = writer.transaction
    if apart is None:
        data = writer.write(frame)
        head = [table.protocol().json(), table.metadata().json()]
    else:
        head = [table.protocol().json(), table.metadata().json()]
        writer.keep_apart(apart)
        data = writer.write(frame)
    return [*head, *(file.json() for file in added_files(list_of(data.actions())))]


def list_of(sequence: JavaObject) -> list[JavaObject]:
    """The elements of a sequence of Scala."""
    return [sequence.apply(index) for index in range(sequence.size())]


def added_files(actions: Iterable[JavaObject]) -> list[JavaObject]:
    """The actions that add a file."""
    return [action for action in actions if action.getClass().getSimpleName() == "AddFile"]


class DeltaWriter:
    """A transaction of a table, and Delta's writer in it."""

    def __init__(
        self, spark: SparkSession, path: str, mode: str, options: Mapping[str, str]
    ) -> None:
        self._spark, self._session, jvm = spark, spark._jsparkSession, spark._jvm
        assert jvm is not None
        self._jvm, self._delta = jvm, jvm.org.apache.spark.sql.delta
        self._log = self._delta.DeltaLog.forTable(self._session, path)
        self.transaction = self._log.startTransaction()
        conf = self._session.sessionState().conf()
        self._options = self._delta.DeltaOptions(_map(jvm, options), conf)
        self._mode = getattr(jvm.org.apache.spark.sql.SaveMode, mode)
        self._columns = jvm.PythonUtils.toSeq([])

    def write(self, rows: DataFrame, creation_properties: Mapping[str, str] = _NONE) -> JavaObject:
        """Write rows as new files; the actions to commit."""
        exists, none = self.transaction.readVersion() >= 0, self._jvm.scala.Option.empty()
        properties = _map(self._jvm, {} if exists else creation_properties)
        how = self._mode, self._options, self._columns, properties
        write = self._delta.commands.WriteIntoDelta(self._log, *how, rows._jdf, none, none, False)
        return write.writeAndReturnCommitData(self.transaction, self._session, none, False)

    def keep_apart(self, column: str) -> None:
        """Partition what is written by a further integer column first; never to be committed."""
        action = json.loads(self.transaction.metadata().json())
        metadata = action["metaData"]
        schema = json.loads(metadata["schemaString"])
        field = {"name": column, "type": "integer", "nullable": True, "metadata": {}}
        metadata["schemaString"] = json.dumps({**schema, "fields": [*schema["fields"], field]})
        metadata["partitionColumns"] = [column, *metadata["partitionColumns"]]
        changed = self._delta.actions.Action.fromJson(json.dumps(action))
        self.transaction.updateMetadata(changed, False)

    def transaction_of(self, txn: Txn) -> tuple[JavaObject, JavaObject]:
        """The actions and tags of a commit that writes nothing, with a transaction identity."""
        entry = {"appId": txn.app, "version": txn.version, "lastUpdated": int(time.time() * 1000)}
        action = self._delta.actions.Action.fromJson(json.dumps({"txn": entry}))
        return self._jvm.PythonUtils.toSeq([action]), _map(self._jvm, {})

    def has_columns_of(self, rows: DataFrame) -> bool:
        """Whether the table has all columns of some rows."""
        names = {name.lower() for name in self.transaction.metadata().schema().fieldNames()}
        return names.issuperset(name.lower() for name in rows.columns)

    def with_files(self, actions: JavaObject, files: Sequence[str]) -> JavaObject:
        """Actions together with those of files that were written before, and their metrics."""
        parse, sums = self._delta.actions.Action.fromJson, self._jvm.org.apache.spark.sql.execution
        context, metrics = self._spark.sparkContext._jsc.sc(), {}
        for name, value in _metrics(files).items():
            # That of rows which are copied from files of which a part is replaced.
            copied = self.transaction.getMetric(name)
            metrics[name] = sums.metric.SQLMetrics.createMetric(context, name)
            metrics[name].set(value + (copied.get().value() if copied.isDefined() else 0))
        self.transaction.registerSQLMetrics(self._session, _map(self._jvm, metrics))
        return actions.appendedAll(self._jvm.PythonUtils.toSeq([parse(file) for file in files]))

    def operation(self) -> JavaObject:
        """The operation that the log names for the commit."""
        jvm, none = self._jvm, self._jvm.scala.Option.empty()
        write = getattr(self._delta, "DeltaOperations$Write")
        columns, options = jvm.scala.Option.apply(self._columns), self._options
        details = columns, options.replaceWhere(), options.userMetadata()
        return write(self._mode, *details, *[none] * 5)


def _metrics(files: Sequence[str]) -> dict[str, int]:
    added = [json.loads(file)["add"] for file in files]
    # A session may have them switched off.
    stats = [json.loads(file.get("stats") or "{}") for file in added]
    return {
        "numFiles": len(added),
        "numOutputRows": sum(file.get("numRecords", 0) for file in stats),
        "numOutputBytes": sum(file["size"] for file in added),
    }


def is_committed(path: str, txn: Txn) -> bool:
    """Whether a table has a transaction, or a later one of its job."""
    return is_table(path) and newest_table(path).has_transaction(txn.app, txn.version)


def _map(jvm: JVMView, values: Mapping[str, object]) -> JavaObject:
    return jvm.PythonUtils.toScalaMap(dict(values))
