"""`capture`, `close` and `verify`: commands that write or check a tape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from capstan.cli.context import Shell, shell_of
from capstan.cli.options import AsOf, Stream, Workers, names
from capstan.cli.output import frontier, row_table, same
from capstan.cli.progress import Work
from capstan.core.json_object import Json

if TYPE_CHECKING:
    from rich.table import Table

    from capstan.capture.query.source_reconciliation import Reconciliation
    from capstan.capture.run import CaptureResult
    from capstan.core.config import Stream as Declared
    from capstan.verify import Verification


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
    parts |= {"repaired": compared.repaired, "dropped": compared.dropped}
    parts["missing"] = compared.missing
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
