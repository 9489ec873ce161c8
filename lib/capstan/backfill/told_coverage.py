"""Coverage of a declared replay's table, in batches to tell: the partitions of the table's asset.

What was told is kept whole, as stretches of time. So the next batch follows from it and from what
stands in the table now, whatever has happened since, and wherever who tells is killed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Self

from capstan.backfill.interval import Interval, IntervalState
from capstan.backfill.passed_intervals import interval_key
from capstan.backfill.survey import Survey, survey
from capstan.core.config import ProjectConfig
from capstan.core.times import Kind
from capstan.errors import InvalidRequestError
from capstan.replay.target.ownership import Ownership
from capstan.storage.lake import Lake
from capstan.storage.ledger.coverage import PUBLISHED, ROLLED_BACK
from capstan.storage.ledger.region_json import parse_region
from capstan.storage.ledger.tables import read_rows

_SECOND = timedelta(seconds=1)
_LENGTH = {Kind.TIMESTAMP: timedelta(microseconds=1), Kind.DATE: timedelta(days=1)}
_SHOWN = 3  # the most commits, and runs, that a loss names
_EVER = 1 << 62


class PartState(StrEnum):
    """What is to be told of a part of a table, or was told."""

    COVERED = "covered"
    AGAIN = "again"
    """Told as covered, before its rows were written again."""
    GONE = "gone"


@dataclass(frozen=True, slots=True, order=True)
class TablePart:
    """A part of a table: half-open in the last coordinate of its times, as integers."""

    since: int
    until: int
    state: PartState = PartState.COVERED


@dataclass(frozen=True, slots=True)
class ToldCoverage:
    """What was told of a table, and the publishes that stood in it then."""

    table: str = ""  # its Delta id
    publishes: tuple[tuple[int, int], ...] = ()  # its versions with them, as half-open ranges
    parts: tuple[TablePart, ...] = ()  # in order, none of them gone

    @classmethod
    def from_json(cls, value: object) -> Self | None:
        """What `to_json` has made; None if it is anything else."""
        if not isinstance(value, Mapping) or value.keys() != cls.__dataclass_fields__.keys():
            return None
        parts = (TablePart(low, high, PartState(state)) for low, high, state in value["parts"])
        return cls(value["table"], tuple(map(tuple, value["publishes"])), tuple(parts))

    def to_json(self) -> dict[str, object]:
        """It as a JSON object."""
        parts = [[part.since, part.until, str(part.state)] for part in self.parts]
        return {"table": self.table, "publishes": list(map(list, self.publishes)), "parts": parts}

    @property
    def versions(self) -> set[int]:
        """The versions of the publishes that stood."""
        return {version for low, high in self.publishes for version in range(low, high)}

    def standing(
        self, table: str, versions: Collection[int], changed: Iterable[tuple[int, int]]
    ) -> ToldCoverage:
        """The same, to be told again where publishes came or went since.

        Args:
            table: The Delta id of the table that is there now.
            versions: Those of the publishes that stand.
            changed: The times of publishes that stand and did not, or the other way round.
        """
        bounds = [(-_EVER, _EVER)] if table != self.table else changed
        written = _joined(TablePart(*each, PartState.AGAIN) for each in bounds)
        again = [
            replace(part, since=max(part.since, told.since), until=min(part.until, told.until))
            for told in self.parts
            for part in _overlapping(written, told)
        ]
        singles = _joined(TablePart(version, version + 1) for version in versions)
        publishes = tuple((part.since, part.until) for part in singles)
        return replace(self.after(again), table=table, publishes=publishes)

    def changes(self, present: Iterable[TablePart]) -> list[TablePart]:
        """The present parts that are to be told: those that are gone, then those covered."""
        gone, covered = [], []
        for part in present:
            told = _overlapping(self.parts, part)
            if part.state is PartState.GONE:
                gone += [part] if told else []
            elif not any(
                each.state is PartState.COVERED
                and each.since <= part.since
                and part.until <= each.until
                for each in told
            ):
                covered.append(part)
        return [*gone, *covered]

    def after(self, told: Iterable[TablePart]) -> ToldCoverage:
        """What is told once these parts are, too; none of them overlaps another."""
        told = sorted(told)
        pieces = [part for part in told if part.state is not PartState.GONE]
        for part in self.parts:
            since = part.since
            for other in _overlapping(told, part):
                if since < other.since:
                    pieces.append(replace(part, since=since, until=other.since))
                since = other.until
            if since < part.until:
                pieces.append(replace(part, since=since))
        return replace(self, parts=tuple(_joined(pieces)))


@dataclass(frozen=True, slots=True)
class Loss:
    """What is known of parts that are gone."""

    state: str  # that of each interval
    changes: tuple[str, ...]  # commits by others that have changed each of them
    rolled_back: tuple[str, ...] = ()  # runs that had written some of them


@dataclass(frozen=True, slots=True)
class CoverageBatch:
    """Intervals to tell, as keys, and what is told then."""

    keys: tuple[str, ...]
    loss: Loss | None  # of each of them; None if they are covered
    told: ToldCoverage = field(repr=False)
    left: int  # how many batches there are after it


def next_changes(
    lake: Lake, config: ProjectConfig, replay: str, told: ToldCoverage, most: int
) -> CoverageBatch | None:
    """The next intervals of a declared replay to tell, at most so many; None when all are told.

    Those that are gone come first. Those of one batch are alike: its events have one `extra`.
    """
    found = survey(lake, config, replay)
    plan = found.plan
    if plan.layout.time is None:
        raise _untold(replay, "its table has no time, and so no intervals")
    # After the survey: what is published between them is told again.
    owner = Ownership(plan)
    standing = {each.target_version for each in owner.covered}
    rows = _written(lake, found)
    published = {row.version: row.bounds for row in rows if row.state == PUBLISHED}
    told = told.standing(
        "" if owner.table is None else str(owner.table.metadata().id),
        standing,
        [published[v] for v in standing ^ told.versions if v in published],
    )
    intervals = {_part(found, interval): interval for interval in found.intervals}
    alike: dict[Loss | None, list[TablePart]] = {}
    for part in told.changes(intervals):
        covered = part.state is PartState.COVERED
        alike.setdefault(None if covered else _loss(intervals[part]), []).append(part)
    if not alike:
        return None
    loss, parts = next(iter(alike.items()))
    chosen = parts[:most]
    if loss is not None:
        loss = replace(loss, rolled_back=_rolled_back(rows, chosen))
    left = sum(-(-len(each) // most) for each in alike.values()) - 1
    keys = tuple(_key(found, part) for part in chosen)
    return CoverageBatch(keys, loss, told.after(chosen), left)


@dataclass(frozen=True, slots=True)
class _Written:
    """What the ledger says of a run that wrote into the table, or was taken back."""

    run: str
    version: int
    state: str
    bounds: tuple[int, int]


def _written(lake: Lake, found: Survey) -> list[_Written]:
    columns = ("run", "target_version", "state", "region")
    about = {"target": found.plan.target, "stream": found.plan.request.stream}
    written = {}
    for row in read_rows(lake, "coverage", columns, **about):
        # There is a row for each worker.
        entry = row["run"], row["target_version"], row["state"]
        if entry not in written:
            box = parse_region(row["region"]).box
            since, until = box.since[-1], box.until[-1]
            low, high = -_EVER if since is None else since, _EVER if until is None else until
            written[entry] = _Written(*entry, (low, high))
    return list(written.values())


def _part(found: Survey, interval: Interval) -> TablePart:
    coordinate = found.plan.inputs.tape.time_type.coordinates[-1]
    since, until = (coordinate.parse(text) for text in (interval.since, interval.until))
    lacks = interval.missing or interval.state is IntervalState.INCOMPLETE
    return TablePart(since, until, PartState.GONE if lacks else PartState.COVERED)


def _key(found: Survey, part: TablePart) -> str:
    length = _LENGTH.get(found.plan.inputs.tape.time_type.coordinates[-1].kind)
    if length is None or part.since * length % _SECOND:
        raise _untold(found.declared.name, "its intervals do not begin at whole seconds")
    return interval_key(part.since * length // timedelta(microseconds=1))


def _loss(interval: Interval) -> Loss:
    return Loss(str(interval.state), interval.changes[:_SHOWN])


def _rolled_back(rows: Iterable[_Written], parts: Sequence[TablePart]) -> tuple[str, ...]:
    """The last runs that had written some of the parts, and were rolled back."""
    undone = (row for row in rows if row.state == ROLLED_BACK)
    runs = dict.fromkeys(row.run for row in undone if _overlapping(parts, TablePart(*row.bounds)))
    return tuple(runs)[-_SHOWN:]


def _joined(parts: Iterable[TablePart]) -> list[TablePart]:
    """Parts in order, those together that meet and are in the same state."""
    joined: list[TablePart] = []
    for part in sorted(parts):
        last = joined[-1] if joined else None
        if last is not None and last.state is part.state and part.since <= last.until:
            joined[-1] = replace(last, until=max(last.until, part.until))
        else:
            joined.append(part)
    return joined


def _overlapping(parts: Sequence[TablePart], part: TablePart) -> Sequence[TablePart]:
    """Those of some parts, in order and apart, that have a time in common with another part."""
    first = bisect_right(parts, part.since, key=lambda each: each.until)
    return parts[first : bisect_left(parts, part.until, key=lambda each: each.since)]


def _untold(replay: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-PARTITIONS",
        f"`partitions` of replay {replay} cannot be told: {problem}",
        "leave `partitions` out of the replay",
        replay=replay,
    )
