"""Names that people give: checked before they become paths, columns or SQL."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from capstan.errors import InvalidRequestError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://[^/]")
# Space and the C0 and C1 controls end a path early in one tool or another; the rest ends SQL text.
_NOT_IN_PATHS = re.compile("[\\x00-\\x1f\\x7f-\\x9f'\"`;]")
READ_OTHERWISE = re.compile(r"\\|%[0-9A-Fa-f]{2}")
"""What readers of Delta tables without a JVM take for another character, as that of a URI."""
_LONGEST_PATH = 1024
_LONGEST_SHOWN = 80

NAME_RULE = "a lower-case letter, then up to 63 lower-case letters, digits or underscores"
COLUMN_RULE = "up to 128 letters, digits and underscores, and does not begin with a digit"


def check_name(kind: str, name: str) -> str:
    """Return `name` when it may name a stream, table, transform or replay.

    Args:
        kind: What is named, for the message: `stream`, `table`.
        name: The text to check.

    Raises:
        InvalidRequestError: `CAP-NAME` when it is anything but `[a-z][a-z0-9_]{0,63}`.
    """
    if is_name(name):
        return name
    raise InvalidRequestError(
        "CAP-NAME",
        f"{_shown(name)} cannot name a {kind}",
        f"a name is {NAME_RULE}",
        kind=kind,
        name=name,
    )


def is_name(name: str) -> bool:
    """Whether `name` may name a stream, table, transform or replay."""
    return _NAME.fullmatch(name) is not None


def check_column(name: str) -> str:
    """Return `name` when it may name a column.

    Raises:
        InvalidRequestError: `CAP-NAME` when it is anything else.
    """
    if _COLUMN.fullmatch(name):
        return name
    raise InvalidRequestError(
        "CAP-NAME",
        f"{_shown(name)} cannot name a column",
        f"a column's name is {COLUMN_RULE}",
        kind="column",
        name=name,
    )


def check_target(text: str) -> str:
    """Return a target: a table's name, or the absolute path or URI of a Delta table.

    Slashes at the end are taken off. Nothing is opened: a path may be of a table yet to be made.
    A table has one path: two that differ are of two tables.

    Raises:
        InvalidRequestError: `CAP-NAME` when it is neither, could step out of the folder it names,
            or says in a roundabout way what a shorter path says.
    """
    if "/" not in text:
        return check_name("table", text)
    problem = _path_problem(text)
    if problem is None:
        return text.rstrip("/")
    raise InvalidRequestError(
        "CAP-NAME",
        f"{_shown(text)} cannot be a target: {problem}",
        f"give a table's name ({NAME_RULE}), or a path such as /data/march or s3a://bucket/march",
        kind="target",
        name=text,
    )


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A clause `, did you mean 'x'?` when one of `known` is near to `given`, else nothing."""
    near = difflib.get_close_matches(given, sorted(known), n=1, cutoff=0.6)
    return f", did you mean '{near[0]}'?" if near else ""


def one_of(known: Iterable[str]) -> str:
    """The words of `known` as `a, b or c`, in the order given; `nothing` when there are none."""
    words = list(known)
    if not words:
        return "nothing"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _path_problem(text: str) -> str | None:
    if len(text) > _LONGEST_PATH:
        return f"it is longer than {_LONGEST_PATH} characters"
    if _NOT_IN_PATHS.search(text) or READ_OTHERWISE.search(text):
        return "it has a quote, a semicolon, a backslash, '%' with two digits, or a control in it"
    if ".." in re.split(r"[/\\]", text):
        return "it has '..' in it"
    scheme = _SCHEME.match(text)
    if not text.startswith("/") and not scheme:
        return "a path begins with '/' or with a scheme such as 's3a://'"
    if text.startswith("file:"):
        return "a folder of this machine is named by its path alone"
    if not text.strip("/"):
        return "it is the root of all files"
    inside = text[scheme.end() :] if scheme else text[1:]
    if {"", "."} & set(inside.rstrip("/").split("/")[1 if scheme else 0 :]):
        return "it has '.' or nothing between two slashes"
    return None


def _shown(text: str) -> str:
    """`text` on one line, shortened, with what does not print escaped."""
    return repr(text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "...")
