"""`staging`: what replays have staged and not published, and clearing away what is over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from capstan.cli.context import shell_of
from capstan.cli.output import table
from capstan.core.config import format_duration, parse_duration
from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    from capstan.replay.execution.staging import Staged


def staging(
    context: typer.Context,
    clean: Annotated[
        bool, typer.Option("--clean", help="Clear away what is over; else it is only told.")
    ] = False,
    keep: Annotated[
        str,
        typer.Option(
            help="How long what was rejected, has failed or was killed is kept.", metavar="LENGTH"
        ),
    ] = "30 days",
) -> int:
    """List what replays have staged and not published; --clean clears away what is over.

    What waits to be published is never cleared away.
    """
    from capstan.replay.execution.staging import clear_staged, list_staged

    shell = shell_of(context)
    shell.lake.require()
    kept, now = _length(keep), datetime.now(UTC)
    found = list_staged(shell.lake, now)
    over = [each for each in found if each.is_over(now, kept)]
    cleared = clear_staged(shell.lake, over, now, kept) if clean else []
    rows = [_row(each, now, kept) for each in found]
    size = sum(each.bytes for each in over)
    done = "are cleared away" if clean else "would be cleared away by --clean"
    shell.output.answer(
        {"keep": format_duration(kept), "staged": rows, "over": len(over), "cleared": cleared},
        table(
            "",
            ("staged", "of a run that", "last step", "bytes", "over"),
            [(row["name"], row["why"], row["at"], row["bytes"], row["over"]) for row in rows],
        ),
        f"{len(over)} of {len(found)}, {size:,} bytes, {done}",
    )
    return 0


def _row(each: Staged, now: datetime, keep: timedelta) -> dict[str, object]:
    at = None if each.at is None else f"{each.at:%Y-%m-%dT%H:%M:%SZ}"
    about = {"name": each.name, "run": each.run, "why": str(each.why), "at": at}
    return {**about, "bytes": each.bytes, "over": each.is_over(now, keep)}


def _length(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidRequestError("CAP-USAGE", f"--keep: {error}", "such as '30 days'") from None
