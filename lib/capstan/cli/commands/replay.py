"""`plan`, `replay`, `publish`, `reject`, `rollback` and `unlock`: replays and their runs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated

import typer

from capstan.cli.context import Shell, shell_of
from capstan.cli.options import Run, cuts, every_sink, names, request_of, with_request_options
from capstan.cli.progress import ROLLBACK, Work, replay_work
from capstan.cli.tables import certificate_table, difference_tables, plan_tables
from capstan.errors import InvalidRequestError
from capstan.storage.ledger.made_by import user_name

if TYPE_CHECKING:
    from rich.console import RenderableType

    from capstan.replay.result import ReplayResult

AllSinks = Annotated[
    bool,
    typer.Option(
        "--all-sinks",
        help="Replay every sink of the pipeline into its own table, one run after the other.",
    ),
]
Diff = Annotated[
    bool, typer.Option("--diff", help="Also compare with the target: rows added, removed, changed.")
]


@with_request_options
def plan(context: typer.Context, diff: Diff = False, **_: object) -> int:
    """Show what a replay would read and write; exits with 3 if the range is not complete.

    With --diff, also show the rows it would add, remove and change. Nothing is written.
    """
    shell = shell_of(context)
    request = request_of(context, shell.declarations())
    with shell.working(Work(f"plan {context.params['stream']}")) as work:
        planned = work.plan(request, compare=diff)
    value = planned.to_json()
    shown = plan_tables(value)
    if planned.comparison is not None:
        time_type = planned.plan.inputs.tape.time_type
        shown += difference_tables(planned.comparison.to_json(time_type))
    shell.output.result(value, *shown)
    return 0 if planned.complete or request.partial else 3


@with_request_options
def replay(
    context: typer.Context,
    into_stream: Annotated[
        str | None,
        typer.Option(
            help="Record the output on the tape of another stream, with --peers workers; "
            "repeated, record what became complete since.",
            metavar="STREAM",
        ),
    ] = None,
    timely: Annotated[
        str | None,
        typer.Option(
            help="With --into-stream: the release of timely in whose form the other stream is "
            "exported, 0.31 or 0.32; default: as before, else as STREAM.",
            metavar="RELEASE",
        ),
    ] = None,
    all_sinks: AllSinks = False,
    **_: object,
) -> int:
    """Replay workers and times into a table: verify, stage, audit, publish.

    Repeating a replay changes nothing while its result is still published.
    """
    from capstan.replay.planning.planner import make_plan

    shell = shell_of(context)
    if into_stream is not None:
        return _recapture(context, shell)
    if timely is not None:
        raise InvalidRequestError(
            "CAP-USAGE",
            "--timely requires --into-stream: a table has no form of timely",
            "leave it out, or name the stream to record",
        )
    config = shell.declarations()
    sinks = every_sink(context.params, config) if all_sinks else [{}]
    requests = [request_of(context, config, **sink) for sink in sinks]
    # If one of several requests is refused, none is carried out.
    for request in requests[1:]:
        make_plan(shell.lake, config, request)
    first = requests[0]
    title = f"replay {context.params['stream']}"
    steps = replay_work(title, hold=first.hold, runs=len(requests))
    with shell.working(steps) as work:
        runs = [work.replay(request) for request in requests]
    lines = itertools.chain.from_iterable(map(_run_lines, runs))
    values = [run.to_json() for run in runs]
    shell.output.result({"runs": values} if all_sinks else values[0], *lines)
    return 0


_RECAPTURED = frozenset({"stream", "into_stream", "workers", "peers", "as_of", "timely"})


def _recapture(context: typer.Context, shell: Shell) -> int:
    from capstan.interop.transfer.recapture import RecaptureRequest
    from capstan.storage.tape.tape import open_tape

    for parameter in context.command.params:
        name = parameter.name or ""
        # An option that can be repeated has no default, and an empty list when it was not given.
        value = context.params.get(name) or None
        if name not in _RECAPTURED and value != (parameter.default or None):
            raise InvalidRequestError(
                "CAP-USAGE",
                f"{parameter.opts[0]} cannot be combined with --into-stream",
                "a re-capture copies all complete times of the chosen workers",
            )
    given = context.params
    request = RecaptureRequest(
        stream=given["stream"],
        into=given["into_stream"],
        workers=names(given["workers"], "--workers"),
        peers=given["peers"],
        as_of=cuts(given["as_of"])["as_of"],
        timely=given["timely"],
    )
    open_tape(shell.lake, request.stream, stamps=True)
    with shell.spark(Work(f"record {request.stream} onto {request.into}")) as spark:
        from capstan.interop.transfer.recapture import recapture

        result = recapture(spark, shell.lake, request)
    if result.unchanged:
        done = "nothing new"
    else:
        done = f"{result.records:,} records of {result.stream} at commit {result.cut}"
    frontier = ", ".join(map(str, result.frontier)) or "closed"
    line = f"{result.into}, {result.workers} workers, commit {result.commit}: {done}"
    shell.output.result(result.to_json(), line, f"frontier: {frontier}")
    return 0


def _run_lines(run: ReplayResult) -> tuple[RenderableType, ...]:
    if run.unchanged:
        line = f"nothing to do: run {run.name} is still published"
    elif run.certificate is not None and run.certificate.published:
        line = f"run {run.name} is published"
    else:
        line = f"run {run.name} is audited and waiting: capstan publish {run.name}"
    return certificate_table(run), line


def publish(context: typer.Context, run: Run) -> int:
    """Publish a run that was held after its audit, or finish an interrupted publish.

    This also approves a run that waits for approval, in the name of the logged-in user.
    """
    from capstan.replay.execution.approval import Decision
    from capstan.storage.ledger.runs import read_history

    shell = shell_of(context)
    shell.lake.require()
    read_history(shell.lake, run)
    with shell.working(Work(f"publish {run}")) as work:
        published = work.publish(run, Decision(user_name()))
    shell.output.result(published.to_json(), *_run_lines(published))
    return 0


def reject(
    context: typer.Context,
    run: Run,
    reason: Annotated[str, typer.Option(help="The reason, for the ledger.")] = "",
) -> int:
    """Reject a run that was held after its audit, and release its claim.

    Its staged output is kept for inspection.
    """
    from capstan.replay.execution.approval import Decision, require_waiting
    from capstan.replay.execution.approval import reject as carry_out
    from capstan.storage.ledger.runs import read_history

    shell = shell_of(context)
    shell.lake.require()
    require_waiting(read_history(shell.lake, run))
    row = carry_out(shell.lake, run, Decision(user_name(), reason=reason))
    shell.output.result(
        {"run": run, "rejected": True, **row.stated},
        f"run {run} is rejected; its staged output is at {row.detail['staging']}",
    )
    return 0


def rollback(context: typer.Context, run: Run) -> int:
    """Roll back what a run published; rows that others wrote since stay."""
    from capstan.storage.ledger.runs import read_history

    shell = shell_of(context)
    shell.lake.require()
    repeated = read_history(shell.lake, run).rolled_back
    with shell.working(Work(f"rollback {run}", ROLLBACK)) as work:
        version = work.rollback(run)
    done = "was already rolled back" if repeated else "is rolled back"
    shell.output.result(
        {"run": run, "target_version": version, "rolled_back": True, "unchanged": repeated},
        f"run {run} {done}: version {version} has the previous rows",
    )
    return 0


def unlock(context: typer.Context, run: Run) -> int:
    """Declare a run dead, and release its claim."""
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
    done = f"the claim of attempt {attempt} is released" if attempt else "it had no claim"
    shell.output.result(
        {"run": run, "attempt": attempt, "unlocked": bool(attempt)}, f"run {run}: {done}"
    )
    return 0
