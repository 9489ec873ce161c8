"""Writes under a transaction identity, without the cost of Delta's own writer.

Given `txnAppId`, Delta's writer looks the identity up in the table's state and rebuilds that state
for each commit. These jobs over the whole log take two thirds of the processor time of a small
micro-batch. The last version of one identity can be read without a JVM. So this module calls the
parts of that writer one by one, in the same order, without the look-up. They are not a public
interface of Delta; the tests of this module check them when Delta is upgraded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from capstan.storage.delta.commit_lock import committing
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.lake import is_table

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject, JVMView
    from pyspark.sql import DataFrame


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
    creation_properties: Mapping[str, str] = MappingProxyType({}),
    unless: Txn | None = None,
) -> bool:
    """Write `frame` in one commit with a transaction identity, to a table that may not exist yet.

    `mode` is `Append` or `Overwrite`; `options` are Delta's, such as `replaceWhere` and
    `userMetadata`. False if the table has this transaction, a later one of its app, or the one of
    `unless`, which shuts this writer out; nothing was written.
    """
    spark = frame.sparkSession
    jvm, session = spark._jvm, spark._jsparkSession
    assert jvm is not None
    delta = jvm.org.apache.spark.sql.delta
    log = delta.DeltaLog.forTable(session, path)
    transaction = log.startTransaction()
    # A transaction committed after this line either is seen by the check or conflicts.
    for each in (txn, unless):
        if each is not None:
            if is_committed(path, each):
                return False
            transaction.readTxn().addOne(each.app)
    all_options = {**options, "txnAppId": txn.app, "txnVersion": str(txn.version)}
    settings = delta.DeltaOptions(_map(jvm, all_options), session.sessionState().conf())
    save_mode = getattr(jvm.org.apache.spark.sql.SaveMode, mode)
    exists = transaction.readVersion() >= 0
    properties, none = _map(jvm, {} if exists else creation_properties), jvm.scala.Option.empty()
    columns = jvm.PythonUtils.toSeq([])
    write = delta.commands.WriteIntoDelta(
        log, save_mode, settings, columns, properties, frame._jdf, none, none, False
    )
    data = write.writeAndReturnCommitData(transaction, session, none, False)
    operation = _operation(jvm, save_mode, columns, settings)
    with committing(path):
        transaction.commitIfNeeded(data.actions(), operation, data.stringTags())
    return True


def is_committed(path: str, txn: Txn) -> bool:
    """Whether a table has a transaction, or a later one of its job."""
    if not is_table(path):
        return False
    last = OpenedTable(path).transaction_version(txn.app)
    return last is not None and last >= txn.version


def _operation(
    jvm: JVMView, save_mode: JavaObject, columns: JavaObject, settings: JavaObject
) -> JavaObject:
    write = getattr(jvm.org.apache.spark.sql.delta, "DeltaOperations$Write")
    details = jvm.scala.Option.apply(columns), settings.replaceWhere(), settings.userMetadata()
    return write(save_mode, *details, *[jvm.scala.Option.empty()] * 5)


def _map(jvm: JVMView, values: Mapping[str, str]) -> JavaObject:
    return jvm.PythonUtils.toScalaMap(dict(values))
