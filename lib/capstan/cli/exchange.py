"""`import` and `export`: recordings of other systems, onto a tape and off it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capstan.cli.check import minimum_of
from capstan.cli.options import AsOf, Stream, Workers, names
from capstan.cli.output import table
from capstan.cli.progress import Work
from capstan.cli.shell import shell_of
from capstan.errors import BadRequest
from capstan.views.shown import size

if TYPE_CHECKING:
    from rich.table import Table

    from capstan.exchange import Exported, Imported
    from capstan.exchange.form import Format

FormatOption = Annotated[
    str,
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
    folder: Annotated[
        Path, typer.Argument(help="Where the files are, one per worker.", metavar="DIR")
    ],
    form: FormatOption,
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

    Their types are those of `case.json` beside them, unless they are given.
    """
    from capstan.declare import check_name
    from capstan.exchange.form import Form, find_recordings

    shell = shell_of(context)
    check_name("stream", stream)
    format_ = format_of(form)
    start = None if minimum is None else minimum_of(minimum)
    types = {"time_type": time_type, "record_type": record_type}
    read = Form.of(folder, format_, minimum=start, **types)
    # What can be refused is refused before a JVM starts.
    _ = read.time_type
    recordings = find_recordings(folder, format_)
    with shell.spark(Work(f"import {stream}")) as spark:
        from capstan.exchange import import_recordings

        found = import_recordings(spark, shell.lake, stream, recordings, read, unchecked=unchecked)
    shell.output.answer(found.as_json(), *_imported(found))
    return 0


def export(
    context: typer.Context,
    stream: Stream,
    folder: Annotated[
        Path, typer.Argument(help="A new folder: a file per worker goes there.", metavar="DIR")
    ],
    form: FormatOption,
    workers: Workers = None,
    as_of: AsOf = None,
    time_type: TimeTypeOption = None,
    record_type: RecordTypeOption = None,
) -> int:
    """Write the recordings of a stream as files that other systems read.

    What was imported comes out as the same bytes.
    """
    from capstan.exchange.exporting import form_of, require_new_folder
    from capstan.tape.summary import find_cut, resolve_workers
    from capstan.tape.tape import open_tape

    shell = shell_of(context)
    tape = open_tape(shell.lake, stream)
    cut = find_cut(tape, as_of)
    chosen = tuple(resolve_workers(tape, cut, names(workers, "--workers")))
    written = form_of(tape, format_of(form), time_type, record_type)
    require_new_folder(folder)
    with shell.spark(Work(f"export {stream}")) as spark:
        from capstan.exchange import export_recordings

        found = export_recordings(spark, shell.lake, tape, folder, written, workers=chosen, cut=cut)
    shell.output.answer(found.as_json(), *_exported(found))
    return 0


def format_of(text: str) -> Format:
    """The format of that name.

    Raises:
        BadRequest: `CAP-FORMAT-NAME`.
    """
    from capstan.exchange.form import Format

    try:
        return Format(text)
    except ValueError as error:
        raise BadRequest(
            "CAP-FORMAT-NAME",
            f"there is no format {text[:80]!r}",
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
