"""Coverage, audit and replay give one answer on a table, whoever else has written there."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING

import deltalake
import pytest

from capstan.backfill.planner import BackfillRequest
from capstan.backfill.survey import survey
from capstan.capture.run import capture
from capstan.core.config import Mode, ProjectConfig, Replay, Transform
from capstan.errors import InvalidRequestError
from capstan.replay.planning.request import Request
from capstan.replay.result import ReplayResult
from capstan.replay.run import replay
from capstan.replay.standalone_audit import audit_run, require_auditable
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger import coverage
from capstan.storage.ledger.region_json import render_bounds
from capstan.storage.tape.tape import open_tape
from tests.support.contexts import backfill
from tests.support.sample_streams import HOUR, NAME, START, declared, lay, little_stream, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

DAYS, OTHER = 2, "other"
SHIFTED = Transform(
    name="shifted",
    sql="SELECT _worker, _time, id + 1000 AS id FROM records",
    time="_time",
    worker="_worker",
)


@dataclass
class Table:
    """A target that outputs of two streams and other writers share."""

    spark: SparkSession
    lake: Lake
    config: ProjectConfig
    into: str

    @property
    def path(self) -> str:
        return self.lake.table(self.into)

    def play(self, day: int, stream: str = NAME, **fields: object) -> ReplayResult:
        since, until = (START + timedelta(days=n) for n in (day, day + 1))
        bounds = {"since": since.isoformat(), "until": until.isoformat()}
        request = Request(stream, self.into, **{**bounds, **fields})  # type: ignore[arg-type]
        return replay(self.spark, self.lake, self.config, request)

    def states(self) -> list[str]:
        declared_ = Replay(
            name="days", stream=NAME, target=self.into, since=START,
            until=START + timedelta(days=DAYS),
        )  # fmt: skip
        config = replace(self.config, replays={"days": declared_})
        return [str(interval.state) for interval in survey(self.lake, config, "days").intervals]

    def run(self, day: int) -> str | None:
        since = f"{START + timedelta(days=day):%Y-%m-%d}"
        own = [
            covered.run
            for covered in coverage.current(self.lake, self.path)
            if covered.output == (NAME, "") and str(_since(self, covered))[:10] == since
        ]
        return own[-1] if own else None

    def audit(self, run: str) -> bool:
        history = require_auditable(self.lake, run, None)
        return audit_run(self.spark, self.lake, self.config, history).audit.passed

    def sql(self, statement: str) -> None:
        self.spark.sql(statement.format(table=f"delta.`{self.path}`"))

    def check(self, day: int) -> None:
        """All three say that the rows of a day stand, or none does."""
        run, state = self.run(day), self.states()[day]
        if run is None:
            assert state == "gap"
            return
        whole = self.audit(run)
        assert whole or state == "changed", (day, state)
        assert (self.states()[day] == "covered") == whole
        try:
            assert self.play(day).unchanged == whole
        except InvalidRequestError as error:
            assert not whole and error.code == "CAP-ADOPT", error
        else:
            assert self.states()[day] == "covered"


def _since(table: Table, covered: coverage.Covered) -> object:
    time_type = open_tape(table.lake, NAME).time_type
    return render_bounds(time_type, covered.scope.region)["since"]


@pytest.fixture(scope="module")
def lake(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Lake, ProjectConfig]:
    folder: Path = tmp_path_factory.mktemp("standing")
    lake, streams = Lake.at(folder / "lake"), {}
    for name in (NAME, OTHER):
        numbers = range(0 if name == NAME else 100, 18 if name == NAME else 118)
        content = rows(numbers, step=3 * HOUR)
        first = numbers[0] * 3 * HOUR
        lay(folder / name, "0", [(n, p, at - first, a, t) for n, p, at, a, t in content])
        streams[name] = replace(little_stream(folder / name), name=name)
        capture(spark, lake, streams[name])
    return lake, replace(declared(streams[NAME], [SHIFTED]), streams=streams)


@pytest.fixture
def table(
    spark: SparkSession, lake: tuple[Lake, ProjectConfig], request: pytest.FixtureRequest
) -> Table:
    name = re.sub(r"[^a-z0-9]", "_", request.node.name.lower())[-40:]
    return Table(spark, *lake, f"t{name}")


def test_rows_of_another_output_are_changes_to_all_three(table: Table) -> None:
    for day in range(DAYS):
        table.play(day)
    table.play(0, OTHER, mode=Mode.APPEND)
    assert table.states() == ["changed", "covered"]
    table.check(0)
    table.play(0, adopt=True)
    assert table.states() == ["covered", "covered"]


def test_foreign_columns_do_not_change_audits(table: Table) -> None:
    for day in range(DAYS):
        table.play(day)
    table.sql("ALTER TABLE {table} ADD COLUMNS (mine STRING)")
    table.sql("UPDATE {table} SET mine = 'kept' WHERE id = 1")
    assert table.states()[0] == "changed"
    run = table.run(0)
    assert run is not None
    written = delta.version_of(table.lake.ledger("coverage"))
    assert table.audit(run)
    assert table.states()[0] == "covered"
    # Recorded once; and what comes later counts again.
    assert table.audit(run)
    assert delta.version_of(table.lake.ledger("coverage")) == written + 1  # type: ignore[operator]
    table.sql("UPDATE {table} SET mine = 'again' WHERE id = 1")
    assert table.states()[0] == "changed"
    # A backfill compares before it refuses to empty the column.
    days_ = Replay(name="days", stream=NAME, target=table.into, since=START,
                   until=START + timedelta(days=1))  # fmt: skip
    done = backfill(
        table.spark,
        table.lake,
        replace(table.config, replays={"days": days_}),
        BackfillRequest("days"),
    )
    assert done.error is None
    assert table.states()[0] == "covered"
    there = deltalake.DeltaTable(table.path).to_pyarrow_table(columns=["id", "mine"]).to_pylist()
    assert [row["id"] for row in there if row["mine"] == "again"] == [1]
    # A row that is lost is lost to all three.
    table.sql("DELETE FROM {table} WHERE id = 2")
    assert table.states()[0] == "changed"
    assert not table.audit(run)
    with pytest.raises(InvalidRequestError, match="CAP-ADOPT: .* mine \\(1 rows\\)"):
        table.play(0)


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(2, 12))]
)
def test_three_answers_agree_after_any_history(table: Table, seed: int) -> None:
    draw = Random(seed)
    for day in range(DAYS):
        table.play(day)
    for _ in range(3):
        day = draw.randrange(DAYS)
        at = f"{START + timedelta(days=day, hours=6 * draw.randrange(4)):%Y-%m-%dT%H:%M:%SZ}"
        what = draw.choice(("other", "shifted", "add", "delete", "touch", "own"))
        if what in ("other", "shifted"):
            mode = draw.choice(({"mode": Mode.APPEND}, {"mode": Mode.MERGE, "keys": ("id",)}))
            try:
                table.play(
                    day,
                    OTHER if what == "other" else NAME,
                    transform=None if what == "other" else "shifted",
                    **mode,
                )
            except InvalidRequestError as error:
                # It has done so before, or meets rows of its keys.
                assert error.code in ("CAP-APPEND", "CAP-ADOPT", "CAP-ORDER"), error
        elif what == "add":
            table.sql(
                "INSERT INTO {table} (_worker, _time, id) VALUES "
                f"(0, named_struct('event', TIMESTAMP '{at}'), 5000)"
            )
        elif what == "delete":
            table.sql(f"DELETE FROM {{table}} WHERE id = {draw.randrange(16)}")
        elif what == "touch":
            table.sql("UPDATE {table} SET id = id WHERE _time.event < TIMESTAMP '" + at + "'")
        else:
            table.play(day, adopt=True)
        table.check(draw.randrange(DAYS))
