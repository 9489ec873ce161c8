"""Playing: the records of the chosen workers and times, as the rows that the target gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from capstan.audit import played_records
from capstan.errors import BadRequest
from capstan.replay.layout import quoted
from capstan.replay.plan import Plan
from capstan.tape.tape import Cut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PROTOCOL = ("_worker", "_time", "_label")


def played_rows(spark: SparkSession, plan: Plan) -> DataFrame:
    """The rows that go into the target.

    Without `--peers` Spark divides the scan as it likes: the multiset that comes out does not
    depend on it. With it, the i-th chosen worker is dealt to replay worker `i % peers`, one task
    each, as timely deals captured streams to workers.
    """
    records = played_records(spark, plan.tape, plan.cut, plan.workers, plan.region)
    if plan.request.peers is not None:
        places = [
            F.lit(x)
            for index, worker in enumerate(plan.workers)
            for x in (worker, index % plan.request.peers)
        ]
        seat = F.element_at(F.create_map(*places), F.col("_worker"))
        records = records.repartitionById(plan.request.peers, seat)
    return shaped(spark, plan, records)


def shaped(spark: SparkSession, plan: Plan, records: DataFrame) -> DataFrame:
    """Played records as the target's rows: copied, or put through the transform."""
    if plan.transform is not None:
        return _transformed(spark, plan, records)
    payload = [name for name in records.columns if name not in _PROTOCOL]
    wanted = plan.declared.columns if plan.declared and plan.declared.columns else payload
    missing = [name for name in wanted if name not in payload]
    if missing:
        raise BadRequest(
            "CAP-TARGET-COLUMNS",
            f"target {plan.request.into} is declared with column {missing[0]}, which stream "
            f"{plan.tape.name} does not have",
            f"its columns: {', '.join(payload)}",
        )
    protocol = []
    for name, own in ((plan.layout.worker, "_worker"), (plan.layout.time, "_time")):
        if name is not None and name not in wanted:
            protocol.append(F.col(own).alias(name))
    return records.select(*protocol, *(F.col(quoted(name)) for name in wanted))


def _transformed(spark: SparkSession, plan: Plan, records: DataFrame) -> DataFrame:
    transform = plan.transform
    assert transform is not None
    function = transform.resolve()
    try:
        if function is not None:
            result = function(records)
        else:
            records.createOrReplaceTempView("records")
            try:
                result = spark.sql(transform.sql or "")
            finally:
                spark.catalog.dropTempView("records")
    except AnalysisException as error:
        raise BadRequest(
            "CAP-TRANSFORM",
            f"transform {transform.name} does not fit stream {plan.tape.name}: "
            f"{str(error).splitlines()[0]}",
            "see the stream's columns with `capstan show`",
        ) from error
    frame: DataFrame = result  # type: ignore[assignment]
    for name in (transform.time, transform.worker, *plan.keys):
        if name is not None and name not in frame.columns:
            raise BadRequest(
                "CAP-TRANSFORM",
                f"transform {transform.name} declares column {name}, which it does not give",
                f"it gives {', '.join(frame.columns)}",
            )
    return frame


def payload_schema(spark: SparkSession, plan: Plan) -> StructType:
    """The stream's own columns."""
    frame = played_records(spark, plan.tape, Cut(-1, -1), plan.workers, plan.region)
    return StructType([f for f in frame.schema.fields if f.name not in _PROTOCOL])
