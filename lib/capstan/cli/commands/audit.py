"""`audit`: of what a run published, or of any table that should hold a stream's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from capstan.cli.context import Shell, shell_of
from capstan.cli.options import AsOf, Since, Until, Workers, names
from capstan.cli.output import cell
from capstan.cli.progress import Work
from capstan.cli.tables import finding_table
from capstan.errors import InvalidRequestError
from capstan.reporting.summaries import audit_text, checks_text

if TYPE_CHECKING:
    from capstan.audit import Audit
    from capstan.core.times import TimeType


def audit(
    context: typer.Context,
    what: Annotated[
        str, typer.Argument(help="A run; or with --against a stream.", metavar="RUN|STREAM")
    ],
    against: Annotated[
        str | None,
        typer.Option(help="The Delta table to hold against the stream.", metavar="TABLE"),
    ] = None,
    worker_column: Annotated[
        str | None, typer.Option(help="Its column of the worker: number or label.")
    ] = None,
    time_column: Annotated[str | None, typer.Option(help="Its column of the time.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="The columns to compare; all by default.", metavar="LIST")
    ] = None,
    version: Annotated[
        int | None, typer.Option(help="The table's version; the newest by default.")
    ] = None,
    as_of: AsOf = None,
    workers: Workers = None,
    since: Since = None,
    until: Until = None,
) -> int:
    """Check that a table holds exactly what the stream said; ends with 1 where it does not.

    Of a run: the target as it is now. With --against: any table that holds a stream's rows.
    """
    shell = shell_of(context)
    if against is None:
        given = (worker_column, time_column, columns, as_of, workers, since, until)
        if any(each is not None for each in given):
            raise InvalidRequestError(
                "CAP-AUDIT-RUN",
                "the audit of a run takes no option but --version: the run says the rest",
                "to audit any table: capstan audit STREAM --against TABLE",
            )
        return _audit_run(shell, what, version)
    from capstan.replay.standalone_audit import TableAudit, audit_against, plan_against

    asked = TableAudit(
        stream=what,
        table=against,
        workers=names(workers, "--workers"),
        since=since,
        until=until,
        as_of=as_of,
        worker_column=worker_column,
        time_column=time_column,
        columns=names(columns, "--columns"),
        version=version,
    )
    planned = plan_against(shell.lake, shell.declarations(), asked)
    with shell.spark(Work(f"audit {against}")) as spark:
        found = audit_against(spark, shell.lake, planned, asked)
    about: dict[str, object] = {
        "stream": what,
        "cut": planned.cut.commit,
        "target": against,
        "version": version,
    }
    return _audited(shell, about, found, planned.tape.time_type)


def _audit_run(shell: Shell, run: str, version: int | None) -> int:
    from capstan.replay.standalone_audit import audit_run, require_auditable

    history = require_auditable(shell.lake, run, version)
    with shell.spark(Work(f"audit {run}")) as spark:
        plan, found = audit_run(spark, shell.lake, shell.declarations(), history, version)
    about: dict[str, object] = {
        "run": run,
        "stream": plan.tape.name,
        "cut": plan.cut.commit,
        "target": plan.request.into,
        "version": version,
        "target_version": (history.certificate or {}).get("target_version"),
    }
    return _audited(shell, about, found, plan.tape.time_type)


def _audited(shell: Shell, about: dict[str, object], found: Audit, time_type: TimeType) -> int:
    value = found.to_json(time_type)
    lines: list[RenderableType] = [f"{about['target']}: audit {audit_text(value, cell)}"]
    if found.checks:
        lines.append(f"checks: {checks_text(value, cell)}")
    if found.differing:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in found.totals.items() if count)
        lines.append(f"rows: {counts}; the first at {found.first}")
    if found.differing and found.near.unsure:
        named = ", ".join(name or "which rows there are" for name in found.near.unsure)
        lines.append(f"may differ though nothing has changed, by the order of rows: {named}")
    if not found.passed:
        lines.append(finding_table(value))
    shell.output.answer({**about, **value}, *lines)
    return 0 if found.passed else 1
