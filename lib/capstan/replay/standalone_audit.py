"""Audits that stand for themselves: of a run, later; of any table that holds a stream's rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StructType

from capstan.audit import Audit, Shape, audit_copy, shape_of
from capstan.audit.table_shape import columns_error
from capstan.core.config import ProjectConfig
from capstan.core.times import Kind, TimeType
from capstan.errors import InvalidRequestError
from capstan.replay.execution import recovery
from capstan.replay.execution.job import restore
from capstan.replay.output import target_table
from capstan.replay.output.audit_findings import note_findings
from capstan.replay.planning.plan import Plan, make_plan
from capstan.replay.planning.request import Request
from capstan.replay.planning.target_layout import Layout
from capstan.storage import delta
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.retirements import missing_boxes, retired_boxes
from capstan.storage.ledger.runs import History, read_history
from capstan.storage.tape.region_sql import quoted
from capstan.storage.tape.tape import stored_payload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class TableAudit:
    """A stream, and a table that should hold its rows.

    Attributes:
        stream: The stream.
        table: A table of the lake, a declared target, or a Delta path.
        workers: Labels or numbers; None for all, and for rows of workers that are not known.
        since: First audited time, as the command line writes it; None from the start.
        until: First time no longer audited; None for all complete times.
        as_of: The cut; None for the newest.
        worker_column: The table's column of the worker, its number or its label; None for the
            declared one or `_worker`.
        time_column: The table's column of the time: a struct of coordinates, or the time itself,
            which may be finer than the stream's; None for the declared one or `_time`.
        columns: The columns to compare; None for all of the stream's that the table has.
        version: The table's version; None for the newest.
    """

    stream: str
    table: str
    workers: tuple[str, ...] | None = None
    since: str | None = None
    until: str | None = None
    as_of: int | None = None
    worker_column: str | None = None
    time_column: str | None = None
    columns: tuple[str, ...] | None = None
    version: int | None = None


def plan_against(lake: Lake, declarations: ProjectConfig, asked: TableAudit) -> Plan:
    """What of the stream the table should hold, resolved without a JVM.

    Raises:
        InvalidRequestError: As `make_plan`; `CAP-TABLE` when there is no such table, `CAP-VERSION`
            when it has no such version, `CAP-AUDIT-COLUMNS` when its columns of worker and time are
            not known.
        IncompleteError: `CAP-INCOMPLETE` when times of the range can still receive records.
    """
    request = Request(
        asked.stream,
        asked.table,
        workers=asked.workers,
        since=asked.since,
        until=asked.until,
        as_of=asked.as_of,
    )
    plan = make_plan(lake, declarations, request)
    plan.require_complete()
    if not is_table(plan.target):
        raise InvalidRequestError(
            "CAP-TABLE",
            f"there is no Delta table at {plan.target}",
            "give --against the name of a table of the lake, or a path",
            path=plan.target,
        )
    _require_version(plan.target, asked.version)
    there = delta.open_table(plan.target, asked.version).schema().to_arrow()
    layout = replace(
        plan.layout,
        worker=_column(list(there.names), asked.worker_column, plan.layout.worker, "worker"),
        time=_column(list(there.names), asked.time_column, plan.layout.time, "time"),
    )
    return replace(plan, layout=layout)


def _column(there: list[str], named: str | None, usual: str | None, what: str) -> str:
    name = named or usual or f"_{what}"
    if name in there:
        return name
    said = f"no column {name}" if named else f"no column {name} to tell the {what} by"
    raise InvalidRequestError(
        "CAP-AUDIT-COLUMNS",
        f"the table has {said}",
        f"name its column of the {what} with --{what}-column; it has: {', '.join(there)}",
        column=name,
    )


def _require_version(path: str, version: int | None) -> None:
    newest = delta.open_table(path).version()
    if version is not None and not 0 <= version <= newest:
        raise InvalidRequestError(
            "CAP-VERSION",
            f"the table at {path} has no version {version}: the newest is {newest}",
            "leave out --version to audit the newest",
            path=path,
        )


def audit_against(spark: SparkSession, lake: Lake, plan: Plan, asked: TableAudit) -> Audit:
    """Audit a table against what the stream said; what is found goes into the findings ledger.

    Where no workers were named, rows of workers that the stream does not have are `extra`; where
    no range was, rows without a time are.

    Args:
        spark: The session.
        lake: The lake.
        plan: What `plan_against` made of `asked`.
        asked: The table and its columns.

    Raises:
        InvalidRequestError: `CAP-AUDIT-COLUMNS` when a column is missing or of a type that cannot
            hold what the stream says.
    """
    rows = delta.load(spark, plan.target, asked.version)
    tape, layout, time_type = plan.tape, plan.layout, plan.tape.time_type
    found = shape_of(
        rows.schema,
        time_type,
        worker=layout.worker,
        time=layout.time,
        columns=asked.columns,
        payload=stored_payload(tape),
    )
    _require_times(rows.schema, layout, found, time_type)
    tagged = layout.tagged(_restricted(rows, plan, asked), time_type)
    times = tuple(f"`_time`.{quoted(name)}" for name in time_type.names)
    shape = Shape("_worker", times, found.columns)
    workers, region = plan.workers, plan.region
    retired = missing_boxes(tape, plan.cut, tuple(workers), region, retired_boxes(lake, tape))
    audit = audit_copy(
        spark,
        tape,
        plan.cut,
        workers,
        region,
        tagged,
        shape,
        checks=plan.checks,
        retired=retired,
    )
    note_findings(lake, plan, audit, target_version=asked.version)
    return audit


def _require_times(schema: StructType, layout: Layout, shape: Shape, time_type: TimeType) -> None:
    """Check that the time's column tells all times of the stream apart."""
    lacking = [n for n, t in zip(time_type.names, shape.times, strict=True) if t is None]
    if lacking:
        raise columns_error(f"column {layout.time} lacks the coordinate {lacking[0]}")
    days = isinstance(schema[layout.time or ""].dataType, DateType)
    if days and time_type.coordinates[0].kind is Kind.TIMESTAMP and layout.every % _DAY_US:
        raise columns_error(f"column {layout.time} has days, the stream's times are finer")


