"""`capture`, `close`, `late` and `verify`: commands that write or check a tape."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from capstan.cli.context import Shell, shell_of
from capstan.cli.options import AsOf, Stream, Workers, names
from capstan.cli.output import frontier, row_table, same
from capstan.cli.progress import Work
from capstan.core.json_object import Json
from capstan.errors import InvalidRequestError
from capstan.errors.shell_command import command

if TYPE_CHECKING:
    from rich.table import Table

    from capstan.capture.dead_letters import DropResult
    from capstan.capture.query.source_reconciliation import Reconciliation
    from capstan.capture.run import CaptureResult
    from capstan.core.config import Stream as Declared
    from capstan.storage.late.late_rows import LateSelection
    from capstan.verify import Verification


_GROUPS = 50
"""The most groups of records that a table shows."""


def capture(
    context: typer.Context,
    stream: Stream,
    reseat: Annotated[
        bool,
        typer.Option(
            "--reseat", help="Start a new checkpoint, and capture everything the source has again."
        ),
    ] = False,
    rescale: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="First close all workers, and open N new ones, as now declared.",
            metavar="N",
        ),
    ] = None,
) -> int:
    """Append to the tape what has arrived of a declared stream, then end."""
    shell = shell_of(context)
    with shell.working(Work(f"capture {stream}")) as work:
        captured = work.capture(stream, reseat=reseat, rescale=rescale)
    shell.output.result(captured.to_json(), *_captured_lines(captured))
    return 0


def _captured_lines(captured: CaptureResult) -> list[str]:
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
        lines.append(f"files skipped: {captured.passed.text}")
    return lines


def close(context: typer.Context, stream: Stream) -> int:
    """Close a stream permanently; all times become complete."""
    from capstan.storage.tape.tape import newest_cut, open_tape

    shell = shell_of(context)
    open_tape(shell.lake, stream, what="`capstan close`")
    with shell.spark(Work(f"close {stream}")) as spark:
        from capstan.capture.run import close as carry_out

        tape, closed = carry_out(spark, shell.lake, stream)
    cut = newest_cut(tape).commit
    done = f"{closed} workers closed" if closed else "already closed"
    shell.output.result(
        {"stream": stream, "closed": closed, "cut": cut}, f"{stream}: {done}, at commit {cut}"
    )
    return 0


def late(
    context: typer.Context,
    stream: Stream,
    put_back: Annotated[
        bool, typer.Option("--put-back", help="Put late records back, at the frontier, once each.")
    ] = False,
    drop: Annotated[
        bool, typer.Option("--drop", help="Close records for good; nothing is deleted.")
    ] = False,
    because: Annotated[
        str | None, typer.Option(help="Why they are dropped; kept.", metavar="TEXT")
    ] = None,
    reason: Annotated[
        str | None, typer.Option(help="Drop only those with this reason.", metavar="REASON")
    ] = None,
    cause: Annotated[
        str | None,
        typer.Option(help="Drop only those with this cause, or of this column.", metavar="CAUSE"),
    ] = None,
    file: Annotated[
        str | None, typer.Option(help="Drop only those of this file.", metavar="FILE")
    ] = None,
    undrop: Annotated[
        int | None, typer.Option(help="Open again what this batch has dropped.", metavar="BATCH")
    ] = None,
) -> int:
    """List records that are not on tape, by reason and cause; put late ones back, or drop some."""
    from capstan.reporting.listings import LATE_REASONS, late_facts
    from capstan.storage.late.late_rows import LateSelection

    shell = shell_of(context)
    selection = LateSelection(reason, cause, file)
    _require_one(put_back, drop, undrop, because, selection)
    if drop or undrop is not None:
        return _dropped(shell, stream, selection, because or "", undrop)
    value: Json = late_facts(shell.lake, stream)
    if not put_back:
        rows = value["late"]
        columns = ("file", "records", "workers", "first time", "last time", "last batch")
        keys = {name: name.replace(" ", "_") for name in columns}
        shown = row_table("", {"reason": "reason", "cause": _cause, **keys}, rows[:_GROUPS])
        omitted = [f"and {len(rows) - _GROUPS:,} more: --json has all"] * (len(rows) > _GROUPS)
        line = f"{stream} at commit {value['cut']}: {value['records']:,} records not on tape"
        more = f", {value['put_back']:,} put back" if value["put_back"] else ""
        dropped = [_drop_line(each) for each in value["dropped"]]
        reasons = dict.fromkeys(row["reason"] for row in rows)
        meanings = [f"{name}: {LATE_REASONS[name]}" for name in reasons if name in LATE_REASONS]
        shell.output.result(value, shown, *omitted, *meanings, *dropped, line + more)
        return 0
    with shell.spark(Work(f"put back {stream}")) as spark:
        from capstan.capture.run import put_back as carry_out

        done = carry_out(spark, shell.lake, stream)
    left = ", ".join(f"{count:,} {reason}" for reason, count in done.left.items())
    line = f"{done.records:,} records put back, in batch {done.batch}"
    shell.output.result(
        asdict(done),
        f"{stream}: {line if done.records else 'nothing to put back'}, at commit {done.cut}"
        + (f"; left: {left}" if left else ""),
    )
    return 0


def _require_one(
    put_back: bool, drop: bool, undrop: int | None, because: str | None, selection: LateSelection
) -> None:
    """Check that the options of `late` say one thing."""
    problem = None
    if put_back + drop + (undrop is not None) > 1:
        problem = "--put-back, --drop and --undrop exclude each other"
    elif not drop and (because is not None or selection.to_json()):
        problem = "--because, --reason, --cause and --file belong to --drop"
    if problem is not None:
        raise InvalidRequestError(
            "CAP-USAGE", problem, "`capstan late STREAM` lists all records; see --help"
        )


def _dropped(
    shell: Shell, stream: str, selection: LateSelection, because: str, undo: int | None
) -> int:
    from capstan.capture.drop_request import Drop
    from capstan.storage.ledger.made_by import user_name
    from capstan.storage.tape.tape import open_tape

    request = Drop(user_name(), because, selection, undo)
    open_tape(shell.lake, stream, what="`capstan late --drop`")
    with shell.spark(Work(f"drop {stream}")) as spark:
        from capstan.capture.dead_letters import drop as carry_out

        done = carry_out(spark, shell.lake, stream, request)
    shell.output.result(done.to_json(), _drop_outcome(done, undo))
    return 0


def _drop_outcome(done: DropResult, undo: int | None) -> str:
    """What a drop has done, or the undoing of one by its batch."""
    if done.batch is None:
        what = "nothing to drop"
    elif undo is None:
        undoes = command("late", done.stream, "--undrop", str(done.batch))
        what = f"{done.records:,} records dropped, in batch {done.batch}; {undoes} undoes it"
    elif done.records:
        what = f"{done.records:,} records opened again, in batch {done.batch}"
    else:
        what = f"what batch {undo} has dropped is open again already, since batch {done.batch}"
    return f"{done.stream}: {what}, at commit {done.cut}"


def _drop_line(entry: Json) -> str:
    return (
        f"dropped: {entry['records']:,} in batch {entry['batch']} by {entry['by']} at "
        f"{entry['at']}: {entry['because']}"
    )


def _cause(row: Json) -> str:
    """What is wrong with the records of a group: `delay does not parse into INT`."""
    return " ".join(str(part) for part in (row["field"], row["error"]) if part)


def verify(
    context: typer.Context,
    stream: Stream,
    workers: Workers = None,
    as_of: AsOf = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also compare all records with their counts and hashes.")
    ] = False,
    source: Annotated[
        bool,
        typer.Option(
            "--source", help="Also compare with the source: every row is on tape or late."
        ),
    ] = False,
) -> int:
    """Check recordings against the rules, starting where the last check stopped."""
    shell = shell_of(context)
    declared = _with_source(shell, stream) if source else None
    compared = None
    with shell.working(Work(f"verify {stream}")) as work:
        result = work.verify(stream, workers=names(workers, "--workers"), as_of=as_of, deep=deep)
        if declared is not None:
            from capstan.capture.query.source_reconciliation import reconcile
            from capstan.spark.own_session import interpreting

            # The source has at least as many rows as the tape, usually about as many.
            rows = sum(verdict.records for verdict in result.workers)
            with work.session() as spark, interpreting(spark, rows):
                compared = reconcile(
                    spark, result.tape, declared, deep=deep, retired=result.retired
                )
    value = result.to_json()
    lines = [_verdict_line(result)]
    if compared is not None:
        value["source"] = compared.to_json()
        lines += _compared_lines(compared)
    shell.output.result(value, _verdict_table(value), *lines)
    return 0 if result.valid and (compared is None or compared.agrees) else 1


def _with_source(shell: Shell, name: str) -> Declared:
    """The declaration of a stream, which names its source."""
    # A stream that a query records needs none, and could not be compared with one.
    if name not in shell.declarations().streams and name in shell.lake.streams():
        from capstan.capture.query.source_reconciliation import require_known_source
        from capstan.storage.tape.tape import open_tape

        require_known_source(open_tape(shell.lake, name))
    return shell.declarations(required=True).stream(name)


def _verdict_table(value: Json) -> Table:
    columns = same("worker", "label", "valid", "events", "records")
    return row_table(
        "", {**columns, "frontier": frontier, "violation": _violation}, value["workers"]
    )


def _violation(row: Json) -> object:
    violation = row["violation"]
    return violation and f"{violation['rule']}: {violation['about']}"


def _compared_lines(compared: Reconciliation) -> list[str]:
    scope = "records with contents" if compared.deep else "records"
    head = f"source: {compared.records:,} {scope} in {compared.batches:,} batches"
    unread = f"{compared.unread:,} files were never read" if compared.unread else ""
    differing = f"{compared.differing:,} differences" if compared.differing else ""
    lines = [f"{head}: {', '.join(filter(None, [differing, unread])) or 'all there'}"]
    lines.append(f"  {_sum_line(compared)}")
    lines += [f"  {compared.gone:,} batches are no longer in the source"] if compared.gone else []
    if compared.passed is not None and compared.passed.counts:
        lines.append(f"  files of the source that are not on tape: {compared.passed.text}")
    if compared.no_row:
        lines.append(f"  {compared.no_row:,} further records of the source make no row")
    if compared.otherwise:
        lines.append(f"  {compared.otherwise:,} batches had another select or where: not compared")
    lines += [f"  nothing is known of batches before {compared.unknown}"] * bool(compared.unknown)
    for finding in compared.findings:
        part = f" of {finding.part}" if finding.part else ""
        counts = f"{finding.source:,} in the source, {finding.stored:,} stored"
        lines.append(f"  batch {finding.batch}{part}: {finding.kind}, {counts}")
    return lines


def _sum_line(compared: Reconciliation) -> str:
    """What became of the records of the source: the parts add up to it."""
    parts = {"on tape": compared.on_tape, "dead": compared.dead, "put back": compared.returned}
    parts |= {"dropped": compared.dropped, "missing": compared.missing}
    shown = " + ".join(f"{count:,} {what}" for what, count in parts.items() if count) or "0"
    more = f" - {compared.extra:,} too many" if compared.extra else ""
    return f"{compared.in_source:,} in the source = {shown}{more}"


def _verdict_line(result: Verification) -> str:
    events = sum(verdict.events for verdict in result.workers)
    bad = sum(not verdict.valid for verdict in result.workers)
    verdict = f"{bad} of {len(result.workers)} recordings are not valid" if bad else "valid"
    line = f"{result.stream} at commit {result.cut.commit}: {verdict} ({events:,} valid events)"
    if result.pairs is None:
        return line
    return f"{line}; its times are {result.pairs}, which the tape wrongly orders part by part"
