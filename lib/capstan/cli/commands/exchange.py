"""`import`, `export`, `listen` and `serve`: exchange of recordings with other systems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capstan.cli.commands.check import minimum_of
from capstan.cli.context import Shell, shell_of
from capstan.cli.options import AsOf, Stream, Workers, names
from capstan.cli.output import table
from capstan.cli.progress import IMPORT, Work
from capstan.errors import InvalidRequestError
from capstan.reporting.formatting import size

if TYPE_CHECKING:
    from rich.table import Table

    from capstan.interop.kafka.topic_layout import Topics
    from capstan.interop.transfer.export_files import ExportResult
    from capstan.interop.transfer.import_files import ImportResult
    from capstan.interop.transfer.listen import ListenResult
    from capstan.interop.transfer.recording_format import Format
    from capstan.interop.transfer.serve import ServeResult
    from capstan.storage.tape.tape import Cut, Tape

_LOOPBACK = "127.0.0.1"

FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="jsonl (transcripts) or timely (frames).", metavar="F"),
]
TimeTypeOption = Annotated[
    str | None,
    typer.Option(
        "--time-type",
        help="The type of times, such as u64; for transcripts it may stand alone, for its order.",
        metavar="TYPE",
    ),
]
RecordTypeOption = Annotated[
    str | None,
    typer.Option("--record-type", help="The type of records, such as string.", metavar="TYPE"),
]
TimelyOption = Annotated[
    str | None,
    typer.Option(
        "--timely",
        help="The release of timely whose form the recordings have: 0.31 or 0.32; default: as "
        "imported, else 0.31.",
        metavar="RELEASE",
    ),
]


def import_(
    context: typer.Context,
    stream: Stream,
    place: Annotated[
        str,
        typer.Argument(
            help="A folder with one file per worker; or kafka://HOST:PORT/PREFIX.", metavar="PLACE"
        ),
    ],
    form: FormatOption = None,
    minimum: Annotated[
        str | None,
        typer.Option(help="The minimum time as JSON; default: from case.json.", metavar="JSON"),
    ] = None,
    time_type: TimeTypeOption = None,
    record_type: RecordTypeOption = None,
    timely: Annotated[
        str | None,
        typer.Option(
            help="The release of timely whose form the recordings have: 0.31 or 0.32; default: "
            "from case.json, else from the recordings, if they show it.",
            metavar="RELEASE",
        ),
    ] = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Also accept recordings that break rules.")
    ] = False,
) -> int:
    """Import recordings made by another system as a new stream.

    The types of files come from `case.json` beside them, unless given. From Kafka topics that an
    export wrote, each import appends what is new.
    """
    from capstan.core.config import check_name
    from capstan.interop.kafka.topic_layout import Topics
    from capstan.interop.transfer.recording_format import Form, find_recordings

    shell = shell_of(context)
    check_name("stream", stream)
    if Topics.is_url(place):
        _require_known(timely)
        return _import_topics(shell, stream, Topics.parse(place), timely)
    folder = Path(place)
    format_ = _format_of(form)
    types = {"time_type": time_type, "record_type": record_type, "timely": timely}
    encoding = Form.of_folder(folder, format_, minimum=minimum_of(minimum), **types)
    # Invalid types are refused before a JVM starts.
    _ = encoding.time_type
    recordings = find_recordings(folder, format_)
    with shell.spark(Work(f"import {stream}", IMPORT)) as spark:
        from capstan.interop.transfer.import_files import import_recordings

        result = import_recordings(
            spark, shell.lake, stream, recordings, encoding, unchecked=unchecked
        )
    shell.output.result(result.to_json(), *_imported(result))
    return 0


def export(
    context: typer.Context,
    stream: Stream,
    place: Annotated[
        str,
        typer.Argument(
            help="A new folder for a file per worker; or kafka://HOST:PORT/PREFIX for topics.",
            metavar="PLACE",
        ),
    ],
    form: FormatOption = None,
    workers: Workers = None,
    as_of: AsOf = None,
    time_type: TimeTypeOption = None,
    record_type: RecordTypeOption = None,
    timely: TimelyOption = None,
) -> int:
    """Export the recordings of a stream to files or Kafka topics, for other systems.

    Imported recordings are exported as the same bytes. An export to topics can be repeated.
    """
    from capstan.interop.kafka.topic_layout import Topics
    from capstan.interop.transfer.export_files import form_of, require_new_folder

    shell = shell_of(context)
    tape, cut, chosen = _selected(shell, stream, workers, as_of)
    if Topics.is_url(place):
        _require_known(timely)
        topics = Topics.parse(place)
        with shell.spark(Work(f"export {stream}")) as spark:
            from capstan.interop.kafka.export_topics import export_topics

            done = export_topics(
                spark, shell.lake, tape, topics, workers=chosen, cut=cut, timely=timely
            )
        count = f"{done.events:,} events with {done.records:,} records of {done.workers:,} workers"
        shell.output.result(done.to_json(), f"{stream} is in {done.url}: {count}")
        return 0
    folder = Path(place)
    encoding = form_of(tape, _format_of(form), time_type, record_type, timely)
    require_new_folder(folder)
    with shell.spark(Work(f"export {stream}")) as spark:
        from capstan.interop.transfer.export_files import export_recordings

        result = export_recordings(
            spark, shell.lake, tape, folder, encoding, workers=chosen, cut=cut
        )
    shell.output.result(result.to_json(), *_exported(result))
    return 0


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
    timely: TimelyOption = None,
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
    types = {"time_type": time_type, "record_type": record_type, "timely": timely}
    encoding = Form.from_options(_format_of(form), minimum=minimum_of(minimum), **types)
    _ = encoding.time_type
    request = ListenRequest(stream, workers, encoding, port, host, every, idle)
    with shell.spark(Work(f"listen for {stream}")) as spark:
        result = record(spark, shell.lake, request)
    tape = open_tape(shell.lake, stream, stamps=True)
    shell.output.result(result.to_json(tape), *_listened(result, tape))
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
    timely: TimelyOption = None,
) -> int:  # fmt: skip
    """Send a stream's recordings to timely workers: peer i listens on PORT + i."""
    from capstan.interop.transfer.export_files import form_of
    from capstan.interop.transfer.serve import Address
    from capstan.interop.transfer.serve import serve as send

    shell = shell_of(context)
    address = Address.of(to)
    tape, cut, chosen = _selected(shell, stream, workers, as_of)
    encoding = form_of(tape, _format_of(form), time_type, record_type, timely)
    with shell.spark(Work(f"serve {stream}")) as spark:
        result = send(
            spark, shell.lake, tape, encoding, address, workers=chosen, peers=peers, cut=cut
        )
    shell.output.result(result.to_json(), *_served(result))
    return 0


