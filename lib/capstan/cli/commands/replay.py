"""`plan`, `replay`, `publish`, `rollback` and `unlock`: replays, and what becomes of them."""

from __future__ import annotations

import getpass
import itertools
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from capstan.cli.context import Shell, shell_of
from capstan.cli.options import AsOf, Into, KnownAt, Run, Since, Stream, Until, Workers, names
from capstan.cli.pipeline_targets import every_sink, usual_target
from capstan.cli.plan_tables import difference_tables, plan_tables
from capstan.cli.progress import Work, replay_work, rollback_work
from capstan.cli.tables import certificate_facts
from capstan.core.config import Mode
from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from capstan.core.config import ProjectConfig
    from capstan.replay.planning.request import Request
    from capstan.replay.run import ReplayResult

Peers = Annotated[
    int | None, typer.Option(help="Replay workers; one per chosen worker by default.")
]
Transform = Annotated[
    str | None, typer.Option(help="A registered transform; the records as they are by default.")
]
Pipeline = Annotated[
    str | None,
    typer.Option(help="A registered pipeline, in place of a transform.", metavar="NAME"),
]
Sink = Annotated[
    str | None,
    typer.Option(help="Which sink of the pipeline, where it has several.", metavar="NODE"),
]
AllSinks = Annotated[
    bool,
    typer.Option(
        "--all-sinks",
        help="Every sink of the pipeline into its own table, one run after the other.",
    ),
]
ModeOption = Annotated[Mode, typer.Option(help="How the target is changed.")]
Keys = Annotated[
    str | None, typer.Option(help="Columns that merge matches rows by.", metavar="LIST")
]
Follow = Annotated[
    str | None,
    typer.Option(help="Play what became complete since the last run of this name.", metavar="NAME"),
]
Partial = Annotated[
    bool, typer.Option("--partial", help="Play what is complete of a range that is not.")
]
Direct = Annotated[
    bool, typer.Option("--direct", help="Write to the target at once, and audit it there.")
]
Adopt = Annotated[
    bool, typer.Option("--adopt", help="Also replace rows that no replay has put there.")
]
Hold = Annotated[
    bool, typer.Option("--hold", help="Stop after the audit; `capstan publish` goes on.")
]
Diff = Annotated[
    bool,
    typer.Option("--diff", help="Also compare with the target: rows added, removed, changed."),
]


def plan(
    context: typer.Context,
    stream: Stream,
    into: Into = None,
    workers: Workers = None,
    since: Since = None,
    until: Until = None,
    known_at: KnownAt = None,
    as_of: AsOf = None,
    peers: Peers = None,
    transform: Transform = None,
    pipeline: Pipeline = None,
    sink: Sink = None,
    mode: ModeOption = Mode.REPLACE,
    keys: Keys = None,
    follow: Follow = None,
    partial: Partial = False,
    direct: Direct = False,
    adopt: Adopt = False,
    hold: Hold = False,
    diff: Diff = False,
) -> int:
    """Say what a replay would read and write; ends with 3 where the range is not complete.

    With --diff also which rows it would add, remove and change; nothing is written.
    """
    from capstan.replay.preview import preview

    shell = shell_of(context)
    declarations = shell.declarations()
    found = preview(shell.lake, declarations, _request(context, declarations))
    value = found.to_json()
    shown = plan_tables(value)
    if diff:
        with shell.spark(Work(f"plan {stream}")) as spark:
            from capstan.replay.output.diff import difference

            told = difference(spark, found.plan).to_json(found.plan.tape.time_type)
        value["diff"] = told
        shown += difference_tables(told)
    shell.output.answer(value, *shown)
    return 0 if found.plan.complete or partial else 3


def replay(
    context: typer.Context,
    stream: Stream,
    into: Into = None,
    into_stream: Annotated[
        str | None,
        typer.Option(
            help="Record the output on the tape of another stream, which --peers workers have; "
            "the same again records what became complete since.",
            metavar="STREAM",
        ),
    ] = None,
    workers: Workers = None,
    since: Since = None,
    until: Until = None,
    known_at: KnownAt = None,
    as_of: AsOf = None,
    peers: Peers = None,
    transform: Transform = None,
    pipeline: Pipeline = None,
    sink: Sink = None,
    all_sinks: AllSinks = False,
    mode: ModeOption = Mode.REPLACE,
    keys: Keys = None,
    follow: Follow = None,
    partial: Partial = False,
    direct: Direct = False,
    adopt: Adopt = False,
    hold: Hold = False,
) -> int:
    """Play chosen workers and times into a table: verified, staged, audited, published.

    The same replay again changes nothing while its result stands.
    """
    from capstan.replay.planning.plan import make_plan

    shell = shell_of(context)
    if into_stream is not None:
        return _recapture(context, shell)
    declarations = shell.declarations()
    if all_sinks:
        each = every_sink(context.params, declarations)
        requests = [_request(context, declarations, fields) for fields in each]
    else:
        requests = [_request(context, declarations)]
    # What can be refused is refused before a JVM starts.
    for request in requests:
        make_plan(shell.lake, declarations, request)
    work = replay_work(f"replay {stream}", direct=direct, hold=hold, runs=len(requests))
    with shell.spark(work) as spark:
        from capstan.replay.run import replay as carry_out

        outcomes = [carry_out(spark, shell.lake, declarations, request) for request in requests]
    if all_sinks:
        told = [_told(outcome) for outcome in outcomes]
        runs = [outcome.to_json() for outcome in outcomes]
        shell.output.answer({"runs": runs}, *itertools.chain.from_iterable(told))
    else:
        _answer(shell, outcomes[0])
    return 0


