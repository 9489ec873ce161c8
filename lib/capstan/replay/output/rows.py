"""The output of a replay: records of the chosen workers and times as rows of the target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from capstan.audit import in_another_order, played_records
from capstan.capture.batch.worker_labels import problems_of
from capstan.core.config import Transform, source_of
from capstan.core.config.sql_rules import moment_problem
from capstan.core.sql_names import quoted
from capstan.errors import InvalidRequestError
from capstan.pipeline.spark.lookup_join import completed, require_single
from capstan.pipeline.spark.runner import play, require_fit, sink_columns
from capstan.pipeline.spark.stage_frames import PipelineRun
from capstan.pipeline.spark.task_errors import on_driver
from capstan.replay.output.state_resume import carried
from capstan.replay.planning.pipeline_computation import PipelineComputation, as_pipeline
from capstan.replay.planning.plan import Plan
from capstan.spark.clock_literals import clock_literal
from capstan.spark.own_session import dividing_otherwise
from capstan.spark.versions_api import repartition_by_number
from capstan.storage.delta import delta
from capstan.storage.keyed_lookup import with_values
from capstan.storage.tape.fingerprint import require_types

_PROTOCOL = ("_worker", "_time", "_label")
_PARTITION = "_seat"


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a replay."""

    rows: DataFrame  # The rows for the target.
    played: PipelineRun | None = None  # Its rows can be read repeatedly; None for others.
    sink: PipelineComputation | None = None  # The pipeline that was run; None for others.

    @property
    def state(self) -> DataFrame | None:
        """The state that a followed pipeline keeps for its next run."""
        return None if self.played is None else self.played.state

    @property
    def counted(self) -> dict[str, object] | None:
        """Counters of a pipeline: trimmed rows, and rows of side outputs by node."""
        if self.played is None:
            return None
        return {
            "trimmed": sum(self.played.trimmed.values()),
            "put_aside": [
                {"node": node, "output": output, "rows": rows}
                for (node, output), rows in sorted(self.played.put_aside.items())
            ],
        }


def expected_rows(spark: SparkSession, plan: Plan) -> DataFrame:
    """A frame with the columns of the target's rows; a pipeline does not run yet."""
    pipe = as_pipeline(plan.computation)
    if pipe is None:
        return played_rows(spark, plan)
    for each in pipe.lookups:
        each.require_readable()
        require_single(each.lookup, delta.load(spark, each.path, each.pin.version))
    require_fit(_inputs(spark, plan, pipe), pipe.pipeline, pipe.sink.node, pipe.reach)
    return spark.createDataFrame([], sink_columns(pipe.pipeline, pipe.sink.node, pipe.reach))


@contextmanager
def playing(
    spark: SparkSession,
    plan: Plan,
    expected: DataFrame | None = None,
    *,
    again: bool = False,
    engine: bool = True,
) -> Iterator[Output]:
    """Compute the output of a replay; it can be read inside the `with` block.

    The second computation of an audit, `again`, reads its records in another order, and a
    pipeline runs on another number of replay workers; by default all of its operators in the
    engine, which shares no rule with Spark. What Spark computes a second time of a pipeline, and
    copies, do not depend on the order of records, so they are only divided into other partitions.
    """
    pipe = as_pipeline(plan.computation)
    if pipe is None:
        plain = again and plan.computation.transform is None
        with dividing_otherwise(spark) if plain else nullcontext():
            yield Output(played_rows(spark, plan, again=again) if expected is None else expected)
        return
    engine = again and engine
    for each in pipe.lookups:
        each.require_readable()
    peers = plan.peers
    if again:
        peers = peers - 1 if peers > 1 else 2
    keeps = plan.request.follow is not None and not again
    divided = dividing_otherwise(spark) if again and not engine else nullcontext()
    with divided, carried(spark, plan.lake, pipe, peers, keeps=keeps) as state:
        played = play(
            spark,
            _inputs(spark, plan, pipe, reordered=engine),
            pipe.pipeline,
            pipe.reach,
            sinks=[pipe.sink.node],
            peers=max(1, peers),
            carried=state,
            engine=engine,
            counting=not again,
        )
        try:
            # Spark may compute it only now, and with it the operators that fail.
            with on_driver():
                rows = played.sinks[pipe.sink.node]
                # A table beside the streams has rows of all keys.
                rows = rows if pipe.drawn is None else pipe.drawn.rows(rows)
                yield Output(rows, played, pipe)
        finally:
            played.release()


