"""`state`: what followed pipelines know, and dealing it to more or fewer replay workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from capstan.cli.commands.explain import known
from capstan.cli.context import Shell, shell_of
from capstan.cli.output import table
from capstan.cli.progress import Work
from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    from capstan.replay.planning.snapshot_catalog import Taken
    from capstan.replay.planning.snapshot_ledger import Snapshot

_USAGE = "capstan state PIPELINE, or capstan state PIPELINE rescale N"


def state(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline's name.")],
    action: Annotated[
        str | None, typer.Argument(metavar="rescale", help="Deal the newest state anew.")
    ] = None,
    peers: Annotated[
        int | None,
        typer.Argument(metavar="N", help="To so many replay workers.", min=1, max=10_000),
    ] = None,
    into: Annotated[
        list[str] | None,
        typer.Option(
            help="Only of what is followed into this table; again for more.", metavar="TABLE"
        ),
    ] = None,
) -> int:
    """Show the snapshots of a followed pipeline: workers, keys, sizes; or rescale the newest.

    Each run of a followed pipeline goes on from the snapshot of the one before. A rescaled one is
    proved to have the same keys, each with the worker that owns it, before it counts. Of a pipeline
    that is followed into several tables --into says for which the state is rescaled.
    """
    from capstan.replay.planning.snapshot_catalog import list_taken

    shell = shell_of(context)
    shell.lake.require()
    known(shell.declarations().pipelines).get(name)
    if (action, peers) != (None, None) and (action != "rescale" or peers is None):
        raise InvalidRequestError("CAP-USAGE", f"not a thing to do with state: {action}", _USAGE)
    found = list_taken(shell.lake, name)
    if into:
        paths = {_path(shell, table) for table in into}
        found = [each for each in found if each.history.last.target in paths]
    if peers is not None:
        return _rescale(shell, name, found, peers, named=bool(into))
    rows = [_row(shell, each) for each in found]
    columns = ("snapshot", "run that", "replay workers", "keys", "rows", "bytes", "read up to")
    shown = ("snapshot", "is", "peers", "keys", "rows", "bytes", "frontier")
    shell.output.answer(
        {"pipeline": name, "snapshots": rows},
        table(
            f"state of {name}",
            columns,
            [[row[name] for name in shown] for row in rows],
        ),
        *([] if rows else ["none: only runs with --follow keep their state"]),
    )
    return 0


def _rescale(shell: Shell, name: str, found: list[Taken], peers: int, *, named: bool) -> int:
    newest = {each.history.last.target: each for each in found if each.standing}
    if not newest:
        raise InvalidRequestError(
            "CAP-STATE",
            f"pipeline {name} has no snapshot that a run could go on from",
            "follow it first: capstan replay STREAM --pipeline PIPELINE --follow NAME",
            pipeline=name,
        )
    if len(newest) > 1 and not named:
        raise InvalidRequestError(
            "CAP-STATE",
            f"pipeline {name} is followed into {len(newest)} tables: {', '.join(sorted(newest))}",
            "say with --into TABLE for which its state is to be rescaled; again for more",
            pipeline=name,
            targets=sorted(newest),
        )
    from capstan.replay.output.state_resume import rescale_state

    with shell.spark(Work(f"rescale {name}")) as spark:
        made = [
            rescale_state(spark, shell.lake, shell.declarations(), each, peers)
            for each in newest.values()
        ]
    shell.output.answer(
        {"pipeline": name, "rescaled": [each.to_json() for each in made]},
        *[_told(each) for each in made],
    )
    return 0


def _told(made: Snapshot) -> str:
    keys = sum(made.keys.values())
    return (
        f"{made.name}: {keys} keys in {made.rows} rows, proved to be with their owners among "
        f"{made.peers} replay workers; the next run goes on from there"
    )


def _path(shell: Shell, into: str) -> str:
    from capstan.replay.planning.plan import target_path

    return target_path(shell.lake, shell.declarations(), into)[0]


def _row(shell: Shell, taken: Taken) -> dict[str, object]:
    from capstan.storage.tape.tape import open_tape

    now = taken.on(None)
    is_now = "stands" if taken.history.published else "was taken back"
    time_type = open_tape(shell.lake, taken.history.last.stream).time_type
    frontier = [time_type.render(time) for time in now.frontier.elements]
    return {
        "snapshot": now.name,
        "run": taken.history.last.run,
        "target": taken.history.last.target,
        "is": "cleared" if taken.cleared else is_now,
        "peers": now.peers,
        "before": now.before,
        "keys": sum(now.keys.values()),
        "keys_by_operator": now.keys,
        "held": {worker: dict(mine) for worker, mine in now.held.items()},
        "rows": now.rows,
        "waiting": now.waiting,
        "bytes": now.bytes,
        "frontier": frontier or ["closed"],
    }
