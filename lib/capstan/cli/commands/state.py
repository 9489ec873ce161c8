"""`state`: snapshots of followed pipelines, and rescaling them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from capstan.cli.commands.explain import known
from capstan.cli.context import Shell, shell_of
from capstan.cli.output import row_table
from capstan.cli.progress import Work
from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    from capstan.replay.snapshots import Snapshot, Taken

_USAGE = "capstan state PIPELINE, or capstan state PIPELINE rescale N"


def state(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline's name.")],
    action: Annotated[
        str | None, typer.Argument(metavar="rescale", help="Redistribute the newest state.")
    ] = None,
    peers: Annotated[
        int | None,
        typer.Argument(metavar="N", help="The new number of replay workers.", min=1, max=10_000),
    ] = None,
    into: Annotated[
        list[str] | None,
        typer.Option(help="Only state followed into this table; repeatable.", metavar="TABLE"),
    ] = None,
) -> int:
    """Show the snapshots of a followed pipeline: workers, keys, sizes; or rescale the newest.

    Each run of a followed pipeline continues from the snapshot of the previous run. A rescaled
    snapshot takes effect only after a check: it must have the same keys, each with its owner. If
    the pipeline is followed into several tables, choose with --into which state to rescale.
    """
    from capstan.replay.planning.target_places import target_path
    from capstan.replay.snapshots import list_taken

    shell = shell_of(context)
    shell.lake.require()
    known(shell.declarations().pipelines).get(name)
    if (action, peers) != (None, None) and (action != "rescale" or peers is None):
        raise InvalidRequestError("CAP-USAGE", f"unknown action: {action}", _USAGE)
    snapshots = list_taken(shell.lake, name)
    if into:
        config = shell.declarations()
        paths = {target_path(shell.lake, config, target)[0] for target in into}
        snapshots = [taken for taken in snapshots if taken.history.last.target in paths]
    if peers is not None:
        return _rescale(shell, name, snapshots, peers, named=bool(into))
    rows = [_row(shell, taken) for taken in snapshots]
    columns = {
        "snapshot": "snapshot", "its run": "is", "replay workers": "peers", "keys": "keys",
        "rows": "rows", "bytes": "bytes", "read up to": "frontier",
    }  # fmt: skip
    shell.output.result(
        {"pipeline": name, "snapshots": rows},
        row_table(f"state of {name}", columns, rows),
        *([] if rows else ["none: only runs with --follow keep state"]),
    )
    return 0


def _rescale(shell: Shell, name: str, snapshots: list[Taken], peers: int, *, named: bool) -> int:
    newest = {taken.history.last.target: taken for taken in snapshots if taken.standing}
    if not newest:
        raise InvalidRequestError(
            "CAP-STATE",
            f"pipeline {name} has no snapshot that a run could continue from",
            "follow it first: capstan replay STREAM --pipeline PIPELINE --follow NAME",
            pipeline=name,
        )
    if len(newest) > 1 and not named:
        raise InvalidRequestError(
            "CAP-STATE",
            f"pipeline {name} is followed into {len(newest)} tables: {', '.join(sorted(newest))}",
            "choose the state to rescale with --into TABLE; repeatable",
            pipeline=name,
            targets=sorted(newest),
        )
    from capstan.replay.output.state_resume import rescale_state

    with shell.spark(Work(f"rescale {name}")) as spark:
        made = [
            rescale_state(spark, shell.lake, shell.declarations(), taken, peers)
            for taken in newest.values()
        ]
    shell.output.result(
        {"pipeline": name, "rescaled": [snapshot.to_json() for snapshot in made]},
        *[_rescaled_line(snapshot) for snapshot in made],
    )
    return 0


def _rescaled_line(snapshot: Snapshot) -> str:
    keys = sum(snapshot.keys.values())
    return (
        f"{snapshot.name}: {keys} keys in {snapshot.rows} rows, each checked to be with its owner "
        f"among {snapshot.peers} replay workers; the next run continues from this snapshot"
    )


def _row(shell: Shell, taken: Taken) -> dict[str, object]:
    from capstan.core.config import split_streams
    from capstan.storage.tape.tape import open_tape

    now = taken.on(None)
    is_now = "stands" if taken.history.published else "was taken back"
    stream = split_streams(taken.history.last.stream)[0]
    time_type = open_tape(shell.lake, stream, stamps=True).time_type
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
        "held": {worker: dict(counts) for worker, counts in now.held.items()},
        "rows": now.rows,
        "waiting": now.waiting,
        "bytes": now.bytes,
        "frontier": frontier or ["closed"],
    }
