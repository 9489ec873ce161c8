"""Playing: the records of the chosen workers and times, as the rows that the target gets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from capstan import error_translation
from capstan.audit import played_records
from capstan.capture.column_names import problems_of
from capstan.core.config.sql_rules import moment_problem
from capstan.errors import InvalidRequestError
from capstan.pipeline.spark.runner import require_fit, sink_columns
from capstan.pipeline.spark.stage_frames import CarriedState, PipelineRun
from capstan.pipeline.spark.tape_input import play_tape
from capstan.replay.output.state_resume import carried
from capstan.replay.planning.computation import PipelineComputation
from capstan.replay.planning.plan import Plan
from capstan.spark.clock_literals import moment_in
from capstan.storage.keyed_lookup import with_values
from capstan.storage.tape.fingerprint import row_hashes
from capstan.storage.tape.region_sql import quoted
from capstan.storage.tape.tape import Cut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark's classes of errors of data, and those that a query raises itself.
_OF_DATA = re.compile(r"SQLSTATE: (?:22|P0)")
_PROTOCOL = ("_worker", "_time", "_label")
_SEAT = "_seat"


@dataclass(frozen=True, slots=True)
class Output:
    """What a replay puts out.

    Attributes:
        rows: The rows that go into the target.
        played: Of a pipeline what else came of its run; its rows can be read any number of times.
    """

    rows: DataFrame
    played: PipelineRun | None = None

    @property
    def state(self) -> DataFrame | None:
        """What a followed pipeline hands on to its next run."""
        return None if self.played is None else self.played.state

    @property
    def counted(self) -> dict[str, object] | None:
        """Of a pipeline, what did not go into the target: trimmed, and put aside by node."""
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
    """A frame with the columns of the rows that go into the target; a pipeline does not run yet."""
    if plan.piped is None:
        return played_rows(spark, plan)
    piped = plan.piped
    return spark.createDataFrame([], sink_columns(piped.pipeline, piped.sink.node, piped.reach))


@contextmanager
def playing(
    spark: SparkSession, plan: Plan, expected: DataFrame | None = None, *, again: bool = False
) -> Iterator[Output]:
    """Play: what a replay puts out, for as long as the `with` block lasts.

    Args:
        spark: The session.
        plan: The replay.
        expected: What `expected_rows` has given for it already.
        again: Whether this is the second computation of an audit: a pipeline then runs on another
            number of replay workers.

    Raises:
        OperatorFailed: An operator of a pipeline raised; node, time and worker are in its fields.
        StateError: What a followed pipeline goes on from is not all there, or does not fit.
        InvalidRequestError: `CAP-TARGET-COLUMNS`, `CAP-TRANSFORM`, `CAP-PIPELINE` when the replay
            does not fit its target or its stream.
    """
    piped = plan.piped
    if piped is None:
        yield Output(played_rows(spark, plan) if expected is None else expected)
        return
    peers = _other(plan.peers) if again else plan.peers
    keeps = plan.request.follow is not None and not again
    with carried(spark, plan.lake, piped, peers, keeps=keeps) as handed:
        played = _run(spark, plan, piped, peers, handed)
        try:
            yield Output(played.sinks[piped.sink.node], played)
        finally:
            played.release()


def require_columns(spark: SparkSession, plan: Plan) -> None:
    """Check that the stream has the columns that a pipeline reads; nothing runs.

    Raises:
        InvalidRequestError: `CAP-PIPELINE`, naming the column.
    """
    if plan.piped is not None:
        workers, piped = plan.workers, plan.piped
        records = played_records(spark, plan.tape, plan.cut, workers, plan.reads, place=True)
        require_fit(records, piped.pipeline, piped.sink.node, piped.reach)


def _run(
    spark: SparkSession, plan: Plan, piped: PipelineComputation, peers: int, handed: CarriedState
) -> PipelineRun:
    return play_tape(
        spark,
        plan.tape,
        plan.cut,
        plan.workers,
        piped.pipeline,
        piped.reach,
        piped.frontier,
        sinks=[piped.sink.node],
        peers=peers,
        after=None if piped.resumed is None else piped.resumed.frontier,
        carried=handed,
    )


def _other(peers: int) -> int:
    return peers - 1 if peers > 1 else 2


def played_rows(spark: SparkSession, plan: Plan) -> DataFrame:
    """The rows that go into the target, of a replay that has no pipeline.

    Without `--peers` Spark divides the scan as it likes: the multiset that comes out does not
    depend on it. With it, the i-th chosen worker is dealt to replay worker `i % peers`, one task
    each, as timely deals captured streams to workers.
    """
    records = played_records(spark, plan.tape, plan.cut, plan.workers, plan.region)
    if plan.request.peers is not None:
        places = {worker: n % plan.request.peers for n, worker in enumerate(plan.workers)}
        seated = with_values(records, _SEAT, F.col("_worker"), places)
        records = seated.repartitionById(plan.request.peers, F.col(_SEAT)).drop(_SEAT)
    return shaped(spark, plan, records)


def shaped(spark: SparkSession, plan: Plan, records: DataFrame) -> DataFrame:
    """Played records as the target's rows: copied, or put through the transform."""
    if plan.transform is not None:
        return _transformed(spark, plan, records)
    payload = [name for name in records.columns if name not in _PROTOCOL]
    wanted = plan.declared.columns if plan.declared and plan.declared.columns else payload
    missing = [name for name in wanted if name not in payload]
    if missing:
        raise InvalidRequestError(
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
        raise InvalidRequestError(
            "CAP-TRANSFORM",
            f"transform {transform.name} does not fit stream {plan.tape.name}: "
            f"{str(error).splitlines()[0]}",
            "see the stream's columns with `capstan show`",
        ) from error
    frame: DataFrame = result  # type: ignore[assignment]
    moment = moment_in(transform.sql or "", frame)
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
                f"transform {transform.name} declares column {name}, which it does not give",
                f"it gives {', '.join(frame.columns)}",
            )
    for name, problem in problems_of(frame.schema):
        raise InvalidRequestError(
            "CAP-TRANSFORM",
            f"transform {transform.name} gives a column {name!r}: {problem}",
            "give it another name in the transform, by AS",
        )
    row_hashes(frame.schema.fields)  # A type that cannot be compared is refused by name.
    return frame


def failed_transform(plan: Plan, error: Exception) -> InvalidRequestError | None:
    """The error for a transform that fails for what is in a record; None for any other error."""
    text = str(error)
    if plan.transform is None or not _OF_DATA.search(text):
        return None
    return InvalidRequestError(
        "CAP-TRANSFORM",
        f"transform {plan.transform.name} fails for a record of stream {plan.tape.name}: "
        f"{error_translation.root_message(error)}",
        "have it try what may fail (try_divide, try_cast), or leave such records out by WHERE",
    )


def payload_schema(spark: SparkSession, plan: Plan) -> StructType:
    """The stream's own columns."""
    frame = played_records(spark, plan.tape, Cut(-1, -1), plan.workers, plan.region)
    return StructType([f for f in frame.schema.fields if f.name not in _PROTOCOL])
