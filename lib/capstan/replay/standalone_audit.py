"""Standalone audits: of a published run, or of any table that should hold a stream's rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StructType

from capstan.audit import Audit, Shape, shape_of
from capstan.audit.table_shape import columns_error
from capstan.core.config import ProjectConfig
from capstan.core.config.request_fields import Names, TimeText
from capstan.core.times import Kind, TimeType
from capstan.errors import InvalidRequestError
from capstan.errors.translation import translating
from capstan.replay.execution.approval import waiting
from capstan.replay.execution.change_merge import audit_changes, require_newest_version
from capstan.replay.execution.job import located, restore
from capstan.replay.planning.computation import tagged_shape
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request
from capstan.replay.planning.stamp_checks import require_same_places
from capstan.replay.planning.target_layout import Layout, column_type
from capstan.replay.publish.audit_findings import record_findings
from capstan.replay.target import target_table
from capstan.replay.target.ownership import Ownership, record_whole
from capstan.spark.session import Later
from capstan.storage.delta import delta
from capstan.storage.delta.small_files import look_again
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.runs import History, read_history
from capstan.storage.tape.tape import stored_payload

_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class TableAudit:
    """The request to audit a table against a stream.

    Attributes:
        table: A table of the lake or of a catalog, a declared target, or a Delta path.
        workers: Labels or numbers; None for all, including rows of unknown workers.
        since: The first time, as the command line writes it; None from the start.
        until: The first time that is no longer audited; None for all complete times.
        as_of: The cut; None for the newest.
        worker_column: The table's column of the worker's number or label; None for the declared
            column or `_worker`.
        time_column: The table's column of the time: a struct of coordinates, or the time itself,
            which may be finer than the stream's; None for the declared column or `_time`.
        columns: The columns to compare; None for all columns of the stream that the table has.
        version: The table's version; None for the newest.
    """

    stream: str
    table: str
    workers: Names | None = None
    since: TimeText | None = None
    until: TimeText | None = None
    as_of: int | None = None
    worker_column: str | None = None
    time_column: str | None = None
    columns: Names | None = None
    version: int | None = None


@translating
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Whether a table holds exactly what a stream says.

    Attributes:
        run: The audited run; None for a table.
        target_version: The version that the run has published; None when it has not.
        stream: The stream; of several, their names joined by `+`.
        cut: The commit of the tape that it was compared with.
        cuts: Of several streams, the cuts by source; else empty.
        version: The audited version; None for the newest.
    """

    audit: Audit
    run: str | None
    target_version: int | None
    stream: str
    cut: int
    cuts: Mapping[str, int]
    target: str
    target_path: str
    version: int | None
    time_type: TimeType = field(repr=False)

    @classmethod
    def of(
        cls, plan: Plan, audit: Audit, version: int | None, history: History | None = None
    ) -> AuditReport:
        """The report on a plan's target, or on a run."""
        done = None if history is None else history.done
        return cls(
            audit=audit,
            run=None if history is None else history.last.run,
            target_version=None if done is None else done.target_version,
            stream=plan.request.stream,
            cut=plan.inputs.cut.commit,
            cuts=dict(plan.inputs.cuts) if plan.inputs.several else {},
            target=plan.request.into,
            target_path=plan.target,
            version=version,
            time_type=plan.inputs.tape.time_type,
        )

    @property
    def passed(self) -> bool:
        """Whether nothing differs, and every row passes every check."""
        return self.audit.passed

    def raise_for_differences(self) -> AuditReport:
        """Return this report if the audit has passed."""
        self.audit.require_passed(self.run or self.target)
        return self

    def to_json(self) -> dict[str, object]:
        """The audit, as the command line's `--json` prints it."""
        run = {"run": self.run, "target_version": self.target_version}
        return {
            **({} if self.run is None else run),
            "stream": self.stream,
            "cut": self.cut,
            **({"cuts": self.cuts} if self.cuts else {}),
            "target": self.target,
            "target_path": self.target_path,
            "version": self.version,
            **self.audit.to_json(self.time_type),
        }


def plan_against(
    lake: Lake, config: ProjectConfig, audit: TableAudit, session: Later | None = None
) -> Plan:
    """The plan of the rows that the table should hold, resolved as by `make_plan`."""
    request = Request(
        audit.stream,
        audit.table,
        workers=audit.workers,
        since=audit.since,
        until=audit.until,
        as_of=audit.as_of,
    )
    plan = make_plan(lake, config, request, session=session)
    plan.require_complete()
    if not is_table(plan.target):
        raise InvalidRequestError(
            "CAP-TABLE",
            f"there is no Delta table at {plan.target}",
            "give --against the name of a table of the lake, or a path",
            path=plan.target,
        )
    _require_version(plan.target, audit.version)
    columns = delta.open_table(plan.target, audit.version).schema().to_arrow().names
    layout = replace(
        plan.layout,
        worker=_column(columns, audit.worker_column, plan.layout.worker, "worker"),
        time=_column(columns, audit.time_column, plan.layout.time, "time"),
    )
    return replace(plan, layout=layout)


