"""`import` and `export`: recordings of other systems, onto a tape and off it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capstan.cli.commands.check import minimum_of
from capstan.cli.context import Shell, shell_of
from capstan.cli.options import AsOf, Stream, Workers, names
from capstan.cli.output import table
from capstan.cli.progress import Work, import_work
from capstan.errors import InvalidRequestError
from capstan.reporting.formatting import size

if TYPE_CHECKING:
    from rich.table import Table

    from capstan.interop.kafka.topic_layout import Topics
    from capstan.interop.transfer.export_files import Exported
    from capstan.interop.transfer.import_files import Imported
    from capstan.interop.transfer.recording_format import Format

FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="jsonl: transcripts. timely: EventWriter's bytes.", metavar="F"),
]
TimeTypeOption = Annotated[
    str | None,
    typer.Option("--time-type", help="The type of times, such as u64.", metavar="TYPE"),
]
RecordTypeOption = Annotated[
    str | None,
    typer.Option("--record-type", help="The type of records, such as string.", metavar="TYPE"),
]


def import_(
    context: typer.Context,
    stream: Stream,
    place: Annotated[
        str,
        typer.Argument(
            help="The files' folder, one per worker; or kafka://HOST:PORT/PREFIX.",
            metavar="PLACE",
        ),
    ],
    form: FormatOption = None,
    minimum: Annotated[
        str | None,
        typer.Option(help="The minimum time as JSON; else that of case.json.", metavar="JSON"),
    ] = None,
    time_type: TimeTypeOption = None,
    record_type: RecordTypeOption = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Put also a broken recording on tape, as it is.")
    ] = False,
) -> int:
    """Put recordings that another system made on the tape of a new stream.

    Types of files are those of `case.json` beside them, unless they are given. From topics that an
    export wrote, what has come since the last time is put on tape.
    """
    from capstan.core.config import check_name
    from capstan.interop.kafka.topic_layout import Topics
    from capstan.interop.transfer.recording_format import Form, find_recordings

    shell = shell_of(context)
    check_name("stream", stream)
    if Topics.named(place):
        return _import_topics(shell, stream, Topics.at(place))
    folder = Path(place)
    format_ = format_of(form)
    start = None if minimum is None else minimum_of(minimum)
    types = {"time_type": time_type, "record_type": record_type}
    read = Form.of(folder, format_, minimum=start, **types)
    # What can be refused is refused before a JVM starts.
    _ = read.time_type
    recordings = find_recordings(folder, format_)
    with shell.spark(import_work(f"import {stream}")) as spark:
        from capstan.interop.transfer.import_files import import_recordings

        found = import_recordings(spark, shell.lake, stream, recordings, read, unchecked=unchecked)
    shell.output.answer(found.to_json(), *_imported(found))
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
) -> int:
    """Write the recordings of a stream as files that other systems read, or to topics.

    What was imported comes out as the same bytes. To topics the same may be written again.
    """
    from capstan.interop.kafka.topic_layout import Topics
    from capstan.interop.transfer.export_files import form_of, require_new_folder
    from capstan.storage.tape.index import find_cut, resolve_workers
    from capstan.storage.tape.tape import open_tape

    shell = shell_of(context)
    tape = open_tape(shell.lake, stream)
    cut = find_cut(tape, as_of)
    chosen = tuple(resolve_workers(tape, cut, names(workers, "--workers")))
    if Topics.named(place):
        topics = Topics.at(place)
        with shell.spark(Work(f"export {stream}")) as spark:
            from capstan.interop.kafka.export_topics import export_topics

            done = export_topics(spark, shell.lake, tape, topics, workers=chosen, cut=cut)
        count = f"{done.events:,} events with {done.records:,} records of {done.workers:,} workers"
        shell.output.answer(asdict(done), f"{stream} is in {done.place}: {count}")
        return 0
    folder = Path(place)
    written = form_of(tape, format_of(form), time_type, record_type)
    require_new_folder(folder)
    with shell.spark(Work(f"export {stream}")) as spark:
        from capstan.interop.transfer.export_files import export_recordings

        found = export_recordings(spark, shell.lake, tape, folder, written, workers=chosen, cut=cut)
    shell.output.answer(found.to_json(), *_exported(found))
    return 0


def _import_topics(shell: Shell, stream: str, topics: Topics) -> int:
    with shell.spark(Work(f"import {stream}")) as spark:
        from capstan.interop.kafka.import_topics import import_topics

        found = import_topics(spark, shell.lake, stream, topics)
    new = "nothing new" if found.stood else f"{found.events:,} events, {found.records:,} records"
    shell.output.answer(
        asdict(found),
        f"{stream}: {new}; at commit {found.cut}, {found.workers:,} workers",
    )
    return 0


def format_of(text: str | None) -> Format:
    """The format of that name.

    Raises:
        InvalidRequestError: `CAP-FORMAT-NAME`.
    """
    from capstan.interop.transfer.recording_format import Format

    try:
        return Format(text or "")
    except ValueError as error:
        said = f"there is no format {text[:80]!r}" if text else "files need a format"
        raise InvalidRequestError(
            "CAP-FORMAT-NAME",
            said,
            f"give --format {' or '.join(Format)}",
        ) from error


def _imported(found: Imported) -> list[str]:
    events = sum(each.events for each in found.surveys)
    records = sum(each.records for each in found.surveys)
    done = "was imported already" if found.stood else "is on tape"
    count = f"{events:,} events with {records:,} records, {len(found.surveys):,} workers"
    lines = [f"{found.stream} {done}: {count}"]
    lines += [f"{each.path}: {each.torn}" for each in found.surveys if each.torn]
    lines += [f"{each.path}: {each.violation[2]}" for each in found.surveys if each.violation]
    return lines


def _exported(found: Exported) -> list[Table | str]:
    rows = [
        (each.worker, each.file, each.events, each.records, size(each.bytes))
        for each in found.files
    ]
    head = f"{found.stream} at commit {found.cut} is in {found.folder}"
    return [table("", ("worker", "file", "events", "records", "size"), rows), head]
