"""Rules for names, checked before the names become paths, columns or SQL."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from capstan.errors import InvalidRequestError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_ATTEMPT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_IN_CATALOG = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}(?:\.[A-Za-z_][A-Za-z0-9_]{0,127}){1,3}")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://[^/]")
# Space and control characters end a path early in some tools; the others end SQL text.
_NOT_IN_PATHS = re.compile("[\\x00-\\x1f\\x7f-\\x9f'\"`;]")
READ_OTHERWISE = re.compile(r"[\\\[\]^|\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}")
"""What delta-rs takes in a path for another character, as in a URI, or does not take at all."""
_S3 = re.compile(r"^s3[an]?://", re.IGNORECASE)
# A name of a list and the blanks around it, up to the next comma.
_LISTED = re.compile(
    r'\s*(?:"(?P<quoted>(?:[^"]|"")*)"|(?P<plain>(?:[^,"\s][^,]*?)?))\s*(?=,|\Z)', re.DOTALL
)
_MAX_PATH = 1024
_MAX_SHOWN = 80

_NAME_RULE = "a lower-case letter, then up to 63 lower-case letters, digits or underscores"
_ATTEMPT_RULE = "a letter or digit, then up to 199 letters, digits, dots, hyphens or underscores"
_COLUMN_RULE = "up to 128 letters, digits and underscores, and does not begin with a digit"


def check_name(kind: str, name: str) -> str:
    """Return `name` if it is valid for an object of a `kind` such as `stream`."""
    return _checked(kind, name, _NAME, f"a name is {_NAME_RULE}")


def check_column(name: str) -> str:
    """Return `name` when it may name a column."""
    return _checked("column", name, _COLUMN, f"a column's name is {_COLUMN_RULE}")


def check_attempt(name: str) -> str:
    """Return `name` when it may name an attempt of a job."""
    return _checked("attempt", name, _ATTEMPT, f"an attempt's name is {_ATTEMPT_RULE}")


def _checked(kind: str, name: str, allowed: re.Pattern[str], rule: str) -> str:
    if allowed.fullmatch(name):
        return name
    article = "an" if kind[0] in "aeiou" else "a"
    raise _refused(kind, name, f"cannot name {article} {kind}", rule)


def _refused(kind: str, name: str, problem: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError("CAP-NAME", f"{_shown(name)} {problem}", hint, kind=kind, name=name)


def is_name(name: str) -> bool:
    """Whether `name` may name a stream, table, transform or replay."""
    return _NAME.fullmatch(name) is not None


def check_target(text: str, kind: str = "target") -> str:
    """Return a target: a table's name, or the absolute path or URI of a Delta table.

    A name with dots is that of a table in a catalog, as a name in the lake has none. Slashes at the
    end are taken off. Nothing is opened: a path may be of a table yet to be made. A table has one
    path: two that differ are of two tables.
    """
    if is_catalog_name(text):
        return text
    if "/" not in text:
        return check_name("table", text)
    problem = _path_problem(text)
    if problem is None:
        return one_spelling(text).rstrip("/")
    hint = (
        f"give a table's name ({_NAME_RULE}), or a path such as /data/march or s3a://bucket/march"
    )
    raise _refused(kind, text, f"cannot be a {kind}: {problem}", hint)


def check_declared_target(text: str) -> str:
    """Return the name or path of a target in `streams.yaml`, as `check_target`."""
    if not is_catalog_name(text):
        return check_target(text)
    hint = f"declare a target with `table: {text}`, and name that target"
    raise _refused("target", text, "is the name of a table in a catalog", hint)


def check_root(text: str) -> str:
    """Return a folder or URI below which forms may name targets, as `check_target` returns it."""
    problem = _path_problem(text)
    if problem is None:
        return one_spelling(text).rstrip("/")
    hint = "give a folder such as /data/tables, or a URI such as s3a://bucket/tables"
    raise _refused("root", text, f"cannot be a root: {problem}", hint)


def is_catalog_name(text: str) -> bool:
    """Whether `text` is the name of a table in a catalog, with its schema, that needs no quotes."""
    return _IN_CATALOG.fullmatch(text) is not None and "." in normalised(text)


def normalised(name: str) -> str:
    """A name of a catalog's table without quotes, in lower case: equal for the same table."""
    return name.replace("`", "").lower().removeprefix("spark_catalog.")


def one_spelling(path: str) -> str:
    """A path whose scheme, of the several for S3, is the one that Spark knows: `s3a`."""
    return _S3.sub("s3a://", path)


def split_names(text: str) -> list[str]:
    """The names in a comma-separated list, without blanks around them and without empty ones.

    A name with a comma, or with blanks at its ends, stands in double quotes; a quote inside is
    doubled: `EWR, "a,b", "5"" disk "`.
    """
    names: list[str] = []
    place = 0
    while place < len(text):
        match = _LISTED.match(text, place)
        if match is None:
            raise ValueError(text)
        if match["quoted"] is not None:
            names.append(match["quoted"].replace('""', '"'))
        elif match["plain"]:
            names.append(match["plain"])
        place = match.end() + 1
    return names


def join_names(names: Iterable[str]) -> str:
    """The names as a list that `split_names` reads, each quoted if it must be."""
    return ", ".join(
        name
        if name == name.strip() and name and "," not in name and not name.startswith('"')
        else '"{}"'.format(name.replace('"', '""'))
        for name in names
    )


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The clause `, did you mean 'x'?` if one of `known` is similar to `given`, else nothing."""
    near = difflib.get_close_matches(given, sorted(known), n=1, cutoff=0.6)
    return f", did you mean '{near[0]}'?" if near else ""


def one_of(known: Iterable[str]) -> str:
    """The words as `a, b or c`, in the order given; `nothing` without words."""
    words = list(known)
    if not words:
        return "nothing"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _path_problem(text: str) -> str | None:
    if len(text) > _MAX_PATH:
        return f"it is longer than {_MAX_PATH} characters"
    if _NOT_IN_PATHS.search(text) or READ_OTHERWISE.search(text):
        return (
            "it has a quote, semicolon, backslash, one of []^|, '%' with two digits, or control "
            "character"
        )
    if ".." in re.split(r"[/\\]", text):
        return "it contains '..'"
    scheme = _SCHEME.match(text)
    if not text.startswith("/") and not scheme:
        return "a path starts with '/' or with a scheme such as 's3a://'"
    if text.startswith("file:"):
        return "a local folder is given by its path alone"
    if not text.strip("/"):
        return "it is the root of all files"
    inside = text[scheme.end() :] if scheme else text[1:]
    if {"", "."} & set(inside.rstrip("/").split("/")[1 if scheme else 0 :]):
        return "it has '.' or an empty part between two slashes"
    return None


def _shown(text: str) -> str:
    """`text` on one line, shortened, with non-printing characters escaped."""
    return repr(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "...")
