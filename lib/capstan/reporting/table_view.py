"""Tables that replays have written, declared or not: which run has put what into them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from capstan.errors import CapstanError
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import current_rows
from capstan.storage.ledger.region_json import parse_region
from capstan.storage.ledger.tables import read_rows
from capstan.storage.tape import index
from capstan.storage.tape.tape import newest_cut, open_tape


@dataclass(frozen=True, slots=True)
class WrittenView:
    """What one run has put into a table, and stands.

    Attributes:
        run: The run.
        stream: Whose records.
        workers: Labels of the workers whose rows they are; None for those of all.
        since: The first time; None for the least.
        until: The first time after it; None for no end.
        transform: The transform, or `<pipeline>.<sink>`; empty for a copy.
        code: The hash of its code, empty for a copy.
        cut: The tape's commit that was played.
        version: The version of the table that the publish has made.
        at: When.
        over: Whether a later run has written over part of it.
    """

    run: str
    stream: str
    workers: tuple[str, ...] | None
    since: object
    until: object
    transform: str
    code: str
    cut: int
    version: int
    at: datetime
    over: bool


@dataclass(frozen=True, slots=True)
class TableView:
    """A table and what stands in it, the newest first.

    Attributes:
        target: Its path.
        written: At least one.
    """

    target: str
    written: tuple[WrittenView, ...]

    @property
    def streams(self) -> list[str]:
        """Whose records are in it, sorted."""
        return sorted({each.stream for each in self.written})


def view_tables(lake: Lake, seen: Collection[str], target: str | None = None) -> list[TableView]:
    """Tables with what stands in them, by path, as far as it is of runs among those `seen`.

    Nothing stands in a table that is gone.

    Args:
        lake: The lake.
        seen: Names of the runs that are shown.
        target: The path of the only table that is asked about; None for all.
    """
    rows = read_rows(lake, "coverage", **({} if target is None else {"target": target}))
    found: dict[str, dict[str, list[Mapping[str, object]]]] = {}
    for run, written in current_rows(rows).items():
        found.setdefault(str(written[0]["target"]), {})[run] = written
    labels = _Labels(lake)
    views = [
        TableView(path, _written(runs, seen, labels))
        for path, runs in sorted(found.items())
        if is_table(path)
    ]
    return [view for view in views if view.written]


class _Labels:
    """Labels of the workers of each stream, read once; of a tape that is gone there are none."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._known: dict[str, Mapping[int, str]] = {}

    def of(self, stream: str, workers: Iterable[int]) -> tuple[str, ...]:
        if stream not in self._known:
            self._known[stream] = self._read(stream)
        known = self._known[stream]
        return tuple(known.get(worker, str(worker)) for worker in workers)

    def _read(self, stream: str) -> Mapping[int, str]:
        try:
            tape = open_tape(self._lake, stream)
            return index.worker_labels(tape, newest_cut(tape))
        except CapstanError:
            return {}


def _written(
    runs: Mapping[str, list[Mapping[str, object]]], seen: Collection[str], labels: _Labels
) -> tuple[WrittenView, ...]:
    newest = sorted(runs.items(), key=lambda each: -_whole(each[1][0]["target_version"]))
    found: list[WrittenView] = []
    later: list[Scope] = []
    for run, rows in newest:
        first, at = rows[0], rows[0]["at"]
        assert isinstance(at, datetime)
        numbers = sorted(_whole(row["worker"]) for row in rows if row["worker"] is not None)
        region = parse_region(str(first["region"]))
        scope = Scope(str(first["target"]), tuple(numbers) or None, region)
        if run in seen:
            stream = str(first["stream"])
            view = WrittenView(
                run,
                stream,
                labels.of(stream, numbers) if numbers else None,
                _bound(first["since"]),
                _bound(first["until"]),
                str(first["transform"]),
                str(first["code"]),
                _whole(first["cut"]),
                _whole(first["target_version"]),
                at,
                any(scope.overlaps(other) for other in later),
            )
            found.append(view)
        later.append(scope)
    return tuple(found)


def _bound(text: object) -> object:
    """A bound as JSON has it: of several coordinates a list, else its text."""
    return json.loads(text) if isinstance(text, str) and text.startswith("[") else text


def _whole(value: object) -> int:
    return int(str(value))
