"""`maintain` and `retire`: compaction and clean-up of tapes, deletion of old records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from capstan.cli.context import shell_of
from capstan.cli.options import Stream
from capstan.cli.output import table
from capstan.cli.progress import Work
from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    from rich.table import Table

    from capstan.maintenance.retire import RetirementPlan


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
    from capstan.storage.tape.tape import require_streams

    shell = shell_of(context)
    if (stream is None) == (not every):
        raise InvalidRequestError("CAP-USAGE", "give a stream, or --all", "see `capstan streams`")
    shell.lake.require()
    streams = shell.lake.streams() if stream is None else [stream]
    require_streams(shell.lake, streams)
    with shell.spark(Work(f"maintain {stream or 'all streams'}")) as spark:
        from capstan.maintenance.run import maintain as carry_out

        result = carry_out(spark, shell.lake, streams)
    value, refusal = result.to_json(), result.refusal
    failure = {} if refusal is None else refusal.summary()
    shell.output.answer({**value, **failure}, _tables(value), _done(value))
    if refusal is None:
        return 0
    if not shell.output.as_json:
        for error in result.failed or [refusal]:
            shell.output.error(error.to_json())
    return refusal.exit_code


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
        shell.output.answer(
            {**planned.to_json(), "retired": planned.stands}, _summary(planned, planned=plan)
        )
        return 0
    with shell.spark(Work(f"retire {stream}")) as spark:
        from capstan.maintenance.retire import retire as carry_out

        done = carry_out(spark, shell.lake, stream, before)
    shell.output.answer({**done.to_json(), "retired": True}, _summary(done, planned=False))
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


def _tables(value: dict[str, object]) -> Table:
    tables = value["tables"]
    assert isinstance(tables, list)
    return table(
        "",
        ("stream", "table", "files before", "files", "bytes", "rewritten", "vacuumed", "damaged"),
        [
            (
                entry["stream"] or "",
                entry["table"],
                entry["files_before"],
                entry["files"],
                entry["bytes"],
                entry["rewritten"],
                entry["vacuumed"],
                [f"batches {first} to {last}" for first, last in entry["damaged"]],
            )
            for entry in tables
        ],
    )


def _done(value: dict[str, object]) -> str:
    staging, snapshots, busy = value["staging"], value["snapshots"], value["busy"]
    violations = value["violations"]
    assert isinstance(staging, list)
    assert isinstance(snapshots, list)
    assert isinstance(busy, list)
    assert isinstance(violations, list)
    parts = [f"{value['rewritten']:,} bytes rewritten", f"{value['vacuumed']:,} files deleted"]
    parts += [f"{len(staging)} staged outputs deleted"] if staging else []
    parts += [f"{len(snapshots)} snapshots deleted"] if snapshots else []
    parts += [f"skipped: {error['message']}" for error in busy]
    parts += [error["message"] for error in violations]
    return "; ".join(parts)
