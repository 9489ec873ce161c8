"""Variables of the environment that name a place."""

from __future__ import annotations

import os

from capstan.errors import InvalidRequestError

DEFAULT_LAKE = "./lake"


def named_by(variable: str) -> str | None:
    """The place that a variable names; None if it is not set."""
    value = os.environ.get(variable)
    if value is not None and not value.strip():
        raise InvalidRequestError(
            "CAP-REQUEST", f"{variable} is empty", "name the place, or unset it", key=variable
        )
    return value


def config_file() -> str | None:
    """The declaration file that `CAPSTAN_CONFIG` names, or `CAPSTAN_STREAMS`, its former name."""
    return named_by("CAPSTAN_CONFIG") or named_by("CAPSTAN_STREAMS")


def lake_of(given: str | os.PathLike[str] | None) -> str:
    """The lake that was given; else that of `CAPSTAN_LAKE`, or the default one."""
    return named_by("CAPSTAN_LAKE") or DEFAULT_LAKE if given is None else os.fspath(given)