def _inputs(
    spark: SparkSession, plan: Plan, pipe: PipelineComputation, *, reordered: bool = False
) -> DataFrame | dict[str, list[DataFrame]]:
    """The records that a pipeline reads: of one stream a frame, of several lists by source."""
    # Only times that are complete in all streams are read. Lookups complete the records of their
    # sources.
    frames: dict[str, list[DataFrame]] = {}
    for stream in plan.inputs:
        records = played_records(
            spark,
            stream.tape,
            stream.cut,
            stream.workers,
            plan.reads,
            place=True,
            stamp=pipe.reads_stamp,
        )
        source = source_of(stream.source)
        records = _looked_up(spark, pipe, source, records)
        if pipe.drawn is not None:
            records = pipe.drawn.records(source, records)
        frames.setdefault(source, []).append(in_another_order(records) if reordered else records)
    return frames if plan.inputs.several else frames[""][0]


def _looked_up(
    spark: SparkSession, pipe: PipelineComputation, source: str, records: DataFrame
) -> DataFrame:
    """Records with the columns of the lookups of their source; an only stream has one source."""
    for each in pipe.lookups:
        if source in ("", each.lookup.source):
            table = delta.load(spark, each.path, each.pin.version)
            records = completed(pipe.pipeline, each.lookup, records, table)
    return records


def played_rows(spark: SparkSession, plan: Plan, *, again: bool = False) -> DataFrame:
    """The rows for the target, for a copy or a transform; `again` from records in another order."""
    # Without `--peers`, Spark divides the scan freely, as the resulting multiset does not depend on
    # it. With it, replay worker `i % peers` gets the i-th chosen worker, one task each, as timely
    # distributes captured streams.
    read = plan.inputs
    reordered = again and plan.computation.transform is not None
    records = played_records(
        spark,
        read.tape,
        read.cut,
        read.workers,
        plan.region,
        place=reordered,
        stamp=plan.computation.reads_stamp,
    )
    if reordered:
        records = in_another_order(records).drop("_batch", "_pos")
    elif plan.request.peers is not None and not again:
        peers = {worker: n % plan.request.peers for n, worker in enumerate(read.workers)}
        assigned = with_values(records, _PARTITION, F.col("_worker"), peers)
        partitioned = repartition_by_number(assigned, plan.request.peers, _PARTITION)
        records = partitioned.drop(_PARTITION)
    return shaped(spark, plan, records)


def shaped(spark: SparkSession, plan: Plan, records: DataFrame) -> DataFrame:
    """Records as rows of the target: copied, or transformed."""
    if plan.computation.transform is not None:
        return _transformed(spark, plan, plan.computation.transform, records)
    payload = [name for name in records.columns if name not in _PROTOCOL]
    wanted = plan.declared.columns if plan.declared and plan.declared.columns else payload
    missing = [name for name in wanted if name not in payload]
    if missing:
        raise InvalidRequestError(
            "CAP-TARGET-COLUMNS",
            f"target {plan.request.into} is declared with column {missing[0]}, which stream "
            f"{plan.inputs.tape.name} does not have",
            f"its columns: {', '.join(payload)}",
        )
    protocol = []
    for name, column in ((plan.layout.worker, "_worker"), (plan.layout.time, "_time")):
        if name is not None and name not in wanted:
            protocol.append(F.col(column).alias(name))
    return records.select(*protocol, *(F.col(quoted(name)) for name in wanted))


def _transformed(
    spark: SparkSession, plan: Plan, transform: Transform, records: DataFrame
) -> DataFrame:
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
        raise InvalidRequestError(
            "CAP-TRANSFORM",
            f"transform {transform.name} does not fit stream {plan.inputs.tape.name}: "
            f"{str(error).splitlines()[0]}",
            "list the stream's columns with `capstan show`",
        ) from error
    frame: DataFrame = result  # type: ignore[assignment]
    moment = clock_literal(transform.sql or "", frame)
    if moment is not None:
        raise InvalidRequestError(
            "CAP-TRANSFORM",
            f"transform {transform.name} {moment_problem(moment)}",
            "write the time itself, as TIMESTAMP '2024-01-01 00:00:00'",
        )
    for name in (transform.time, transform.worker, *plan.keys):
        if name is not None and name not in frame.columns:
            raise InvalidRequestError(
                "CAP-TRANSFORM",
                f"transform {transform.name} declares column {name}, which it does not return",
                f"it returns {', '.join(frame.columns)}",
            )
    for name, problem in problems_of(frame.schema):
        raise InvalidRequestError(
            "CAP-TRANSFORM",
            f"transform {transform.name} returns a column {name!r}: {problem}",
            "rename it in the transform with AS",
        )
    require_types(frame.schema.fields)
    return frame
