"""`maintain` and `retire`: keeping a tape quick and bounded, and deleting what has had its time."""

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

    from capstan.maintenance.retire import Plan


def maintain(
    context: typer.Context,
    stream: Annotated[
        str | None, typer.Argument(help="The stream's name.", metavar="STREAM")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="The tapes of all streams of the lake.")
    ] = False,
) -> int:
    """Compact and clean up a stream's tape, and what all streams of the lake share.

    Small files of times that are complete become larger ones, by worker and time; no row changes.
    Recordings are verified from where that was last done. The same again changes nothing.
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

        found = carry_out(spark, shell.lake, streams)
    value, refusal = found.to_json(), found.refusal
    told = {} if refusal is None else refusal.summary()
    shell.output.answer({**value, **told}, _tables(value), _done(value))
    if refusal is None:
        return 0
    if not shell.output.to_json:
        for each in found.failed or [refusal]:
            shell.output.error(each.to_json())
    return refusal.exit_code


def retire(
    context: typer.Context,
    stream: Stream,
    before: Annotated[
        str,
        typer.Option(
            help="The first time whose records stay, such as 2013-03-01, 17 or epoch=3.",
            metavar="TIME",
        ),
    ],
    plan: Annotated[
        bool, typer.Option("--plan", help="Only tell what would go; nothing is changed.")
    ] = False,
) -> int:
    """Delete a stream's records before a time; what was captured then stays in the index.

    A replay that needs them is refused from then on. There is no way back.
    """
    from capstan.maintenance.retire import plan_retire

    shell = shell_of(context)
    planned = plan_retire(shell.lake, stream, before)
    if plan or planned.stands:
        shell.output.answer(
            {**planned.to_json(), "retired": planned.stands}, _told(planned, planned=plan)
        )
        return 0
    with shell.spark(Work(f"retire {stream}")) as spark:
        from capstan.maintenance.retire import retire as carry_out

        done = carry_out(spark, shell.lake, stream, before)
    shell.output.answer({**done.to_json(), "retired": True}, _told(done, planned=False))
    return 0


def _told(plan: Plan, *, planned: bool) -> str:
    if plan.stands:
        return f"{plan.tape.name}: no records are there before that time; nothing is changed"
    verb = "would go" if planned else "are retired"
    return (
        f"{plan.tape.name}: {plan.records:,} records {verb}: {len(plan.files):,} files as a whole, "
        f"{plan.bytes:,} bytes, and part of {len(plan.partly):,} more, {plan.partly_bytes:,} bytes"
    )


def _tables(value: dict[str, object]) -> Table:
    tables = value["tables"]
    assert isinstance(tables, list)
    return table(
        "",
        ("stream", "table", "files before", "files", "bytes", "rewritten", "vacuumed", "damaged"),
        [
            (
                each["stream"] or "",
                each["table"],
                each["files_before"],
                each["files"],
                each["bytes"],
                each["rewritten"],
                each["vacuumed"],
                [f"batches {first} to {last}" for first, last in each["damaged"]],
            )
            for each in tables
        ],
    )


def _done(value: dict[str, object]) -> str:
    staging, snapshots, busy = value["staging"], value["snapshots"], value["busy"]
    violations = value["violations"]
    assert isinstance(staging, list)
    assert isinstance(snapshots, list)
    assert isinstance(busy, list)
    assert isinstance(violations, list)
    parts = [f"{value['rewritten']:,} bytes written anew", f"{value['vacuumed']:,} files deleted"]
    parts += [f"{len(staging)} staged outputs cleared away"] if staging else []
    parts += [f"{len(snapshots)} snapshots cleared away"] if snapshots else []
    parts += [f"passed over: {each['message']}" for each in busy]
    parts += [each["message"] for each in violations]
    return "; ".join(parts)
