"""`gaps` and `backfill`: missing intervals of a declared replay, and filling them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from capstan.cli.context import Shell, shell_of
from capstan.cli.options import AsOf, Since, Until
from capstan.cli.output import facts, row_table, table
from capstan.cli.progress import Work
from capstan.core.json_object import Json
from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.errors.shell_command import command
from capstan.reporting.formatting import cell_text

if TYPE_CHECKING:
    from capstan.backfill.planner import BackfillRequest
    from capstan.backfill.run import BackfillResult
    from capstan.backfill.survey import Survey

_FEW = 3
_POLICY = ("order", "chunk", "at_most", "rate", "hours")
_HOLDING = ("pause", "resume", "because")

Replay = Annotated[str, typer.Argument(help="The name of a declared replay.", metavar="REPLAY")]
Every = Annotated[
    str | None,
    typer.Option(
        help="The length of an interval: '6 hours', or 100 when times are numbers; default: from "
        "the replay's schedule, else the grain of its transform or sink, else 1 day.",
        metavar="LENGTH",
    ),
]


def gaps(
    context: typer.Context,
    replay: Replay,
    every: Every = None,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
) -> int:
    """List a replay's intervals: covered, stale or missing; exits with 1 if any is not covered.

    Incomplete intervals, which can still receive records, are not gaps, and neither are intervals
    with a run that waits for approval. Intervals whose records were retired cannot be filled.
    """
    from capstan.backfill.planner import BackfillRequest

    shell = shell_of(context)
    request = BackfillRequest(replay, since=since, until=until, every=every, as_of=as_of)
    survey = shell.context.gaps(request)
    shown = _stretch_table(survey), _counted(survey)
    return shell.output.checked(survey.to_json(), _refusal(survey, request), *shown)


def backfill(
    context: typer.Context,
    replay: Replay,
    since: Since = None,
    until: Until = None,
    gaps: Annotated[
        bool, typer.Option("--gaps", help="Fill intervals that are not covered (the default).")
    ] = False,
    stale: Annotated[
        bool, typer.Option("--stale", help="Redo intervals that older code wrote.")
    ] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="Fill only gaps whose last run failed.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Redo every complete interval.")
    ] = False,
    order: Annotated[
        str | None,
        typer.Option(
            help="Which intervals to run first: oldest or newest; default: as declared, or oldest.",
            metavar="ORDER",
        ),
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="At most this many intervals per run; default: as declared, or one run per gap.",
        ),
    ] = None,
    every: Every = None,
    as_of: AsOf = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Also replace rows that no replay wrote.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs.")] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Continue after a run that fails.")
    ] = False,
    pause: Annotated[
        bool, typer.Option("--pause", help="Let no run of the replay's backfills begin.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Let runs of the replay's backfills begin again.")
    ] = False,
    because: Annotated[
        str | None, typer.Option(help="Why they are paused or go on; kept.", metavar="TEXT")
    ] = None,
) -> int:
    """Fill the missing intervals of a declared replay, run by run, in one Spark session.

    Runs that copy adjoining intervals are written and audited together.
    Repeat an interrupted backfill to continue it; published intervals are not
    replayed again. With --pause, backfills of the replay end after the runs at
    work, with exit code 3, and others are refused, until --resume.
    """
    from capstan.backfill.run import prepare, run_prepared

    shell = shell_of(context)
    config = shell.declarations(required=True)
    if pause or resume or because is not None:
        _require_one(context)
        return _set_paused(shell, config.replay(replay).name, pause, because or "")
    result = prepare(shell.lake, config, _request(context))
    if result.replays and not dry_run:
        # The number of runs is the length of the progress bar.
        work = Work(f"backfill {replay}", ("backfill.run",) * len(result.replays))
        with shell.spark(work) as spark:
            result = run_prepared(spark, shell.lake, config, result)
    return shell.output.checked(result.to_json(), result.error, *_run_tables(result))


def _require_one(context: typer.Context) -> None:
    """Check that a command that pauses or resumes does nothing else."""
    given = {name for name in context.params if _is_given(context, name)}
    if len(given & {"pause", "resume"}) != 1 or not given <= {*_HOLDING, "replay"}:
        raise InvalidRequestError(
            "CAP-USAGE",
            "one of --pause and --resume goes with a replay and --because, and with nothing else",
            "see `capstan backfill --help`",
        )


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _set_paused(shell: Shell, replay: str, paused: bool, because: str) -> int:
    from capstan.backfill.pauses import Pause, set_paused

    shell.lake.require()
    changed = set_paused(shell.lake, replay, paused=paused, because=because)
    pause = Pause.read(shell.lake, replay)
    already = "" if changed else " already"
    state = f"backfills of replay {replay} may run{already}"
    if pause is not None:
        again = command("backfill", replay, "--resume")
        state = f"backfills of replay {replay} are{already} {pause}; {again} lets them go on"
    value: Json = {"replay": replay, "paused": False} if pause is None else pause.to_json()
    shell.output.result({**value, "unchanged": not changed}, state)
    return 0


def _request(context: typer.Context) -> BackfillRequest:
    """The request of a command whose options have the names of the request's fields."""
    from capstan.backfill.planner import BackfillMode, BackfillRequest
    from capstan.core.config import Order

    given = context.params
    flags = {
        BackfillMode.GAPS: "gaps",
        BackfillMode.STALE: "stale",
        BackfillMode.FAILED: "failed",
        BackfillMode.ALL: "everything",
    }
    chosen = [mode for mode, flag in flags.items() if given[flag]]
    problem = None
    if len(chosen) > 1:
        problem = f"--{chosen[0]} and --{chosen[1]} cannot be combined"
    elif given["order"] not in (None, *Order):
        problem = f"there is no order {given['order'][:80]!r}"
    if problem is not None:
        raise InvalidRequestError("CAP-USAGE", problem, "see `capstan backfill --help`")
    fields = {name: given[name] for name in BackfillRequest.__dataclass_fields__ if name in given}
    mode = chosen[0] if chosen else BackfillMode.GAPS
    order = None if given["order"] is None else Order(given["order"])
    return BackfillRequest(**{**fields, "what": mode, "order": order})


