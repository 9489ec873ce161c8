"""Arguments and options that several commands have, and how their text is read."""

from __future__ import annotations

from typing import Annotated

import typer

from capstan.errors import InvalidRequestError

Stream = Annotated[str, typer.Argument(help="The stream's name.", metavar="STREAM")]
Run = Annotated[str, typer.Argument(help="The run, as `capstan runs` names it.", metavar="RUN")]
Workers = Annotated[
    str | None,
    typer.Option(help="Labels or numbers of workers, by commas; all by default.", metavar="LIST"),
]
Since = Annotated[
    str | None,
    typer.Option(help="First time, such as 2013-03-01, 17 or epoch=3; from the start by default."),
]
Until = Annotated[
    str | None,
    typer.Option(help="First time after the range; all complete times by default."),
]
KnownAt = Annotated[
    int | None,
    typer.Option(help="The last epoch played, of a bitemporal stream: as known then."),
]
AsOf = Annotated[
    int | None,
    typer.Option(help="The cut: a commit of the tape; the newest by default.", metavar="CUT"),
]
Into = Annotated[
    str | None,
    typer.Option(
        help="The target: a table of the lake, a declared target or a Delta path; by default that "
        "of the pipeline's sink.",
        metavar="TABLE",
    ),
]


def names(text: str | None, option: str) -> tuple[str, ...] | None:
    """The names of a list by commas; None when the option was not given.

    Raises:
        InvalidRequestError: `CAP-LIST` when no name is in it.
    """
    if text is None:
        return None
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise InvalidRequestError(
            "CAP-LIST",
            f"{option} names nothing: {text[:80]!r}",
            "give names separated by commas, or leave the option out",
            option=option,
        )
    return found