_RECAPTURED = frozenset({"stream", "into_stream", "workers", "peers", "as_of"})


def _recapture(context: typer.Context, shell: Shell) -> int:
    from capstan.interop.transfer.recapture import RecaptureRequest
    from capstan.storage.tape.tape import open_tape

    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in _RECAPTURED and context.params.get(name) != parameter.default:
            raise InvalidRequestError(
                "CAP-USAGE",
                f"{parameter.opts[0]} does not go with --into-stream",
                "a re-capture records all complete times of the chosen workers, as they are",
            )
    given = context.params
    asked = RecaptureRequest(
        stream=given["stream"],
        into=given["into_stream"],
        workers=names(given["workers"], "--workers"),
        peers=given["peers"],
        as_of=given["as_of"],
    )
    open_tape(shell.lake, asked.stream)
    with shell.spark(Work(f"record {asked.stream} onto {asked.into}")) as spark:
        from capstan.interop.transfer.recapture import recapture

        found = recapture(spark, shell.lake, asked)
    if found.stood:
        done = "nothing new"
    else:
        done = f"{found.records:,} records of {found.stream} at commit {found.cut}"
    frontier = ", ".join(map(str, found.frontier)) or "closed"
    line = f"{found.into}, {found.workers} workers, commit {found.commit}: {done}"
    shell.output.answer(asdict(found), line, f"frontier: {frontier}")
    return 0


def _request(
    context: typer.Context, declarations: ProjectConfig, other: Mapping[str, object] | None = None
) -> Request:
    """The request of a command whose parameters are named like the request's fields.

    Args:
        context: The command.
        declarations: What is declared.
        other: Fields that are not as the command has them.
    """
    from capstan.replay.planning.request import Request

    given = {**context.params, **(other or {})}
    fields = {name: given[name] for name in Request.__dataclass_fields__ if name in given}
    if fields["into"] is None:
        fields["into"] = usual_target(context, declarations)
    fields["mode"] = Mode(fields["mode"])
    fields["workers"] = names(fields["workers"], "--workers")
    fields["keys"] = names(fields["keys"], "--keys") or ()
    return Request(**fields)


def _answer(shell: Shell, outcome: ReplayResult) -> None:
    shell.output.answer(outcome.to_json(), *_told(outcome))


def _told(outcome: ReplayResult) -> tuple[RenderableType, ...]:
    """An outcome as people see it."""
    value = outcome.to_json()
    run = value["run"]
    if outcome.stood:
        line = f"nothing to do: run {run} stands"
    elif value["published"]:
        line = f"run {run} is published"
    else:
        line = f"run {run} is audited and waits: capstan publish {run}"
    return certificate_facts(value), line


def publish(context: typer.Context, run: Run) -> int:
    """Publish a run that was held after its audit, or finish one that was cut off.

    A run that waits for approval is approved by this, in the name of who is logged in.
    """
    from capstan.replay.execution.approval import Decision
    from capstan.storage.ledger.runs import read_history

    shell = shell_of(context)
    shell.lake.require()
    read_history(shell.lake, run)
    with shell.spark(Work(f"publish {run}")) as spark:
        from capstan.replay.run import publish as carry_out

        decision = Decision(_user())
        outcome = carry_out(spark, shell.lake, shell.declarations(), run, decision)
    _answer(shell, outcome)
    return 0


def reject(
    context: typer.Context,
    run: Run,
    reason: Annotated[str, typer.Option(help="Why; it goes into the ledger.")] = "",
) -> int:
    """Reject a run that was held after its audit: it is not published, and holds nothing more.

    What it has staged stays where it is, to be looked at.
    """
    from capstan.replay.execution.approval import Decision, require_waiting
    from capstan.replay.execution.approval import reject as carry_out
    from capstan.storage.ledger.runs import read_history

    shell = shell_of(context)
    shell.lake.require()
    require_waiting(read_history(shell.lake, run))
    row = carry_out(shell.lake, run, Decision(_user(), reason=reason))
    shell.output.answer(
        {"run": run, "rejected": True, **row.detail},
        f"run {run} is rejected; what it staged is at {row.detail['staging']}",
    )
    return 0


def _user() -> str:
    """Who is logged in, as the system knows them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def rollback(context: typer.Context, run: Run) -> int:
    """Take back what a run published; rows that others wrote since stay."""
    from capstan.storage.ledger.runs import read_history

    shell = shell_of(context)
    shell.lake.require()
    stood = read_history(shell.lake, run).rolled_back
    with shell.spark(rollback_work(f"rollback {run}")) as spark:
        from capstan.replay.run import rollback as carry_out

        version = carry_out(spark, shell.lake, shell.declarations(), run)
    before = "was taken back before" if stood else "is taken back"
    shell.output.answer(
        {"run": run, "target_version": version, "rolled_back": True, "stood": stood},
        f"run {run} {before}: version {version} has the rows of before",
    )
    return 0


def unlock(context: typer.Context, run: Run) -> int:
    """Declare a run dead, so that it holds its range no more."""
    from capstan.storage.ledger import claims
    from capstan.storage.ledger.runs import read_history

    shell = shell_of(context)
    shell.lake.require()
    attempt = 0
    if any(claim.run == run for claim in claims.active(shell.lake)):
        from capstan.replay.run import unlock as carry_out

        attempt = carry_out(shell.lake, run)
    else:
        read_history(shell.lake, run)
    done = f"attempt {attempt} holds nothing any more" if attempt else "it held nothing"
    shell.output.answer(
        {"run": run, "attempt": attempt, "unlocked": bool(attempt)}, f"run {run}: {done}"
    )
    return 0
