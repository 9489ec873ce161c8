"""A law over random histories of one target: each replay gives what a model gives, or is refused.

Two streams, a copy, a transform and a pipeline of each replace, append and merge rows there, while
another writer adds, deletes and alters some. The model is a list of rows, and of what was covered.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import deltalake
import polars as pl
import pyarrow as pa
import pytest

from capstan.capture.run import capture, close
from capstan.core.config import Mode, ProjectConfig, Target, Transform
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request
from capstan.replay.result import ReplayResult
from capstan.replay.run import replay, rollback
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import open_tape
from tests.support.pipeline_samples import REFERENCES
from tests.support.sample_streams import NAME, START, declared, lay, little_stream, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS, INTO, OTHER = 9, "t", "other"
SHIFTED = Transform(
    name="shifted",
    sql="SELECT _worker, _time, id + 10000 AS id FROM records",
    time="_time",
    worker="_worker",
)
REFUSED = {"CAP-ADOPT", "CAP-APPEND", "CAP-ORDER"}
Row = tuple[int, datetime, int]
Output = tuple[str, str]


@dataclass(frozen=True)
class Covered:
    """What a run has published, as the model knows it."""

    run: str
    output: Output
    workers: frozenset[int]
    since: datetime
    until: datetime

    def has(self, row: Row) -> bool:
        return row[0] in self.workers and self.since <= row[1] < self.until


@dataclass
class Table:
    """The target as a model knows it."""

    rows: list[Row] = field(default_factory=list)
    covered: list[Covered] = field(default_factory=list)

    def is_own(self, row: Row, output: Output) -> bool:
        """Whether this output was the last one to cover the place of a row."""
        owners = [item.output for item in self.covered if item.has(row)]
        return owners[-1:] == [output]

    def replaced(self, asked: Asked) -> list[Row]:
        """The rows that a replay takes away, or puts others in the place of."""
        if asked.mode == Mode.MERGE:
            ids = {row[2] for row in asked.rows}
            return [row for row in self.rows if row[2] in ids]
        return [r for r in self.rows if asked.covered.has(r)] if asked.mode == Mode.REPLACE else []

    def foreign(self, asked: Asked) -> list[Row]:
        output = asked.covered.output
        return [row for row in self.replaced(asked) if not self.is_own(row, output)]

    def publish(self, asked: Asked, run: str) -> None:
        gone = self.replaced(asked)
        kept = list((Counter(self.rows) - Counter(gone)).elements())
        there = Counter(row[2] for row in gone) if asked.mode == Mode.MERGE else Counter()
        # A row is put in the place of each one that has its key.
        put = [row for row in asked.rows for _ in range(max(1, there[row[2]]))]
        self.rows = kept + put
        self.covered.append(replace(asked.covered, run=run))


@dataclass(frozen=True)
class Asked:
    """A replay, and the rows that it puts out."""

    request: Request
    covered: Covered
    rows: tuple[Row, ...]

    @property
    def mode(self) -> Mode:
        return self.request.mode


@dataclass
class History:
    """A lake with two streams, the model of its target, and what happens there."""

    spark: SparkSession
    lake: Lake
    declarations: ProjectConfig
    random: Random
    records: dict[str, list[tuple[Row, str]]]
    path: str = ""
    """Where the target is."""
    table: Table = field(default_factory=Table)
    before: tuple[str, list[Row], list[Covered]] | None = None
    """The run that was the last to change the target, and what was there before."""
    ids: int = 50_000
    seen: Counter[str] = field(default_factory=Counter)

    def asked(self) -> Asked:
        """Any replay."""
        draw = self.random
        stream, kind = draw.choice((NAME, OTHER)), draw.choice(("", "shifted", "by_worker"))
        days = sorted(draw.sample(range(5), 2))
        since, until = (START + timedelta(days=day) for day in days)
        labels = tuple(sorted(draw.sample("abc", draw.choice((1, 3)))))
        mode = draw.choice((Mode.REPLACE, Mode.REPLACE, Mode.MERGE, Mode.APPEND))
        request = Request(
            stream,
            INTO,
            workers=labels,
            since=since.isoformat(),
            until=until.isoformat(),
            transform="shifted" if kind == "shifted" else None,
            pipeline="by_worker" if kind == "by_worker" else None,
            mode=mode,
            keys=("id",) if mode is Mode.MERGE else (),
            adopt=draw.random() < 0.3,
        )
        of_labels = [(row, label) for row, label in self.records[stream] if label in labels]
        covered = Covered("", (stream, kind), frozenset(r[0] for r, _ in of_labels), since, until)
        shift = 10_000 if kind == "shifted" else 0
        put = tuple((w, at, id_ + shift) for (w, at, id_), _ in of_labels)
        return Asked(request, covered, tuple(row for row in put if covered.has(row)))

    def play(self) -> None:
        requested, table = self.asked(), self.table
        was = list(table.rows)
        foreign = [] if requested.request.adopt else table.foreign(requested)
        try:
            done: ReplayResult = replay(self.spark, self.lake, self.declarations, requested.request)
        except InvalidRequestError as error:
            assert error.code in REFUSED, error
            # Each is refused where it has to be, and a foreign row is never the reason of another.
            assert (error.code == "CAP-ADOPT") == bool(foreign) or requested.mode != Mode.REPLACE, (
                error
            )
            assert error.code != "CAP-ADOPT" or error.fields["rows"] == len(foreign), error
            self.seen[error.code] += 1
            return
        assert not foreign, (requested, foreign)
        if not done.unchanged:
            run = str(done.certificate.run)
            self.before = run, was, list(table.covered)
            table.publish(requested, run)
            self.seen[requested.mode] += 1

    def take_back(self) -> None:
        if self.before is not None:
            run, self.table.rows, self.table.covered = self.before
            rollback(self.spark, self.lake, self.declarations, run)
            self.before = None
            self.seen["rollback"] += 1

    def interfere(self) -> None:
        """Another writer adds, deletes or alters rows."""
        path = self.path
        if not deltalake.DeltaTable.is_deltatable(path):
            return
        table, rows_ = self.table, self.table.rows
        what = self.random.choice(("add", "delete", "alter")) if rows_ else "add"
        if what == "add":
            self.ids += 1
            at = START + timedelta(days=self.random.randrange(5), hours=6)
            own = self.random.choice((self.ids, self.random.randrange(16)))
            table.rows = [*rows_, (self.random.randrange(3), at, own)]
            deltalake.write_deltalake(path, _arrow(table.rows[-1:]), mode="append")
        else:
            id_ = self.random.choice(rows_)[2]
            table.rows = [row for row in rows_ if row[2] != id_]
            if what == "delete":
                deltalake.DeltaTable(path).delete(f"id = {id_}")
            else:
                self.ids += 1
                table.rows += [(*row[:2], self.ids) for row in rows_ if row[2] == id_]
                deltalake.DeltaTable(path).update(
                    updates={"id": str(self.ids)}, predicate=f"id = {id_}"
                )
        self.before = None
        self.seen[what] += 1

    def check(self) -> None:
        path = self.path
        if deltalake.DeltaTable.is_deltatable(path):
            actual = pl.read_delta(path).select("_worker", pl.col("_time").struct[0], "id").rows()
            assert Counter(actual) == Counter(self.table.rows)


def _arrow(content: list[Row]) -> pa.Table:
    workers, times, ids = zip(*content, strict=True)
    moments = pa.array(times, pa.timestamp("us", "UTC"))
    return pa.table(
        {
            "_worker": pa.array(workers, pa.int32()),
            "_time": pa.StructArray.from_arrays([moments], ["event"]),
            "id": pa.array(ids, pa.int64()),
        }
    )


@pytest.fixture(scope="module")
def captured(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> History:
    """Two streams of sixteen records each, of four days, both of which have ended."""
    folder = tmp_path_factory.mktemp("histories")
    lake, records = Lake.at(folder / "lake"), {}
    streams = {}
    for name in (NAME, OTHER):
        # The other one has eight of the ids of the first.
        numbers = range(16) if name == NAME else range(8, 24)
        content = rows(numbers, step=timedelta(hours=6))
        lay(
            folder / name,
            "0",
            [(n, p, at - (numbers[0] * timedelta(hours=6)), a, t) for n, p, at, a, t in content],
        )
        streams[name] = replace(little_stream(folder / name), name=name)
        capture(spark, lake, streams[name])
        close(spark, lake, name)
        tape = pl.read_delta(open_tape(lake, name).paths.records)
        records[name] = [
            (
                (row["worker"], row["time"]["event"].astimezone(UTC), row["data"]["id"]),
                row["data"]["place"],
            )
            for row in tape.iter_rows(named=True)
        ]
    made = declared(streams[NAME], [SHIFTED], {})
    declarations = replace(made, streams=streams, pipelines=REFERENCES)
    return History(spark, lake, declarations, Random(0), records)


# A history in which nothing is refused would show nothing of what is.
@pytest.mark.parametrize(
    ("seed", "refusals"),
    [
        (22, {"CAP-ADOPT", "CAP-APPEND"}),
        *(pytest.param(seed, set(), marks=pytest.mark.nightly) for seed in range(1, 14)),
    ],
)
def test_a_target_is_what_the_model_has_and_loses_no_foreign_row(
    captured: History, tmp_path: Path, seed: int, refusals: set[str]
) -> None:
    # A table of its own for each history: the tapes are the same.
    history = replace(captured, random=Random(seed), table=Table(), before=None, seen=Counter())
    history.path = str(tmp_path / "table")
    targets = {INTO: Target(INTO, path=history.path, columns=("id",))}
    history.declarations = replace(captured.declarations, targets=targets)
    for _ in range(STEPS):
        history.random.choice((history.play, history.play, history.interfere, history.take_back))()
        history.check()
    print(seed, dict(history.seen))
    assert refusals <= history.seen.keys()