def _column(columns: list[str], requested: str | None, default: str | None, role: str) -> str:
    name = requested or default or f"_{role}"
    if name in columns:
        return name
    raise InvalidRequestError(
        "CAP-AUDIT-COLUMNS",
        f"the table has no column {name}" + ("" if requested else f" for the {role}"),
        f"name its column of the {role} with --{role}-column; it has: {', '.join(columns)}",
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


def audit_against(spark: SparkSession, plan: Plan, request: TableAudit) -> AuditReport:
    """Audit a table against the stream; findings go into the findings ledger.

    Without chosen workers, rows of unknown workers are `extra`; without a range, rows without a
    time are.
    """
    owner = Ownership(plan)
    own = (each.scope for each in owner.covered if owner.is_own(each))
    require_same_places(plan, own, exactly=True)
    rows = delta.load(spark, plan.target, request.version)
    layout, time_type = plan.layout, plan.inputs.tape.time_type
    columns = shape_of(
        rows.schema,
        time_type,
        worker=layout.worker,
        time=layout.time,
        columns=request.columns,
        payload=stored_payload(plan.inputs.tape),
    )
    _require_times(rows.schema, layout, columns, time_type)
    tagged = layout.tagged(_restricted(rows, plan, request), time_type)
    shape = tagged_shape(time_type, columns.columns)
    audit = target_table.audit_records(spark, plan, tagged, shape)
    record_findings(plan, audit, target_version=request.version)
    return AuditReport.of(plan, audit, request.version)


def _require_times(schema: StructType, layout: Layout, shape: Shape, time_type: TimeType) -> None:
    """Check that the time column distinguishes all times of the stream."""
    lacking = [n for n, t in zip(time_type.names, shape.times, strict=True) if t is None]
    if lacking:
        raise columns_error(f"column {layout.time} lacks the coordinate {lacking[0]}")
    days = isinstance(column_type(schema, layout.time or ""), DateType)
    if days and time_type.coordinates[0].kind is Kind.TIMESTAMP and layout.every % _DAY_US:
        raise columns_error(f"column {layout.time} holds dates, and the stream's times are finer")


def _restricted(rows: DataFrame, plan: Plan, request: TableAudit) -> DataFrame:
    """The table's rows of the audited workers and times."""
    layout, time_type = plan.layout, plan.inputs.tape.time_type
    region = plan.region
    times = replace(layout, worker=None).predicate(rows.schema, time_type, None, region)
    inside = F.expr(times)
    if request.since is None and request.until is None:
        inside = F.coalesce(inside, F.lit(True))
    rows = rows.where(inside)
    if request.workers is None:
        return rows
    by_worker, workers = replace(layout, time=None), tuple(plan.inputs.workers)
    return rows.where(by_worker.predicate(rows.schema, time_type, workers, region))


def require_auditable(lake: Lake, run: str, version: int | None) -> History:
    """The history of a run that has rows to audit, without a JVM."""
    lake.require()
    history = read_history(lake, run)
    if waiting(history) is not None:
        return history
    if version is not None:
        _require_version(history.last.target, version)
    elif not history.published:
        raise InvalidRequestError(
            "CAP-NOT-PUBLISHED",
            f"run {run} is not published: its last step was {history.last.step}",
            "see `capstan runs`; a version of its target can be audited with --version",
            run=run,
        )
    return history


def audit_run(
    spark: SparkSession,
    lake: Lake,
    config: ProjectConfig,
    history: History,
    version: int | None = None,
    *,
    deep: bool = False,
) -> AuditReport:
    """Audit the rows of a run, staged or in its target, now or at a version; findings are kept."""
    look_again()
    history = located(spark, lake, config, history.last.run)
    job = restore(spark, lake, config, history)
    plan, audited = job.plan, waiting(history)
    newest = delta.version_of(plan.target)
    if audited is not None and version is None:
        staged = delta.load(spark, lake.staging(job.at(audited.attempt).name))
        audit = target_table.audit(spark, plan, staged, deep=deep)
    elif plan.change_rule is not None:
        require_newest_version(version)
        audit = audit_changes(job)
    else:
        at = newest if version is None else version
        audit = target_table.audit_target(spark, plan, at, deep=deep)
    record_findings(plan, audit, history.last.run, job.attempt, version)
    if audit.passed and newest is not None and history.published and version in (None, newest):
        record_whole(plan, history.last.run, newest)
    return AuditReport.of(plan, audit, version, history)