def _refusal(survey: Survey, request: BackfillRequest) -> CheckFailedError | None:
    """The error of a replay with gaps or stale intervals; None without any."""
    counts = survey.counts
    missing, stale = counts["gap"] + counts["changed"] + counts["failed"], counts["stale"]
    if not missing and not stale:
        return None
    parts = [f"{missing} not covered"] if missing else []
    parts += [f"{counts['changed']} of these changed by others"] if counts["changed"] else []
    parts += [f"{counts['failed']} of these failed"] if counts["failed"] else []
    parts += [f"{stale} stale"] if stale else []
    words = ["backfill", request.replay]
    words += [] if missing else ["--stale"]
    options = {"every": request.every, "since": request.since, "until": request.until}
    for name, value in options.items():
        words += [] if value is None else [f"--{name}", value]
    return CheckFailedError(
        "CAP-GAPS",
        f"replay {request.replay}: {len(survey.intervals)} intervals, {', '.join(parts)}",
        f"{command(*words)} fills them; --dry-run lists the runs",
    )


def _stretch_table(survey: Survey) -> Table:
    """A table of the intervals; adjacent ones in the same state share a row."""
    from capstan.backfill.interval import stretches

    rows = [
        (
            stretch[0].since,
            stretch[-1].until,
            len(stretch),
            str(stretch[0].state),
            stretch[0].missing,
            _few([name for part in stretch for name in (*part.runs, *part.changes)]),
        )
        for stretch in stretches(survey.intervals)
    ]
    plan = survey.plan
    title = f"{survey.declared.name}: {plan.inputs.tape.name} into {plan.request.into}"
    return table(title, ("since", "until", "intervals", "state", "missing", "runs"), rows)


def _few(names: Iterable[str]) -> str:
    different = list(dict.fromkeys(names))
    more = len(different) - _FEW
    return ", ".join(different[:_FEW]) + (f" and {more:,} more" if more > 0 else "")


def _counted(survey: Survey) -> str:
    counts = [f"{count:,} {state}" for state, count in survey.counts.items() if count]
    return f"{len(survey.intervals):,} intervals: {', '.join(counts) or 'nothing is on tape'}"


def _run_tables(result: BackfillResult) -> list[Table | str]:
    value: Json = result.to_json()
    about = [] if result.held is None else [f"no run may begin: {result.held.message}"]
    if not value["runs"]:
        return [f"nothing to do: {_counted(result.survey)}", *about]
    columns: dict[str, str | Callable[[Json], object]] = {
        "since": "since",
        "until": "until",
        "workers": lambda run: run["workers"] or run.get("workers_of") or "all",
        "records": "records",
        "version": "target_version",
        "run": "run",
        "": lambda run: _status(run, dry=result.request.dry_run),
    }
    titles = {"done": "done", "unchanged": "already published", "failed": "failed", "left": "left"}
    counts = [(title, cell_text(value[key])) for key, title in titles.items() if value[key]]
    if result.request.dry_run:
        counts += [(name.replace("_", " "), value[name]) for name in _POLICY]
    return [row_table("", columns, value["runs"]), facts("", counts), *about]


def _status(run: Json, *, dry: bool) -> str:
    if "error" in run:
        return str(run["error"])
    if run["run"] is None:
        return "would run" if dry else "not started"
    if run["unchanged"]:
        return "already published"
    return "waiting for approval" if run["published"] is False else "published"