def _restricted(rows: DataFrame, plan: Plan, asked: TableAudit) -> DataFrame:
    """The table's rows of the audited workers and times."""
    layout, time_type = plan.layout, plan.tape.time_type
    region = plan.region
    times = replace(layout, worker=None).predicate(rows.schema, time_type, None, region)
    inside = F.expr(times)
    if asked.since is None and asked.until is None:
        inside = F.coalesce(inside, F.lit(True))
    rows = rows.where(inside)
    if asked.workers is None:
        return rows
    by_worker = replace(layout, time=None)
    return rows.where(by_worker.predicate(rows.schema, time_type, tuple(plan.workers), region))


def require_auditable(lake: Lake, run: str, version: int | None) -> History:
    """The history of a run that has rows to audit, without a JVM.

    Raises:
        InvalidRequestError: `CAP-LAKE`, `CAP-RUN`; `CAP-NOT-PUBLISHED` when nothing of it stands or
            waits; `CAP-VERSION`.
    """
    lake.require()
    history = read_history(lake, run)
    waits = recovery.audited(history) is not None
    if version is not None and not waits:
        _require_version(history.last.target, version)
    elif not history.published and not waits:
        raise InvalidRequestError(
            "CAP-NOT-PUBLISHED",
            f"run {run} has published nothing that stands: its last step was {history.last.step}",
            "see `capstan runs`; a version of its target can be audited with --version",
            run=run,
        )
    return history


def audit_run(
    spark: SparkSession,
    lake: Lake,
    declarations: ProjectConfig,
    history: History,
    version: int | None = None,
) -> tuple[Plan, Audit]:
    """Audit what a run has put into its target, as it is now or at a version.

    Of a run that waits to be published, what it has staged is audited. What is found goes into the
    findings ledger.

    Raises:
        InvalidRequestError: `CAP-CODE` when its transform has changed since.
    """
    job = restore(spark, lake, declarations, history)
    plan, waiting = job.plan, recovery.audited(history)
    if waiting is not None and version is None:
        staged = delta.load(spark, waiting[1])
        found = target_table.audit(spark, plan, staged)
    else:
        found = target_table.audit_target(spark, plan, version)
    note_findings(
        lake,
        plan,
        found,
        run=history.last.run,
        attempt=job.attempt,
        target_version=version,
    )
    return plan, found
