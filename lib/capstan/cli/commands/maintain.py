"""`maintain`, `retire` and `staging`: clean-up of tapes, of old records and staged output."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from capstan.cli.context import shell_of
from capstan.cli.options import Stream
from capstan.cli.output import row_table
from capstan.cli.progress import Work
from capstan.core.config import format_duration, parse_duration
from capstan.core.json_object import Json
from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    from rich.table import Table

    from capstan.maintenance.retire import RetirementPlan
    from capstan.replay.execution.staging import Staged


def maintain(
    context: typer.Context,
    stream: Annotated[
        str | None, typer.Argument(help="The stream's name.", metavar="STREAM")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Maintain the tapes of all streams of the lake.")
    ] = False,
) -> int:
    """Compact and clean up a stream's tape and the tables that all streams share.

    Small files of complete times are merged by worker and time; no row changes. Recordings are
    verified from where the last verification stopped. Repeating the command changes nothing.
    """
    shell = shell_of(context)
    if (stream is None) == (not every):
        raise InvalidRequestError("CAP-USAGE", "give a stream, or --all", "see `capstan streams`")
    with shell.working(Work(f"maintain {stream or 'all streams'}")) as work:
        result = work.maintain(*([] if stream is None else [stream]))
    value = result.to_json()
    shown = _tables(value), _done(value)
    return shell.output.checked(value, result.refusal, *shown, errors=result.failed)


def retire(
    context: typer.Context,
    stream: Stream,
    before: Annotated[
        str,
        typer.Option(
            help="The first time whose records are kept, such as 2013-03-01, 17 or epoch=3.",
            metavar="TIME",
        ),
    ],
    plan: Annotated[
        bool, typer.Option("--plan", help="Only report what would be deleted.")
    ] = False,
) -> int:
    """Delete a stream's records before a time; the index keeps their counts and hashes.

    Replays that need deleted records are refused from then on. This cannot be undone.
    """
    from capstan.maintenance.retire import plan_retire

    shell = shell_of(context)
    planned = plan_retire(shell.lake, stream, before)
    if plan or planned.stands:
        shell.output.result(
            {**planned.to_json(), "retired": planned.stands}, _summary(planned, planned=plan)
        )
        return 0
    with shell.spark(Work(f"retire {stream}")) as spark:
        from capstan.maintenance.retire import retire as carry_out

        done = carry_out(spark, shell.lake, stream, before)
    shell.output.result({**done.to_json(), "retired": True}, _summary(done, planned=False))
    return 0


def _summary(plan: RetirementPlan, *, planned: bool) -> str:
    if plan.stands:
        return f"{plan.tape.name}: no records before that time; nothing changed"
    verb = "would be deleted" if planned else "deleted"
    files = plan.files
    return (
        f"{plan.tape.name}: {plan.records:,} records {verb}: {len(files.whole):,} whole files, "
        f"{files.bytes:,} bytes, and parts of {len(files.partly):,} more, "
        f"{files.partly_bytes:,} bytes"
    )


def _tables(value: Json) -> Table:
    names = ("stream", "table", "files before", "files", "bytes", "rewritten", "vacuumed")
    columns = {name: name.replace(" ", "_") for name in names}
    return row_table("", {**columns, "damaged": _damaged}, value["tables"])


def _damaged(entry: Json) -> list[str]:
    return [f"batches {first} to {last}" for first, last in entry["damaged"]]


def _done(value: Json) -> str:
    deleted = {"staging": "staged outputs", "snapshots": "snapshots", "jobs": "results of jobs"}
    parts = [f"{value['rewritten']:,} bytes rewritten", f"{value['vacuumed']:,} files deleted"]
    parts += [f"{len(value[key])} {what} deleted" for key, what in deleted.items() if value[key]]
    parts += [f"skipped: {error['message']}" for error in value["busy"]]
    parts += [error["message"] for error in value["violations"]]
    return "; ".join(parts)


def staging(
    context: typer.Context,
    clean: Annotated[
        bool, typer.Option("--clean", help="Delete expired output; without it, only list.")
    ] = False,
    keep: Annotated[
        str,
        typer.Option(
            help="How long to keep output of rejected, failed and killed runs.", metavar="LENGTH"
        ),
    ] = "30 days",
) -> int:
    """List staged output that was not published; --clean deletes what has expired.

    Output that waits to be published is never deleted.
    """
    from capstan.replay.execution.staging import clear_staged, list_staged

    shell = shell_of(context)
    shell.lake.require()
    kept, now = _length(keep), datetime.now(UTC)
    outputs = list_staged(shell.lake, now)
    over = [output for output in outputs if output.is_over(now, kept)]
    cleared = clear_staged(shell.lake, over, now, kept) if clean else []
    rows = [_staged(output, now, kept) for output in outputs]
    size = sum(output.bytes for output in over)
    done = "deleted" if clean else "would be deleted by --clean"
    shell.output.result(
        {"keep": format_duration(kept), "staged": rows, "over": len(over), "cleared": cleared},
        row_table("", _STAGED, rows),
        f"{len(over)} of {len(outputs)}, {size:,} bytes, {done}",
    )
    return 0


_STAGED = {
    "staged": "name", "its run": "why", "last step": "at", "bytes": "bytes", "expired": "over"
}  # fmt: skip


def _staged(output: Staged, now: datetime, keep: timedelta) -> dict[str, object]:
    at = None if output.at is None else f"{output.at:%Y-%m-%dT%H:%M:%SZ}"
    about = {"name": output.name, "run": output.run, "why": str(output.why), "at": at}
    return {**about, "bytes": output.bytes, "over": output.is_over(now, keep)}


def _length(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidRequestError("CAP-USAGE", f"--keep: {error}", "such as '30 days'") from None
