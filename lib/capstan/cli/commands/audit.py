"""`audit`: compares a run's target, or any table with a stream's rows, with the tape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from capstan.cli.context import Shell, shell_of
from capstan.cli.options import AsOf, Since, Until, Workers, names
from capstan.cli.progress import Work
from capstan.cli.tables import finding_table
from capstan.core.config import check_target
from capstan.errors import InvalidRequestError
from capstan.reporting.formatting import cell_text
from capstan.reporting.summaries import audit_text, checks_text

if TYPE_CHECKING:
    from capstan.replay.standalone_audit import AuditReport


def audit(
    context: typer.Context,
    subject: Annotated[
        str, typer.Argument(help="A run; with --against, a stream.", metavar="RUN|STREAM")
    ],
    against: Annotated[
        str | None,
        typer.Option(help="The Delta table to compare with the stream.", metavar="TABLE"),
    ] = None,
    worker_column: Annotated[
        str | None, typer.Option(help="The table's worker column: number or label.")
    ] = None,
    time_column: Annotated[str | None, typer.Option(help="The table's time column.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="The columns to compare; default: all.", metavar="LIST")
    ] = None,
    version: Annotated[
        int | None, typer.Option(help="The table's version; default: the newest.")
    ] = None,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Compare all of a pipeline: rows with the engine's, records with the index.",
        ),
    ] = False,
    as_of: AsOf = None,
    workers: Workers = None,
    since: Since = None,
    until: Until = None,
) -> int:
    """Check that a table has exactly the rows it should; exits with 1 if it does not.

    For a run, check its target as it is now. With --against, check any table with a stream's rows.
    """
    shell = shell_of(context)
    if against is not None and deep:
        raise InvalidRequestError(
            "CAP-AUDIT-RUN",
            "--deep is of audits of runs: a copy has no operators",
            "leave it out, or name a run instead of --against",
        )
    if against is not None:
        fields = {
            "workers": names(workers, "--workers"),
            "since": since,
            "until": until,
            "as_of": as_of,
            "worker_column": worker_column,
            "time_column": time_column,
            "columns": names(columns, "--columns"),
            "version": version,
        }
        check_target(against)
        with shell.working(Work(f"audit {against}")) as work:
            report = work.audit_table(subject, against, **fields)
        return _audited(shell, report)
    given = (worker_column, time_column, columns, as_of, workers, since, until)
    if any(value is not None for value in given):
        raise InvalidRequestError(
            "CAP-AUDIT-RUN",
            "the audit of a run takes only --version and --deep: the run determines the rest",
            "to audit any table: capstan audit STREAM --against TABLE",
        )
    with shell.working(Work(f"audit {subject}")) as work:
        report = work.audit(subject, version=version, deep=deep)
    return _audited(shell, report)


def _audited(shell: Shell, report: AuditReport) -> int:
    value, result = report.to_json(), report.audit
    if report.run is not None:
        del value["target_path"]  # The keys of this command do not change; jobs have it.
    lines: list[RenderableType] = [f"{value['target']}: audit {audit_text(value, cell_text)}"]
    if result.checks:
        lines.append(f"checks: {checks_text(value, cell_text)}")
    if result.differing:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in result.totals.items() if count)
        lines.append(f"rows: {counts}; the first at {result.first}")
    if result.differing and result.near.unsure:
        columns = ", ".join(name or "the set of rows" for name in result.near.unsure)
        lines.append(f"may differ only because of the order of rows: {columns}")
    if not result.passed:
        lines.append(finding_table(value))
    shell.output.result(value, *lines)
    return 0 if result.passed else 1
