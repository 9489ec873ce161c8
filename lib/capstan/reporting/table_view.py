"""Read models of tables that replays have written, with the published runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from itertools import chain

from capstan.core.config import split_streams
from capstan.errors import CapstanError
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import Covered, current_rows, parse_covered
from capstan.storage.ledger.tables import LedgerRow, read_rows
from capstan.storage.tape import index
from capstan.storage.tape.tape import newest_cut, open_tape


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
        return tuple(dict.fromkeys(split_streams(self.covered.stream)))


@dataclass(frozen=True, slots=True)
class TableView:
    """A table and its published runs, at least one, the newest first."""

    target: str
    written: tuple[WrittenView, ...]

    @property
    def streams(self) -> list[str]:
        """The streams whose records it holds, sorted."""
        return sorted(set(chain.from_iterable(publish.streams for publish in self.written)))


def view_tables(lake: Lake, visible: Collection[str], target: str | None = None) -> list[TableView]:
    """Tables by path with their `visible` published runs; deleted tables are left out."""
    rows = read_rows(lake, "coverage", **({} if target is None else {"target": target}))
    by_target: dict[str, dict[str, list[LedgerRow]]] = {}
    for run, written in current_rows(rows).items():
        by_target.setdefault(str(written[0]["target"]), {})[run] = written
    labels = cache(partial(_worker_labels, lake))
    views = [
        TableView(path, _written(runs, visible, labels))
        for path, runs in sorted(by_target.items())
        if is_table(path)
    ]
    return [view for view in views if view.written]


def _worker_labels(lake: Lake, stream: str) -> Mapping[int, str]:
    """The labels of a stream's workers; a deleted tape has none."""
    try:
        # Workers that several streams keep are the same in all of them.
        tape = open_tape(lake, split_streams(stream)[0])
        return index.worker_labels(tape, newest_cut(tape))
    except CapstanError:
        return {}


def _written(
    runs: Mapping[str, list[LedgerRow]],
    visible: Collection[str],
    labels: Callable[[str], Mapping[int, str]],
) -> tuple[WrittenView, ...]:
    publishes = [(parse_covered(rows), rows[0]) for rows in runs.values()]
    publishes.sort(key=lambda publish: -publish[0].target_version)
    views: list[WrittenView] = []
    later: list[Scope] = []
    for covered, row in publishes:
        if covered.run in visible:
            of, numbers = labels(covered.stream), covered.scope.workers
            workers = None if numbers is None else tuple(of.get(n, str(n)) for n in numbers)
            over = any(covered.scope.overlaps(scope) for scope in later)
            since, until = _bound(row["since"]), _bound(row["until"])
            views.append(WrittenView(covered, workers, since, until, row["at"], over))
        later.append(covered.scope)
    return tuple(views)


def _bound(text: object) -> object:
    """A bound as JSON: a list for several coordinates, else its text."""
    return json.loads(text) if isinstance(text, str) and text.startswith("[") else text
