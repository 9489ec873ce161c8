"""`listen` and `serve`: receive and send recordings over sockets."""

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

    from capstan.interop.transfer.listen import ListenResult
    from capstan.interop.transfer.serve import ServeResult
    from capstan.storage.tape.tape import Tape

_LOOPBACK = "127.0.0.1"


def listen(
    context: typer.Context,
    stream: Stream,
    port: Annotated[
        int,
        typer.Option(min=1, max=65_535, help="The port of worker 0; worker i uses PORT + i.",
                     metavar="PORT"),
    ],
    workers: Annotated[int, typer.Option(help="The number of sending workers.", metavar="N")],
    form: FormatOption = "timely",
    time_type: TimeTypeOption = None,
    record_type: RecordTypeOption = None,
    minimum: Annotated[
        str | None, typer.Option(help="The minimum time as JSON; default: 0.", metavar="JSON")
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on.", metavar="ADDRESS")
    ] = _LOOPBACK,
    every: Annotated[
        float, typer.Option(help="Seconds between commits.", metavar="SECONDS")
    ] = 5.0,
    idle: Annotated[
        float | None,
        typer.Option(help="Stop after this many seconds of silence.", metavar="SECONDS"),
    ] = None,
) -> int:  # fmt: skip
    """Record what timely workers send over sockets: worker i connects to port PORT + i.

    Stops when all workers have closed their recordings, or on Ctrl-C; everything received by
    then is on tape.
    """
    from capstan.interop.transfer.listen import ListenRequest
    from capstan.interop.transfer.listen import listen as record
    from capstan.interop.transfer.recording_format import Form
    from capstan.storage.tape.tape import open_tape

    shell = shell_of(context)
    start = None if minimum is None else minimum_of(minimum)
    encoding = Form.from_options(
        format_of(form), time_type=time_type, record_type=record_type, minimum=start
    )
    _ = encoding.time_type
    request = ListenRequest(stream, workers, encoding, port, host, every, idle)
    with shell.spark(Work(f"listen for {stream}")) as spark:
        result = record(spark, shell.lake, request)
    tape = open_tape(shell.lake, stream)
    shell.output.answer(result.to_json(tape), *_listened(result, tape))
    result.require_sound()
    return 0


def serve(
    context: typer.Context,
    stream: Stream,
    to: Annotated[
        str, typer.Option("--to", help="The address of the first peer.", metavar="HOST:PORT")
    ],
    peers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Distribute the workers over N peers; default: one peer per worker.",
            metavar="N",
        ),
    ] = None,
    form: FormatOption = "timely",
    workers: Workers = None,
    as_of: AsOf = None,
    time_type: TimeTypeOption = None,
    record_type: RecordTypeOption = None,
) -> int:  # fmt: skip
    """Send a stream's recordings to timely workers: peer i listens on PORT + i."""
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
    encoding = form_of(tape, format_of(form), time_type, record_type)
    with shell.spark(Work(f"serve {stream}")) as spark:
        result = send(
            spark, shell.lake, tape, encoding, address, workers=chosen, peers=peers, cut=cut
        )
    shell.output.answer(result.to_json(), *_served(result))
    return 0


def _listened(result: ListenResult, tape: Tape) -> list[Table | str]:
    rows = []
    for worker in result.workers:
        frontier = ", ".join(str(tape.time_type.render(time)) for time in worker.frontier)
        rows.append((worker.worker, worker.events, worker.records, frontier or "closed"))
    received = f"{result.events:,} events with {result.records:,} records received"
    lines: list[Table | str] = [
        table("", ("worker", "events", "records", "frontier"), rows),
        f"{result.stream} at commit {result.commit}: {received}",
    ]
    return [*lines, *result.faults]


def _served(result: ServeResult) -> list[Table | str]:
    rows = [
        (peer.to, ", ".join(map(str, peer.workers)) or "none", peer.events) for peer in result.peers
    ]
    head = f"{result.stream} at commit {result.cut} was sent"
    return [table("", ("peer", "workers", "events"), rows), head]