def _import_topics(shell: Shell, stream: str, topics: Topics, timely: str | None) -> int:
    with shell.spark(Work(f"import {stream}")) as spark:
        from capstan.interop.kafka.import_topics import import_topics

        result = import_topics(spark, shell.lake, stream, topics, timely=timely)
    received = f"{result.events:,} events, {result.records:,} records"
    new = "nothing new" if result.unchanged else received
    shell.output.result(
        result.to_json(), f"{stream}: {new}; at commit {result.cut}, {result.workers:,} workers"
    )
    return 0


def _selected(
    shell: Shell, stream: str, workers: str | None, as_of: int | None
) -> tuple[Tape, Cut, tuple[int, ...]]:
    from capstan.storage.tape.index import find_cut
    from capstan.storage.tape.tape import open_tape
    from capstan.storage.tape.worker_choice import resolve_workers

    tape = open_tape(shell.lake, stream, stamps=True)
    cut = find_cut(tape, as_of)
    return tape, cut, tuple(resolve_workers(tape, cut, names(workers, "--workers")))


def _format_of(text: str | None) -> Format:
    """The format with this name."""
    from capstan.interop.transfer.recording_format import Format

    try:
        return Format(text or "")
    except ValueError as error:
        problem = f"unknown format {text[:80]!r}" if text else "files need a format"
        raise InvalidRequestError(
            "CAP-FORMAT-NAME", problem, f"give --format {' or '.join(Format)}"
        ) from error


def _require_known(timely: str | None) -> None:
    """Check that a release is one, before Spark starts: topics themselves say which they have."""
    from capstan.core.protocol import Release

    if timely is not None:
        Release.of(timely)


def _imported(result: ImportResult) -> list[str]:
    files = result.surveys
    events, records = sum(file.events for file in files), sum(file.records for file in files)
    done = "is already on tape" if result.unchanged else "is on tape"
    count = f"{events:,} events with {records:,} records, {len(files):,} workers"
    lines = [f"{result.stream} {done}: {count}"]
    if result.form.assumed:
        lines.append(f"read as recordings of timely {result.form.release}; --timely declares it")
    lines += [f"{file.path}: {file.torn}" for file in files if file.torn]
    lines += [f"{file.path}: {file.violation.text}" for file in files if file.violation]
    return lines


def _exported(result: ExportResult) -> list[Table | str]:
    rows = [
        (file.worker, file.file, file.events, file.records, size(file.bytes))
        for file in result.files
    ]
    head = f"{result.stream} at commit {result.cut} is in {result.folder}"
    return [table("", ("worker", "file", "events", "records", "size"), rows), head]


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
