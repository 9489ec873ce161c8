"""Rules for registered SQL: normalised text for its hash, and checks that it is deterministic."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

# Longest alternative first. Raw strings keep their backslashes, so they end at the first quote.
_TOKEN = re.compile(
    r"""
    (?P<text> \b[rR](?:'[^']*'|"[^"]*")
            | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `[^`]*` )
  | (?P<skip> --[^\n]* | /\*.*?\*/ | \s+ )
  | (?P<word> [A-Za-z_][A-Za-z0-9_]* )
  | (?P<sign> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_Token = tuple[str, str]
_QUERY_WORDS = ("select", "with", "from")
# The same computation must give the same rows anywhere, so SQL must not depend on chance, clock,
# data layout, machine or session. Dependence on row order, as of `first`, is found in Spark's plan
# (`capstan.replay.order`): for rows with a defined order the result is stable.
_UNSTABLE = frozenset((
    "current_date", "current_time", "current_timestamp", "curdate", "now", "localtimestamp",
    "getdate", "rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle", "tablesample",
    "monotonically_increasing_id", "spark_partition_id", "input_file_name",
    "input_file_block_start", "input_file_block_length", "current_timezone", "current_catalog",
    "current_database", "current_schema", "current_path", "current_user", "session_user", "user",
    "version", "reflect", "try_reflect", "java_method", "python_worker_logs",
))  # fmt: skip
# With fewer arguments, the first reads the clock and the second a random initial value.
_UNSTABLE_BELOW = {"unix_timestamp": 1, "aes_encrypt": 5}
# These functions may be called without brackets; so may `user`, if no column has that name.
_BARE = frozenset((
    "current_date", "current_time", "current_timestamp", "localtimestamp", "current_user",
    "session_user", "current_path",
))  # fmt: skip
_MOMENT = re.compile(
    r"""[rR]?['"]\s*(now|today|tomorrow|yesterday)(\s[^'"]*)?['"]""", re.IGNORECASE
)
_OF_TIME = frozenset(("date", "timestamp", "timestamp_ntz", "timestamp_ltz"))
_TO_TIME = _OF_TIME | {
    f"{trying}{name}"
    for trying in ("", "try_")
    for name in ("cast", *(f"to_{each}" for each in _OF_TIME))
}


def normalised(sql: str) -> str:
    """`sql` without comments and with single spaces; quoted text is unchanged."""
    return "".join(text if kind != "skip" else " " for kind, text in _squeezed(sql)).strip()


def problem_with_query(sql: str) -> str | None:
    """The reason why `sql` cannot be a transform's query, or None."""
    words = [text.lower() for kind, text in _squeezed(sql) if kind == "word"]
    if not words or words[0] not in _QUERY_WORDS:
        return "is not a query; start with SELECT or WITH"
    if "records" not in words and "`records`" not in sql:
        return "does not read the view 'records', which has the replayed records"
    return problem_with_expression(sql)


def problem_with_expression(sql: str) -> str | None:
    """The reason why `sql` is not one deterministic expression or query, or None."""
    tokens = [(kind, text) for kind, text in _squeezed(sql) if kind != "skip"]
    if not tokens:
        return "is empty"
    if any(kind == "sign" and text == ";" for kind, text in tokens):
        return "contains a ';'; write one statement without it"
    for index in range(len(tokens)):
        if _calls_unstable(tokens, index):
            return (
                f"calls {tokens[index][1].strip('`')}, which depends on clock, chance, machine or "
                "session; use values of the records"
            )
        if _names_moment(tokens, index):
            return moment_problem(tokens[index][1])
    return None


def problem_with_columns(sql: str) -> str | None:
    """The reason why `sql` is not a deterministic expression over the columns of a row, or None."""
    tokens = [text.lower() for kind, text in _squeezed(sql) if kind != "skip"]
    if tokens[:1] == ["select"]:
        return "starts with SELECT; write the expressions without SELECT"
    if ("(", "select") in pairwise(tokens):
        return "has a subquery, whose table changes; use the columns of the record"
    return problem_with_expression(sql)


def select_list(text: str) -> list[str]:
    """The expressions of a SELECT list: what stands between commas outside of brackets."""
    items, depth = [""], 0
    for kind, part in _squeezed(text):
        depth += kind == "sign" and (part in "([") - (part in ")]")
        if kind == "sign" and part == "," and depth == 0:
            items.append("")
        else:
            items[-1] += " " if kind == "skip" else part
    return [item.strip() for item in items]


def without_stars(sql: str, columns: str) -> str:
    """`sql` with `columns`, a list, in place of each `*` that stands for all columns."""
    tokens = list(_squeezed(sql))
    solid = [i for i, (kind, _) in enumerate(tokens) if kind != "skip"]
    texts = ["", *(tokens[i][1] for i in solid), ""]
    stars = {
        i
        for place, i in enumerate(solid, 1)
        if tokens[i] == ("sign", "*")
        and texts[place - 1] in ("", "(", ",")
        and texts[place + 1] in ("", ")", ",")
    }
    return "".join(
        columns if i in stars else " " if kind == "skip" else text
        for i, (kind, text) in enumerate(tokens)
    )


def moments(sql: str) -> list[str]:
    """Quoted texts in `sql` that Spark reads from the clock when cast to a time, in order."""
    return [text for kind, text in _squeezed(sql) if kind == "text" and _MOMENT.fullmatch(text)]


def moment_problem(text: str) -> str:
    """The problem of such a text in a place where it becomes a time."""
    return f"takes the moment {text} from the clock; use values of the records"


def _calls_unstable(tokens: list[_Token], index: int) -> bool:
    """Whether an unstable function is called at this token; a column may have the same name."""
    kind, text = tokens[index]
    name = text.strip("`").lower()
    if kind != "word" and not text.startswith("`"):
        return False
    if tokens[index + 1 : index + 2] == [("sign", "(")]:
        least = _UNSTABLE_BELOW.get(name, 0)
        return name in _UNSTABLE or (least > 0 and _arguments(tokens[index + 2 :]) < least)
    before = tokens[index - 1][1].lower() if index else ""
    return kind == "word" and name in _BARE and before not in (".", "as")


def _arguments(tokens: list[_Token]) -> int:
    """The number of arguments of a call, from the tokens after its bracket."""
    depth, commas = 0, 0
    for index, (kind, text) in enumerate(tokens):
        if kind != "sign":
            continue
        if text == ")" and depth == 0:
            return 0 if index == 0 else commas + 1
        depth += (text in "([") - (text in ")]")
        commas += text == "," and depth == 0
    return commas + 1


def _names_moment(tokens: list[_Token], index: int) -> bool:
    """Whether a text here becomes a time that Spark reads from the clock: `DATE 'today'`."""
    kind, text = tokens[index]
    if kind != "text" or not _MOMENT.fullmatch(text):
        return False
    before = ["", "", *(text.lower() for _, text in tokens[max(index - 2, 0) : index])][-2:]
    typed = before[1] in _OF_TIME or (before[1] == "(" and before[0] in _TO_TIME)
    return typed or tokens[index + 1 : index + 3] == [("sign", ":")] * 2


def _squeezed(sql: str) -> Iterator[_Token]:
    """Tokens as (kind, text); adjacent whitespace and comments are one `skip`."""
    last = ""
    for match in _TOKEN.finditer(sql):
        kind = match.lastgroup or ""
        if not (kind == last == "skip"):
            yield kind, match.group()
        last = kind
