"""`capture`, `close`, `late` and `verify`: commands that write a tape, or judge it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from capstan.cli.context import shell_of
from capstan.cli.options import AsOf, Stream, Workers, names
from capstan.cli.output import table
from capstan.cli.progress import Work

if TYPE_CHECKING:
    from rich.table import Table

    from capstan.capture.run import CaptureResult
    from capstan.capture.source_reconciliation import Compared
    from capstan.verify import Verification


def capture(
    context: typer.Context,
    stream: Stream,
    reseat: Annotated[
        bool,
        typer.Option(
            "--reseat", help="Take a new checkpoint, and capture again all that the source offers."
        ),
    ] = False,
    rescale: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="First close all workers, and open so many as are declared now.",
            metavar="N",
        ),
    ] = None,
) -> int:
    """Put on tape what has arrived of a declared stream, then end."""
    shell = shell_of(context)
    declared = shell.declarations(required=True).stream(stream)
    with shell.spark(Work(f"capture {stream}")) as spark:
        from capstan.capture.run import capture as carry_out

        captured = carry_out(spark, shell.lake, declared, reseat=reseat, rescale=rescale)
    shell.output.answer(asdict(captured), *captured_lines(captured))
    return 0


def captured_lines(captured: CaptureResult) -> list[str]:
    """A capture as people read it."""
    if not captured.batches:
        first = f"{captured.stream}: nothing new; the tape is at commit {captured.cut}"
    else:
        first = (
            f"{captured.stream}: {captured.fed:,} rows in {captured.batches} batches: "
            f"{captured.records:,} on tape, {sum(captured.late.values()):,} late"
        )
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in captured.late.items())
    frontier = ", ".join(str(time) for time in captured.frontier) or "closed"
    lines = [first + (f" ({reasons})" if reasons else ""), f"frontier: {frontier}"]
    if captured.passed is not None and captured.passed.counts:
        lines.append(f"files passed over: {captured.passed.text}")
    return lines


def close(context: typer.Context, stream: Stream) -> int:
    """End a stream: its workers let go of all they hold, and every time becomes complete."""
    from capstan.storage.tape.tape import newest_cut, open_tape

    shell = shell_of(context)
    open_tape(shell.lake, stream)
    with shell.spark(Work(f"close {stream}")) as spark:
        from capstan.capture.run import close as carry_out

        tape, closed = carry_out(spark, shell.lake, stream)
    cut = newest_cut(tape).commit
    done = f"{closed} workers closed" if closed else "was closed already"
    shell.output.answer(
        {"stream": stream, "closed": closed, "cut": cut}, f"{stream}: {done}, at commit {cut}"
    )
    return 0


def late(
    context: typer.Context,
    stream: Stream,
    put_back: Annotated[
        bool,
        typer.Option("--put-back", help="Send those that came late at the frontier, once each."),
    ] = False,
) -> int:
    """List the records that were fed and are not on tape; or put those back that came late."""
    from capstan.reporting.listings import late_facts

    shell = shell_of(context)
    value = late_facts(shell.lake, stream)
    if not put_back:
        rows = value["late"]
        assert isinstance(rows, list)
        columns = ("reason", "records", "workers", "first batch", "last batch")
        cells = [[row[name.replace(" ", "_")] for name in columns] for row in rows]
        said = f"{stream} at commit {value['cut']}: {value['records']:,} records beside the tape"
        more = f", {value['put_back']:,} were put back" if value["put_back"] else ""
        shell.output.answer(value, table("", columns, cells), said + more)
        return 0
    with shell.spark(Work(f"put back {stream}")) as spark:
        from capstan.capture.run import put_back as carry_out

        done = carry_out(spark, shell.lake, stream)
    left = ", ".join(f"{count:,} {reason}" for reason, count in done.left.items())
    what = f"{done.records:,} records are on tape now, in batch {done.batch}"
    shell.output.answer(
        asdict(done),
        f"{stream}: {what if done.records else 'nothing to put back'}, at commit {done.cut}"
        + (f"; left: {left}" if left else ""),
    )
    return 0


def verify(
    context: typer.Context,
    stream: Stream,
    workers: Workers = None,
    as_of: AsOf = None,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also compare all records with the counts and hashes."),
    ] = False,
    source: Annotated[
        bool,
        typer.Option(
            "--source", help="Also compare with the source: all it gave is on tape or late."
        ),
    ] = False,
) -> int:
    """Check that recordings obey the rules; only what is newer than the last check is read."""
    from capstan.storage.tape.index import find_cut, resolve_workers
    from capstan.storage.tape.tape import open_tape

    shell = shell_of(context)
    tape = open_tape(shell.lake, stream)
    cut = find_cut(tape, as_of)
    listed = names(workers, "--workers")
    chosen = None if listed is None else tuple(resolve_workers(tape, cut, listed))
    declared = shell.declarations(required=True).stream(stream) if source else None
    compared = None
    with shell.later(Work(f"verify {stream}")) as session:
        from capstan.capture.source_reconciliation import compare
        from capstan.spark.session import interpreting
        from capstan.verify import verify as carry_out

        found = carry_out(session, shell.lake, tape, workers=chosen, cut=cut, deep=deep)
        if declared is not None:
            # As many as on tape or more, and most often about as many.
            with interpreting(session(), sum(each.records for each in found.workers)):
                compared = compare(session(), tape, declared, deep=deep, retired=found.retired)
    value = found.to_json(tape)
    lines = [verdict_line(found)]
    if compared is not None:
        value["source"] = compared.to_json()
        lines += compared_lines(compared)
    shell.output.answer(value, verdict_table(value), *lines)
    return 0 if found.valid and (compared is None or compared.agrees) else 1


def verdict_table(value: dict[str, object]) -> Table:
    """What verify says of each worker."""
    workers = value["workers"]
    assert isinstance(workers, list)
    return table(
        "",
        ("worker", "label", "valid", "events", "records", "frontier", "violation"),
        [
            (
                each["worker"],
                each["label"],
                each["valid"],
                each["events"],
                each["records"],
                "closed" if each["closed"] else each["frontier"],
                each["violation"] and f"{each['violation']['rule']}: {each['violation']['about']}",
            )
            for each in workers
        ],
    )


def compared_lines(found: Compared) -> list[str]:
    """A comparison with the source as people read it."""
    what = "records and their contents" if found.deep else "records"
    head = f"source: {found.records:,} {what} of {found.batches:,} batches"
    unread = f"{found.unread:,} files were never read" if found.unread else ""
    differing = f"{found.differing:,} differences" if found.differing else ""
    said = ", ".join(filter(None, [differing, unread])) or "all there"
    lines = [f"{head}: {said}"]
    lines += [f"  {found.gone:,} batches are gone from the source"] if found.gone else []
    if found.passed is not None and found.passed.counts:
        lines.append(f"  files of the source that are not on tape: {found.passed.text}")
    lines += [f"  nothing is known of what is before batch {found.unknown}"] * bool(found.unknown)
    for each in found.findings:
        part = f" of {each.part}" if each.part else ""
        counts = f"{each.source:,} in the source, {each.stored:,} stored"
        lines.append(f"  batch {each.batch}{part}: {each.kind}, {counts}")
    return lines


def verdict_line(found: Verification) -> str:
    """A verification in one line."""
    events = sum(verdict.events for verdict in found.workers)
    bad = sum(not verdict.valid for verdict in found.workers)
    said = f"{bad} of {len(found.workers)} recordings are not valid" if bad else "valid"
    return f"{found.stream} at commit {found.cut.commit}: {said} ({events:,} sound events)"
