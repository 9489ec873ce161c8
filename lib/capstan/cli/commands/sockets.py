"""`listen` and `serve`: recordings over sockets, onto a tape and off it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from capstan.cli.commands.check import minimum_of
from capstan.cli.commands.import_export import (
    FormatOption,
    RecordTypeOption,
    TimeTypeOption,
    format_of,
)
from capstan.cli.context import shell_of
from capstan.cli.options import AsOf, Stream, Workers, names
from capstan.cli.output import table
from capstan.cli.progress import Work

if TYPE_CHECKING:
    from rich.table import Table

    from capstan.interop.transfer.listen import Listened
    from capstan.interop.transfer.serve import Served
    from capstan.storage.tape.tape import Tape

_LOOPBACK = "127.0.0.1"


def listen(
    context: typer.Context,
    stream: Stream,
    port: Annotated[
        int,
        typer.Option(min=1, max=65_535, help="The port of worker 0; the others follow.",
                     metavar="PORT"),
    ],
    workers: Annotated[int, typer.Option(help="How many workers send.", metavar="N")],
    form: FormatOption = "timely",
    time_type: TimeTypeOption = None,
    record_type: RecordTypeOption = None,
    minimum: Annotated[
        str | None, typer.Option(help="The minimum time as JSON; 0 by default.", metavar="JSON")
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on.", metavar="ADDRESS")
    ] = _LOOPBACK,
    every: Annotated[
        float, typer.Option(help="Seconds from commit to commit.", metavar="SECONDS")
    ] = 5.0,
    idle: Annotated[
        float | None,
        typer.Option(help="End after so many seconds of silence.", metavar="SECONDS"),
    ] = None,
) -> int:  # fmt: skip
    """Record what timely workers send over sockets: worker i connects to port PORT + i.

    Ends when all have closed their recordings, or by Ctrl-C; what was received is then on tape.
    """
    from capstan.interop.transfer.listen import ListenRequest
    from capstan.interop.transfer.listen import listen as record
    from capstan.interop.transfer.recording_format import Form
    from capstan.storage.tape.tape import open_tape

    shell = shell_of(context)
    start = None if minimum is None else minimum_of(minimum)
    written = Form.given(
        format_of(form), time_type=time_type, record_type=record_type, minimum=start
    )
    _ = written.time_type
    request = ListenRequest(stream, workers, written, port, host, every, idle)
    with shell.spark(Work(f"listen for {stream}")) as spark:
        found = record(spark, shell.lake, request)
    tape = open_tape(shell.lake, stream)
    shell.output.answer(found.to_json(tape), *_listened(found, tape))
    found.require_sound()
    return 0


def serve(
    context: typer.Context,
    stream: Stream,
    to: Annotated[
        str, typer.Option("--to", help="Where the first peer receives.", metavar="HOST:PORT")
    ],
    peers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Deal the workers to so many peers; each to its own by default.",
            metavar="N",
        ),
    ] = None,
    form: FormatOption = "timely",
    workers: Workers = None,
    as_of: AsOf = None,
    time_type: TimeTypeOption = None,
    record_type: RecordTypeOption = None,
) -> int:  # fmt: skip
    """Send the recordings of a stream to timely workers: peer i receives on the port plus i."""
    from capstan.interop.transfer.export_files import form_of
    from capstan.interop.transfer.serve import Address
    from capstan.interop.transfer.serve import serve as send
    from capstan.storage.tape.index import find_cut, resolve_workers
    from capstan.storage.tape.tape import open_tape

    shell = shell_of(context)
    address = Address.of(to)
    tape = open_tape(shell.lake, stream)
    cut = find_cut(tape, as_of)
    chosen = tuple(resolve_workers(tape, cut, names(workers, "--workers")))
    written = form_of(tape, format_of(form), time_type, record_type)
    with shell.spark(Work(f"serve {stream}")) as spark:
        found = send(
            spark, shell.lake, tape, written, address, workers=chosen, peers=peers, cut=cut
        )
    shell.output.answer(found.to_json(), *_served(found))
    return 0


def _listened(found: Listened, tape: Tape) -> list[Table | str]:
    rows = []
    for each in found.workers:
        held = ", ".join(str(tape.time_type.render(time)) for time in each.frontier)
        rows.append((each.worker, each.events, each.records, held or "closed"))
    received = f"{found.events:,} events with {found.records:,} records were received"
    lines: list[Table | str] = [
        table("", ("worker", "events", "records", "frontier"), rows),
        f"{found.stream} at commit {found.commit}: {received}",
    ]
    return [*lines, *found.faults]


def _served(found: Served) -> list[Table | str]:
    rows = [
        (to, ", ".join(map(str, workers)) or "none", events) for to, workers, events in found.peers
    ]
    head = f"{found.stream} at commit {found.cut} was sent"
    return [table("", ("peer", "workers", "events"), rows), head]
