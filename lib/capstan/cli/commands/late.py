"""`late`: records that are not on tape, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from capstan.cli.context import Shell, shell_of
from capstan.cli.options import Stream
from capstan.cli.output import row_table, same
from capstan.cli.progress import Work
from capstan.core.json_object import Json
from capstan.errors import InvalidRequestError
from capstan.errors.shell_command import command

if TYPE_CHECKING:
    from rich.console import RenderableType

    from capstan.capture.dead_letters import DropResult, FixResult
    from capstan.storage.late.late_rows import LateSelection

_GROUPS = 50
"""The most groups of records that a table shows."""


def late(
    context: typer.Context,
    stream: Stream,
    put_back: Annotated[
        bool, typer.Option("--put-back", help="Put late records back, at the frontier, once each.")
    ] = False,
    fix: Annotated[
        list[str] | None,
        typer.Option(
            help="Put records back that this repairs: SQL over columns of the table `late`, such "
            "as \"CAST(split(raw, ';')[2] AS INT) AS delay\". Repeat it for each column, or give "
            "a list.",
            metavar="SQL",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what --fix would repair; write nothing.")
    ] = False,
    drop: Annotated[
        bool, typer.Option("--drop", help="Close records for good; nothing is deleted.")
    ] = False,
    because: Annotated[
        str | None, typer.Option(help="Why they are dropped; kept.", metavar="TEXT")
    ] = None,
    reason: Annotated[
        str | None, typer.Option(help="Drop or repair those with this reason.", metavar="REASON")
    ] = None,
    cause: Annotated[
        str | None,
        typer.Option(help="Only those with this cause, or of this column.", metavar="CAUSE"),
    ] = None,
    file: Annotated[
        str | None, typer.Option(help="Only those of this file.", metavar="FILE")
    ] = None,
    undrop: Annotated[
        int | None, typer.Option(help="Open again what this batch has dropped.", metavar="BATCH")
    ] = None,
) -> int:
    """List records that are not on tape, by reason and cause; put back, repair or drop some."""
    from capstan.reporting.listings import LATE_REASONS, late_facts
    from capstan.storage.late.late_rows import LateSelection

    shell = shell_of(context)
    selection = LateSelection(reason, cause, file)
    actions = {"--put-back": put_back, "--fix": fix, "--drop": drop, "--undrop": undrop is not None}
    _require_one(actions, dry_run, because, selection)
    if fix:
        return _fixed(shell, stream, selection, fix, dry_run)
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
        settled = [
            f"{what}: {entry['records']:,} in batch {entry['batch']} by {entry['by']} at "
            f"{entry['at']}: {how(entry)}"
            for what, how in {"dropped": _why, "repaired": _sql}.items()
            for entry in value[what]
        ]
        reasons = dict.fromkeys(row["reason"] for row in rows)
        meanings = [f"{name}: {LATE_REASONS[name]}" for name in reasons if name in LATE_REASONS]
        shell.output.result(value, shown, *omitted, *meanings, *settled, line + more)
        return 0
    with shell.spark(Work(f"put back {stream}")) as spark:
        from capstan.capture.run import put_back as carry_out

        done = carry_out(spark, shell.lake, stream)
    line = f"{done.records:,} records put back, in batch {done.batch}"
    shell.output.result(
        asdict(done),
        f"{stream}: {line if done.records else 'nothing to put back'}, at commit {done.cut}"
        + (f"; left: {_counts(done.left)}" if done.left else ""),
    )
    return 0


def _require_one(
    actions: Json, dry_run: bool, because: str | None, selection: LateSelection
) -> None:
    """Check that the options of `late` say one thing."""
    problem = None
    if sum(map(bool, actions.values())) > 1:
        problem = f"{', '.join(actions)} exclude each other"
    elif not actions["--drop"] and because is not None:
        problem = "--because belongs to --drop"
    elif not actions["--fix"] and dry_run:
        problem = "--dry-run belongs to --fix"
    elif not (actions["--drop"] or actions["--fix"]) and selection.to_json():
        problem = "--reason, --cause and --file belong to --drop or --fix"
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


def _fixed(
    shell: Shell, stream: str, selection: LateSelection, texts: Sequence[str], dry_run: bool
) -> int:
    from capstan.capture.fix_request import Fix
    from capstan.core.config.sql_rules import select_list
    from capstan.storage.ledger.made_by import user_name
    from capstan.storage.tape.tape import open_tape

    select = tuple(item for text in texts for item in select_list(text))
    request = Fix(user_name(), select, selection, dry_run)
    declared = shell.declarations(required=True).stream(stream)
    open_tape(shell.lake, stream, what="`capstan late --fix`")
    with shell.spark(Work(f"fix {stream}")) as spark:
        from capstan.capture.dead_letters import fix as carry_out

        done = carry_out(spark, shell.lake, declared, request)
    shell.output.result(done.to_json(), *_fix_outcome(done))
    return 0


def _fix_outcome(done: FixResult) -> list[RenderableType]:
    """What a fix has repaired, or would, and what is still wrong."""
    repair = done.repair
    if done.batch is not None:
        what = f"{repair.records:,} records repaired, in batch {done.batch}"
    else:
        what = f"{repair.records:,} records would be repaired" * bool(repair.records)
    shown = [row_table("", same("worker", "time", "records"), repair.cells)] * bool(repair.cells)
    further = repair.times - len(repair.cells)
    return [
        *(f"{example['record']} -> {example['becomes']}" for example in repair.repaired_as),
        *shown,
        *[f"and {further:,} more workers and times"] * bool(further),
        f"{done.stream}: {what or 'nothing to repair'}, at commit {done.cut}",
        *[f"still wrong: {_counts(repair.wrong)}"] * bool(repair.wrong),
        *(f"  {example['reason']}: {example['record']}" for example in repair.still_wrong),
    ]


def _counts(by_reason: Json) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in by_reason.items())


def _why(entry: Json) -> str:
    return str(entry["because"])


def _sql(entry: Json) -> str:
    return ", ".join(entry["fix"])


def _cause(row: Json) -> str:
    """What is wrong with the records of a group: `delay does not parse into INT`."""
    return " ".join(str(part) for part in (row["field"], row["error"]) if part)
