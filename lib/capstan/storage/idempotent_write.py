"""Writes under a transaction identity, without the price that Delta's writer asks for it.

Given `txnAppId`, Delta's writer looks the identity up in the table's state, and makes that state
anew for each commit: jobs over the whole log, two thirds of a small micro-batch's processor time.
The last version of one identity is known without a JVM. So the parts of that writer are called one
by one here, the same in the same order, but for the look-up. They are no public interface of
Delta's; whoever moves to another Delta has the tests of this module to go by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import deltalake

from capstan.storage.commit_lock import committing
from capstan.storage.lake import is_table

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject, JVMView
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Txn:
    """A Delta transaction identity: of one `app`, only a rising `version` is ever committed."""

    app: str
    version: int


def write_once(
    frame: DataFrame,
    path: str,
    mode: str,
    options: Mapping[str, str],
    txn: Txn,
    made_with: Mapping[str, str] = MappingProxyType({}),
    partitions: tuple[str, ...] = (),
) -> bool:
    """Write `frame` in one commit that carries a transaction identity.

    Args:
        frame: The rows.
        path: The table; made where there is none.
        mode: `Append` or `Overwrite`.
        options: Delta's, such as `replaceWhere` and `userMetadata`.
        txn: The identity.
        made_with: The properties of the table, where this write makes it.
        partitions: The columns that it is partitioned by, in the same case.

    Returns:
        Whether it was written; not where the table has this transaction or a later one of its app.

    Raises:
        Py4JJavaError: Delta's `ConcurrentTransactionException` when another writer commits under
            the same app meanwhile.
        PySparkException: What Spark and Delta raise of a write.
    """
    spark = frame.sparkSession
    jvm, session = spark._jvm, spark._jsparkSession
    assert jvm is not None
    delta = jvm.org.apache.spark.sql.delta
    log = delta.DeltaLog.forTable(session, path)
    transaction = log.startTransaction()
    # What stands from here on is either seen now, or in the way of the commit.
    if _is_done(path, txn):
        return False
    transaction.readTxn().addOne(txn.app)
    given = {**options, "txnAppId": txn.app, "txnVersion": str(txn.version)}
    settings = delta.DeltaOptions(_map(jvm, given), session.sessionState().conf())
    how = getattr(jvm.org.apache.spark.sql.SaveMode, mode)
    there = transaction.readVersion() >= 0
    properties, none = _map(jvm, {} if there else made_with), jvm.scala.Option.empty()
    columns = jvm.PythonUtils.toSeq([] if there else list(partitions))
    write = delta.commands.WriteIntoDelta(
        log, how, settings, columns, properties, frame._jdf, none, none, False
    )
    data = write.writeAndReturnCommitData(transaction, session, none, False)
    operation = _operation(jvm, how, columns, settings)
    with committing(path):
        transaction.commitIfNeeded(data.actions(), operation, data.stringTags())
    return True


def _is_done(path: str, txn: Txn) -> bool:
    if not is_table(path):
        return False
    last = deltalake.DeltaTable(path).transaction_version(txn.app)
    return last is not None and last >= txn.version


def _operation(
    jvm: JVMView, how: JavaObject, columns: JavaObject, settings: JavaObject
) -> JavaObject:
    write = getattr(jvm.org.apache.spark.sql.delta, "DeltaOperations$Write")
    given = jvm.scala.Option.apply(columns), settings.replaceWhere(), settings.userMetadata()
    return write(how, *given, *[jvm.scala.Option.empty()] * 5)


def _map(jvm: JVMView, values: Mapping[str, str]) -> JavaObject:
    return jvm.PythonUtils.toScalaMap(dict(values))
