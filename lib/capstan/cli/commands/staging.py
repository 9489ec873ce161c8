"""`staging`: lists and deletes staged output that was never published."""

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
        bool, typer.Option("--clean", help="Delete expired output; without it, only list.")
    ] = False,
    keep: Annotated[
        str,
        typer.Option(
            help="How long to keep output of rejected, failed and killed runs.", metavar="LENGTH"
        ),
    ] = "30 days",
) -> int:
    """List staged output that was not published; --clean deletes what has expired.

    Output that waits to be published is never deleted.
    """
    from capstan.replay.execution.staging import clear_staged, list_staged

    shell = shell_of(context)
    shell.lake.require()
    kept, now = _length(keep), datetime.now(UTC)
    outputs = list_staged(shell.lake, now)
    over = [output for output in outputs if output.is_over(now, kept)]
    cleared = clear_staged(shell.lake, over, now, kept) if clean else []
    rows = [_row(output, now, kept) for output in outputs]
    size = sum(output.bytes for output in over)
    done = "deleted" if clean else "would be deleted by --clean"
    shell.output.answer(
        {"keep": format_duration(kept), "staged": rows, "over": len(over), "cleared": cleared},
        table(
            "",
            ("staged", "its run", "last step", "bytes", "expired"),
            [(row["name"], row["why"], row["at"], row["bytes"], row["over"]) for row in rows],
        ),
        f"{len(over)} of {len(outputs)}, {size:,} bytes, {done}",
    )
    return 0


def _row(output: Staged, now: datetime, keep: timedelta) -> dict[str, object]:
    at = None if output.at is None else f"{output.at:%Y-%m-%dT%H:%M:%SZ}"
    about = {"name": output.name, "run": output.run, "why": str(output.why), "at": at}
    return {**about, "bytes": output.bytes, "over": output.is_over(now, keep)}


def _length(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidRequestError("CAP-USAGE", f"--keep: {error}", "such as '30 days'") from None
