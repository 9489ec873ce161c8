"""Chaos test: work on lakes is killed at random, many times; in the end nothing may be wrong.

    python -m tests.support.chaos --kills 200 --seed 7 --folder ./chaos

Some lakes grow in rounds. In each round a file arrives, and a driver captures it, follows it into
tables, replays a range, fills gaps and maintains the lake until it is killed. Either two pieces of
work per lake run at once, each stopped at a named point of `capstan.telemetry.instrumentation`
selected by the seed; or the driver is killed at a random moment. In other rounds the driver works
on a cluster whose executors are killed, or the broker of captured topics is killed, or Airflow does
the work on a lake of its own and its tasks are killed. The next round continues from there. In the
end everything is done once more without interruption, and checked: every row fed is on tape or
late, exactly once; every tape is sound, including its records; tables followed or filled piece by
piece equal those of a single run; and every published run passes its audit, and was published once.

Progress is stored in the folder, so the same command continues after an interruption. With `--s3`
the lakes are on an S3 server of this process, which forgets them when it ends.

"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from capstan.replay.standalone_audit import audit_run, require_auditable
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger import coverage
from capstan.storage.ledger.runs import read_histories, read_history
from tests.support import child_drivers, lake_contents, small_stream
from tests.support.airflow_chaos import Scheduled
from tests.support.driver_actions import act
from tests.support.driver_under_test import Step
from tests.support.process_kills import BROKERS, Topics, kill_executors
from tests.support.s3_server import BUCKET, objects
from tests.support.sample_streams import START, lay, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAKES = 3
"""Number of lakes per driver, each interrupted at its own point. Airflow has another one."""

ROUNDS = ("points", "points", "points", "moment", "executors", "broker", "airflow")
"""Kinds of rounds, by frequency: work at points, a driver, and others."""

_ROWS = 24
_LATE = 4
_SIZES = {"file": 2**20, "full": 10, "share": 1, "least": 1, "many": 2}
_FOLLOWED = {"into": "followed", "follow": "followed", "transform": "hourly"}
_PIPED = {"into": "piped", "follow": "piped", "pipeline": "places", "sink": "hours"}
_FILLED: dict[str, object] = {"replay": "filled", "every": "6 hours"}
_SINCE, _UNTIL = "2024-05-01", "2024-05-01T06:00:00Z"
_COPIED = {"into": "copied", "since": _SINCE, "until": _UNTIL}
_REPLAYED = ("intent", "staging", "publish", "coverage", "certificate")

# Work on a lake, and the points at which it is interrupted.
_WORK: dict[str, tuple[str, dict[str, object], tuple[str, ...]]] = {
    "capture": (
        "capture",
        {},
        (
            "capture.begin",
            "capture.claim",
            "capture.records",
            "capture.late",
            "capture.events",
            "capture.workers",
        ),
    ),
    "follow": ("replay", {"request": _FOLLOWED}, tuple(f"replay.{point}" for point in _REPLAYED)),
    "pipe": ("replay", {"request": _PIPED}, ("replay.aside", "replay.state", "replay.publish")),
    "copy": ("replay", {"request": _COPIED}, ("replay.claim", "replay.audit", "replay.coverage")),
    # The second run: the next lines separate interrupted from completed work.
    "fill": ("backfill", _FILLED, ("replay.publish:2", "replay.coverage:2", "backfill.run")),
    "maintain": ("maintain", {"sizes": _SIZES}, ("maintain.written", "maintain.compacted")),
}


@dataclass(slots=True)
class Progress:
    """Progress of a chaos test.

    Attributes:
        seed: Seed of all random choices.
        rounds: Rounds started.
        kills: Pieces of work interrupted.
        whole: Drivers that ended before they could be killed.
        executors, brokers, tasks: The kills of executors, of the broker, and of Airflow's tasks.
    """

    seed: int
    rounds: int = 0
    kills: int = 0
    whole: int = 0
    executors: int = 0
    brokers: int = 0
    tasks: int = 0


class Chaos:
    """Lakes in a folder, and short-lived drivers that work on them."""

    def __init__(
        self, folder: Path, seed: int, rounds: Sequence[str] = ROUNDS, lakes: str = ""
    ) -> None:
        self.folder = folder
        # Where the lakes are; the sources are always in the folder.
        self._lakes = lakes or str(folder)
        self._rounds = rounds
        self._file = folder / "progress.json"
        self._topics = Topics(folder / "topics")
        place = (self._lake(LAKES), self._source(LAKES))
        self._scheduled = Scheduled(folder / "airflow", *place, (_FOLLOWED, _PIPED))
        folder.mkdir(parents=True, exist_ok=True)
        self.progress = Progress(seed)
        if self._file.exists():
            self.progress = Progress(**json.loads(self._file.read_text(encoding="utf-8")))
        self._save()

    def run(self, kills: int, say: Callable[[str], None] = print) -> None:
        """Kill until the given number of kills is reached.

        Raises:
            AssertionError: A driver failed with an error of its own.
        """
        while self.progress.kills < kills:
            chance = random.Random(f"{self.progress.seed}:{self.progress.rounds}")
            for number in range(LAKES):
                self._feed(number, self.progress.rounds)
            self._round(chance)
            self.progress.rounds += 1
            self._save()
            say(
                f"round {self.progress.rounds}: {self.progress.kills} of {kills} kills, "
                f"seed {self.progress.seed}"
            )

    def finish(self, spark: SparkSession) -> None:
        """Do everything once more without interruption, and check the result.

        Raises:
            AssertionError: Something is wrong; the message says what, and with which seed.
        """
        for number in range(LAKES + self._source(LAKES).exists()):
            self._finish(spark, number)
        self._topics.finish(spark)

    def _finish(self, spark: SparkSession, number: int) -> None:
        lake = Lake.at(self._lake(number))
        place = f"seed {self.progress.seed}, {lake.root}"
        self._act(spark, number, "unlock", {})
        for name in ("capture", "follow", "pipe", "copy", "fill", "maintain"):
            self._act(spark, number, *_WORK[name][:2])
        lake_contents.require_whole(lake, self._fed(number), place)
        lake_contents.require_sound(spark, lake)
        self._require_same(spark, number, place)
        self._require_audits(spark, number)

    def _round(self, chance: random.Random) -> None:
        log = self.folder / f"round-{self.progress.rounds}"
        # Files of a round that was interrupted before it was counted.
        shutil.rmtree(log, ignore_errors=True)
        kind = chance.choice(self._rounds)
        done = self.progress
        if kind == "broker":
            first = done.rounds * BROKERS * _ROWS
            killed = self._topics.kill_brokers(log, chance, first)
            done.brokers += killed
        elif kind == "executors":
            killed = kill_executors(log, list(self._script(chance, at_once=True)), chance)
            done.executors += killed
        elif kind == "airflow":
            self._feed(LAKES, len(list(self._source(LAKES).glob("*.parquet"))))
            killed = self._scheduled.kill_tasks(log, chance)
            done.tasks += killed
        else:
            killed = self._kill_driver(log, chance, at_once=kind == "moment")
            done.whole += not killed
        done.kills += killed

    def _kill_driver(self, log: Path, chance: random.Random, *, at_once: bool) -> int:
        """Kill a driver at a moment, or at its points; returns the number of interrupted works."""
        child = child_drivers.start(log, list(self._script(chance, at_once=at_once)))
        try:
            if at_once:
                child.wait_for(log / "script.json.begun")
                return int(child.kill_after(chance.uniform(0, 40)))
            killed = child.was_killed()
            assert killed or child.process.returncode == 0, child.printed()
            return int((log / "script.json.cut").read_text(encoding="utf-8"))
        finally:
            child.end()

    def _script(self, chance: random.Random, *, at_once: bool) -> Iterator[Step]:
        for number in range(LAKES):
            chosen = chance.sample(sorted(_WORK), k=2)
            # Earlier drivers are dead, and this was noticed.
            yield Step("unlock", self._arguments(number, {}))
            # An interrupted first capture may leave no tape for other work.
            has_tape = is_table(Lake.at(self._lake(number)).stream(small_stream.NAME).events)
            if at_once or "capture" not in chosen or not has_tape:
                yield Step("capture", self._arguments(number, {}))
            for name in chosen:
                action, more, points = _WORK[name]
                point = "" if at_once else chance.choice(points)
                yield Step(action, self._arguments(number, more), point, may_end=True)

    def _arguments(self, number: int, more: dict[str, object]) -> dict[str, object]:
        return {"lake": self._lake(number), "source": str(self._source(number)), **more}

    def _act(
        self, spark: SparkSession, number: int, action: str, more: dict[str, object]
    ) -> dict[str, object]:
        return act(spark, action, self._arguments(number, more))

    def _feed(self, number: int, file: int) -> None:
        """Write a file with some late rows; the same rows each time."""
        first = file * _ROWS
        content = rows(range(first, first + _ROWS))
        held_back = rows(range(first - _ROWS, first - _ROWS + _LATE)) if file else []
        late = [(10**6 + row[0], *row[1:]) for row in held_back]
        lay(self._source(number), f"{file:05}", content + late, START + timedelta(days=file))

    def _fed(self, number: int) -> Counter[int]:
        return Counter(pl.read_parquet(self._source(number) / "*.parquet")["id"].to_list())

    def _require_same(self, spark: SparkSession, number: int, place: str) -> None:
        """Check that tables followed piece by piece equal those of a single run."""
        lake = Lake.at(self._lake(number))
        for request in (_FOLLOWED, _PIPED):
            through = {**request, "into": f"{request['into']}_through", "follow": "through"}
            self._act(spark, number, "replay", {"request": through})
            pieces, whole = (
                lake_contents.rows(lake.table(str(r["into"]))) for r in (request, through)
            )
            assert pieces == whole != [], f"{place}: {request['into']} differs from a single run"
        straight = {"into": "filled_through", "follow": "through"}
        done = self._act(spark, number, "replay", {"request": straight})["certificate"]
        assert isinstance(done, dict)
        # Only complete intervals are filled.
        end = pl.lit(str(done["frontier"][0])).str.to_datetime(time_zone="UTC").dt.truncate("6h")
        filled, expected = (
            pl.read_delta(lake.table(name)).filter(pl.col("_time").struct["event"] < end)
            for name in ("filled", "filled_through")
        )
        assert sorted(filled["id"]) == sorted(expected["id"]) != [], f"{place}: filled"

    def _require_audits(self, spark: SparkSession, number: int) -> None:
        lake, declared = (
            Lake.at(self._lake(number)),
            small_stream.declarations(self._source(number)),
        )
        for target in ("followed", "piped", "copied", "filled"):
            standing = {row.run for row in coverage.current(lake, lake.table(target))}
            # An interrupted run that had published was taken over: it has no certificate.
            done = [run for run in standing if read_history(lake, run).published]
            assert done, target
            for run in done:
                history = require_auditable(lake, run, None)
                result = audit_run(spark, lake, declared, history).audit
                assert result.passed, (run, result)
        for run, history in read_histories(lake).items():
            if history.published:
                lake_contents.require_published_once(lake, run)

    def _lake(self, number: int) -> str:
        return f"{self._lakes}/lake-{number}/lake"

    def _source(self, number: int) -> Path:
        return self.folder / f"lake-{number}" / "source"

    def _save(self) -> None:
        text = json.dumps(asdict(self.progress))
        whole = self._file.with_suffix(".part")
        whole.write_text(text, encoding="utf-8")
        whole.rename(self._file)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chaos test from a shell; returns the exit code."""
    parser = argparse.ArgumentParser(prog="chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, help="seed for a new folder; 2013 by default")
    parser.add_argument("--folder", type=Path, default=Path("chaos"))
    parser.add_argument("--rounds", nargs="+", choices=sorted(set(ROUNDS)), default=ROUNDS)
    parser.add_argument("--s3", action="store_true", help="keep the lakes on an S3 server")
    options = parser.parse_args(arguments)
    folder = options.folder.absolute()
    if options.s3 and folder.exists():
        parser.error(f"the S3 server of {options.folder} is gone: name another folder")
    with ExitStack() as servers:
        lakes = ""
        if options.s3:
            folder.mkdir(parents=True)
            os.environ.update(servers.enter_context(objects(folder)).variables)
            lakes = f"s3a://{BUCKET}"
        seed = 2013 if options.seed is None else options.seed
        chaos = Chaos(folder, seed, options.rounds, lakes)
        if options.seed not in (None, chaos.progress.seed):
            parser.error(
                f"the test in {options.folder} continues with seed {chaos.progress.seed}: "
                "omit the seed, or name another folder"
            )
        _kill_and_finish(chaos, options.kills)
    return 0


def _kill_and_finish(chaos: Chaos, kills: int) -> None:
    from capstan.spark.session import build_session
    from tests.support.small_spark import MASTER, SHRUNK

    chaos.run(kills)
    spark = build_session("chaos", master=MASTER, extra=SHRUNK)
    try:
        chaos.finish(spark)
    finally:
        spark.stop()
    done = chaos.progress
    parts = f"{done.executors} of executors, {done.brokers} of a broker, {done.tasks} of tasks"
    print(
        f"{done.kills} kills ({parts}) in {done.rounds} rounds, seed {done.seed}: nothing is wrong"
    )


if __name__ == "__main__":
    sys.exit(main())
