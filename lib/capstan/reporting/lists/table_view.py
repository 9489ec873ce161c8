"""Read models of the tables that replays have written, and of the runs that wrote them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial

from capstan.core.config import split_streams
from capstan.errors import CapstanError
from capstan.reporting.lists.paging import first_of
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import Covered, current_rows, parse_covered
from capstan.storage.ledger.tables import LedgerRow, read_rows
from capstan.storage.tape import index
from capstan.storage.tape.tape import newest_cut, open_tape

_LISTED = ("target", "run", "stream", "state", "at")


@dataclass(frozen=True, slots=True)
class TableView:
    """A table with published runs."""

    target: str
    streams: tuple[str, ...]  # whose records it holds, sorted
    runs: int
    newest: datetime  # when the newest run published


@dataclass(frozen=True, slots=True)
class WrittenView:
    """The rows that one run has published in a table."""

    covered: Covered
    workers: tuple[str, ...] | None  # labels; None for all
    since: object  # the first time; None from the start
    until: object  # the first time after; None for no end
    at: datetime
    over: bool  # whether a later run has overwritten part

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of its streams."""
        return _names(self.covered.stream)


def list_tables(lake: Lake, visible: Collection[str]) -> list[TableView]:
    """Tables by path that `visible` runs have published in; deleted tables are left out."""
    by_target: dict[str, list[LedgerRow]] = {}
    for run, written in current_rows(read_rows(lake, "coverage", _LISTED)).items():
        if run in visible:
            by_target.setdefault(str(written[0]["target"]), []).append(written[0])
    return [
        TableView(
            path,
            tuple(sorted({name for row in rows for name in _names(row["stream"])})),
            len(rows),
            max(row["at"] for row in rows),
        )
        for path, rows in sorted(by_target.items())
        if is_table(path)
    ]


def view_written(
    lake: Lake, visible: Collection[str], target: str, number: int, size: int
) -> tuple[list[WrittenView], int]:
    """A page of what `visible` runs have published in a table, the newest first, and their number.

    A deleted table, and one that nothing is published in, have none.
    """
    current = current_rows(read_rows(lake, "coverage", target=target))
    if not current or not is_table(target):
        return [], 0
    publishes = sorted(current.values(), key=lambda rows: -rows[0]["target_version"])
    places = [i for i, rows in enumerate(publishes) if rows[0]["run"] in visible]
    first = first_of(number, size)
    shown = places[first : first + size]
    # Of all publishes, only those on the page and later ones are parsed.
    parsed = [parse_covered(rows) for rows in publishes[: shown[-1] + 1]] if shown else []
    labels = cache(partial(_worker_labels, lake))
    scopes = [covered.scope for covered in parsed]
    views = [_written(parsed[i], publishes[i][0], scopes[:i], labels) for i in shown]
    return views, len(places)


def _written(
    covered: Covered,
    row: LedgerRow,
    later: Collection[Scope],
    labels: Callable[[str], Mapping[int, str]],
) -> WrittenView:
    of, numbers = labels(covered.stream), covered.scope.workers
    workers = None if numbers is None else tuple(of.get(n, str(n)) for n in numbers)
    over = any(covered.scope.overlaps(scope) for scope in later)
    return WrittenView(
        covered, workers, _bound(row["since"]), _bound(row["until"]), row["at"], over
    )


def _worker_labels(lake: Lake, stream: str) -> Mapping[int, str]:
    """The labels of a stream's workers; a deleted tape has none."""
    try:
        # Workers that several streams keep are the same in all of them.
        tape = open_tape(lake, split_streams(stream)[0], stamps=True)
        return index.worker_labels(tape, newest_cut(tape))
    except CapstanError:
        return {}


def _names(stream: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(split_streams(stream)))


def _bound(text: object) -> object:
    """A bound as JSON: a list for several coordinates, else its text."""
    return json.loads(text) if isinstance(text, str) and text.startswith("[") else text
