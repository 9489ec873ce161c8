"""`gaps` and `backfill`: what a declared replay lacks of its range, and how it is filled."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from capstan.cli.context import shell_of
from capstan.cli.options import AsOf, Since, Until
from capstan.cli.output import cell, facts, table
from capstan.cli.progress import Work
from capstan.errors import CheckFailedError, InvalidRequestError

if TYPE_CHECKING:
    from capstan.backfill.planner import Backfill
    from capstan.backfill.run import Backfilled
    from capstan.backfill.survey import Survey

_FEW = 3

Replay = Annotated[
    str, typer.Argument(help="The replay, as the declarations name it.", metavar="REPLAY")
]
Every = Annotated[
    str | None,
    typer.Option(
        help="How long an interval is: '6 hours', or 100 where times are numbers; by default "
        "that of the replay's schedule, or the grain of its transform or sink, or 1 day.",
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
    """Say which intervals of a replay are covered, stale or missing; ends with 1 if any is not.

    Intervals whose times can still receive records are incomplete, and no gaps; nor are those for
    which a run waits to be approved. Those whose records were retired cannot be filled any more.
    """
    from capstan.backfill.planner import Backfill, surveyed

    shell = shell_of(context)
    asked = Backfill(replay, since=since, until=until, every=every, as_of=as_of)
    found = surveyed(shell.lake, shell.declarations(required=True), asked)
    refusal = _refusal(found, asked)
    told = {} if refusal is None else refusal.summary()
    shell.output.answer({**found.to_json(), **told}, _stretch_table(found), _counted(found))
    if refusal is None:
        return 0
    if not shell.output.to_json:
        shell.output.error(told)
    return refusal.exit_code


def backfill(
    context: typer.Context,
    replay: Replay,
    since: Since = None,
    until: Until = None,
    gaps: Annotated[
        bool, typer.Option("--gaps", help="What is not covered; this is the default.")
    ] = False,
    stale: Annotated[
        bool, typer.Option("--stale", help="What was written by other code than today's.")
    ] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="Gaps over which the last attempt has failed.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Everything that is complete.")] = False,
    order: Annotated[
        str, typer.Option(help="Which run comes first: oldest or newest.", metavar="ORDER")
    ] = "oldest",
    chunk: Annotated[
        int | None,
        typer.Option(
            min=1, help="Intervals a run has at most; by default one run over each stretch."
        ),
    ] = None,
    every: Every = None,
    as_of: AsOf = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Also replace rows that no replay has put there.")
    ] = False,
    direct: Annotated[
        bool, typer.Option("--direct", help="Write to the target at once, and audit it there.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be run.")] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on with the next run after one has failed.")
    ] = False,
) -> int:
    """Fill what is missing of a declared replay, run by run, in one Spark session.

    The same again goes on where this one was cut off; what stands is not done again.
    """
    from capstan.backfill.run import carry_out, prepare

    shell = shell_of(context)
    asked = _asked(context)
    declarations = shell.declarations(required=True)
    found = prepare(shell.lake, declarations, asked)
    if found.proposed and not dry_run:
        work = Work(f"backfill {replay}", ("backfill.run",) * len(found.proposed))
        with shell.spark(work) as spark:
            found = carry_out(spark, shell.lake, declarations, found)
    error = found.error
    told = {} if error is None else error.summary()
    shell.output.answer({**found.to_json(), **told}, *_run_tables(found))
    if error is None:
        return 0
    if not shell.output.to_json:
        shell.output.error(told)
    return error.exit_code


def _asked(context: typer.Context) -> Backfill:
    """The request of a command whose options are named like the request's fields.

    Raises:
        InvalidRequestError: `CAP-USAGE` for options that do not go together.
    """
    from capstan.backfill.planner import Backfill, BackfillMode, Order

    given = context.params
    flags = {
        BackfillMode.GAPS: "gaps",
        BackfillMode.STALE: "stale",
        BackfillMode.FAILED: "failed",
        BackfillMode.ALL: "everything",
    }
    chosen = [what for what, name in flags.items() if given[name]]
    problem = None
    if len(chosen) > 1:
        problem = f"--{chosen[0]} and --{chosen[1]} do not go together"
    elif given["order"] not in list(Order):
        problem = f"there is no order {given['order'][:80]!r}"
    if problem is not None:
        raise InvalidRequestError("CAP-USAGE", problem, "see `capstan backfill --help`")
    own = {name: given[name] for name in Backfill.__dataclass_fields__ if name in given}
    what = chosen[0] if chosen else BackfillMode.GAPS
    return Backfill(**{**own, "what": what, "order": Order(given["order"])})


def _refusal(found: Survey, asked: Backfill) -> CheckFailedError | None:
    """The error of a replay with gaps or stale intervals; None without any."""
    counts = found.counts
    missing, stale = counts["gap"] + counts["changed"] + counts["failed"], counts["stale"]
    if not missing and not stale:
        return None
    said = [f"{missing} not covered"] if missing else []
    said += [f"{counts['changed']} of which others have changed"] if counts["changed"] else []
    said += [f"{counts['failed']} of which have failed"] if counts["failed"] else []
    said += [f"{stale} stale"] if stale else []
    words = ["capstan", "backfill", asked.replay]
    words += [] if missing else ["--stale"]
    given = {"every": asked.every, "since": asked.since, "until": asked.until}
    for name, value in given.items():
        words += [] if value is None else [f"--{name}", value]
    return CheckFailedError(
        "CAP-GAPS",
        f"replay {asked.replay}: of {len(found.intervals)} intervals {', '.join(said)}",
        f"`{shlex.join(words)}` fills them; --dry-run shows with what",
    )


def _stretch_table(found: Survey) -> Table:
    """Adjacent intervals of which the same can be said as one row."""
    from capstan.backfill.interval import stretches

    rows = [
        (
            stretch[0].since,
            stretch[-1].until,
            len(stretch),
            str(stretch[0].state),
            stretch[0].missing,
            _few(
                list(
                    dict.fromkeys(name for each in stretch for name in (*each.runs, *each.changes))
                )
            ),
        )
        for stretch in stretches(found.intervals)
    ]
    title = f"{found.declared.name}: {found.plan.tape.name} into {found.plan.request.into}"
    return table(title, ("since", "until", "intervals", "state", "missing", "runs"), rows)


def _few(names: Sequence[str]) -> str:
    more = len(names) - _FEW
    return ", ".join(names[:_FEW]) + (f" and {more:,} more" if more > 0 else "")


def _counted(found: Survey) -> str:
    counts = [f"{count:,} {state}" for state, count in found.counts.items() if count]
    return f"{len(found.intervals):,} intervals: {', '.join(counts) or 'nothing is on tape'}"


def _run_tables(found: Backfilled) -> list[Table | str]:
    value = found.to_json()
    runs = value["runs"]
    assert isinstance(runs, list)
    if not runs:
        return [f"nothing to do: {_counted(found.survey)}"]
    columns = ("since", "until", "workers", "records", "version", "run", "")
    rows = [
        (
            each["since"],
            each["until"],
            "all" if each["workers"] is None else each["workers"],
            each["records"],
            each["target_version"],
            each["run"],
            _became(each, dry=found.asked.dry_run),
        )
        for each in runs
    ]
    summed = [(name, cell(value[name])) for name in ("done", "stood", "failed", "left")]
    return [table("", columns, rows), facts("", [each for each in summed if each[1] != "0"])]


def _became(run: dict[str, object], *, dry: bool) -> str:
    if "error" in run:
        return str(run["error"])
    if run["run"] is None:
        return "would be run" if dry else "not begun"
    if run["stood"]:
        return "stood already"
    return "waits for approval" if run["published"] is False else "published"
