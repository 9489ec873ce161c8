"""The main job on real flights, step by step: feed, capture, verify, replay, by day, pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from capstan.core.config import ProjectConfig
from capstan.errors import InvalidRequestError
from capstan.storage.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.replay.planning.request import Request

STREAM = "flights"
MARCH = "march_departures"
BY_DAY = "flights_by_day"
PIPELINES = ("hourly_departures", "flights_with_weather", "late_carriers")
"""Declared replays through pipelines, each into the table of its own name."""


@dataclass(frozen=True, slots=True)
class MainJob:
    """What the steps work with: one Spark session for all of them."""

    spark: SparkSession
    lake: Lake
    declarations: ProjectConfig


@dataclass(frozen=True, slots=True)
class Done:
    """What a step did.

    Attributes:
        line: One line for people.
        changed: Whether it wrote anything that was not there before.
        facts: Its results, for JSON.
    """

    line: str
    changed: bool
    facts: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the main job."""

    name: str
    title: str
    run: Callable[[MainJob], Done]


def require_declared(declarations: ProjectConfig, lake: Lake) -> None:
    """Check that the main job can be done here, before anything is.

    Raises:
        InvalidRequestError: `CAP-STREAM`, `CAP-TRANSFORM` or `CAP-REPLAY` when what it plays is not
            declared; `CAP-LAKE` for a lake that is no folder of this machine, where the feed could
            not be laid down.
    """
    declarations.stream(STREAM)
    declarations.registry.get(BY_DAY)
    for name in PIPELINES:
        declarations.replay(name)
    if "://" in lake.root:
        raise InvalidRequestError(
            "CAP-LAKE",
            f"the demonstration lays its feed down in a folder, and {lake.root} is none",
            "give --lake a folder of this machine",
            lake=lake.root,
        )


def _feed(job: MainJob) -> Done:
    from capstan.demo.flights import feed

    fed = feed(Path(job.lake.root) / "sources" / "flights")
    line = f"{fed.rows:,} departures in {len(fed.files)} files, {fed.written} of them new"
    facts = {"rows": fed.rows, "files": len(fed.files), "written": fed.written}
    return Done(line, fed.written > 0, facts)


def _capture(job: MainJob) -> Done:
    from capstan.capture.run import capture

    found = capture(job.spark, job.lake, job.declarations.stream(STREAM))
    line = f"nothing new, the tape is at commit {found.cut}"
    if found.batches:
        late = sum(found.late.values())
        line = f"{found.fed:,} rows in {found.batches} micro-batches: {late} late, the rest on tape"
    return Done(line, found.batches > 0, asdict(found))


def _verify(job: MainJob) -> Done:
    from capstan.storage.tape.tape import open_tape
    from capstan.verify import verify

    tape = open_tape(job.lake, STREAM)
    found = verify(job.spark, job.lake, tape)
    found.require_valid(tape)
    events = sum(verdict.events for verdict in found.workers)
    line = f"{len(found.workers)} recordings are sound, {events:,} events"
    return Done(line, False, found.to_json(tape))


def march() -> Request:
    """Newark and LaGuardia in March, as they are on tape."""
    from capstan.replay.planning.request import Request

    return Request(STREAM, MARCH, workers=("EWR", "LGA"), since="2013-03-01", until="2013-04-01")


def by_day() -> Request:
    """All complete times of all airports, by airport and day."""
    from capstan.replay.planning.request import Request

    return Request(STREAM, BY_DAY, transform=BY_DAY)


def _pipelines(job: MainJob) -> Done:
    from capstan.replay.planning.request import Request
    from capstan.replay.run import replay

    outcomes = {}
    for name in PIPELINES:
        declared = job.declarations.replay(name)
        bounds = [f"{at:%Y-%m-%d}" for at in (declared.since, declared.until) if at is not None]
        request = Request(
            declared.stream,
            declared.target,
            since=bounds[0],
            until=bounds[1],
            pipeline=declared.pipeline,
            sink=declared.sink,
            replay=name,
        )
        outcomes[name] = replay(job.spark, job.lake, job.declarations, request)
    changed = [name for name, each in outcomes.items() if not each.stood]
    line = f"played, audited, published: {', '.join(changed)}" if changed else "all three stand"
    return Done(line, bool(changed), {name: each.to_json() for name, each in outcomes.items()})


def _replay(request: Callable[[], Request]) -> Callable[[MainJob], Done]:
    def run(job: MainJob) -> Done:
        from capstan.replay.run import replay

        outcome = replay(job.spark, job.lake, job.declarations, request())
        found = outcome.certificate
        line = (
            f"run {found['run']} stands"
            if outcome.stood
            else f"{int(str(found['records'])):,} records played, audited, published"
        )
        return Done(line, not outcome.stood, outcome.to_json())

    return run


STEPS = (
    Step("feed", "lay down the flights of 2013 in order of arrival", _feed),
    Step("capture", "capture them as stream flights", _capture),
    Step("verify", "verify the recordings", _verify),
    Step("replay", f"replay EWR and LGA of March into {MARCH}", _replay(march)),
    Step("transform", f"replay the year by airport and day into {BY_DAY}", _replay(by_day)),
    Step("pipelines", "replay March through three pipelines, operator by operator", _pipelines),
)
"""What the main job does, in order."""


def where_to_look(lake: Lake) -> str:
    """Queries and commands to look further, as text."""
    march_path, day_path = lake.table(MARCH), lake.table(BY_DAY)
    place = f"--lake {lake.root}"
    return f"""\
Look further, with Spark SQL (.venv/bin/python):

  from capstan.spark.session import build_session
  build_session().sql('''
    SELECT origin, day, departures, mean_delay_minutes FROM delta.`{day_path}`
    ORDER BY mean_delay_minutes DESC LIMIT 5''').show()

with Polars or DuckDB, which need no Spark (.venv/bin/python):

  import duckdb, polars
  march = polars.scan_delta('{march_path}')
  print(march.group_by('origin').len().collect())
  print(duckdb.sql('SELECT dest, count(*) AS flights FROM march GROUP BY dest ORDER BY 2 DESC'))

and with the command line (.venv/bin/capstan):

  capstan {place} show {STREAM}
  capstan {place} runs
  capstan {place} audit {STREAM} --against {MARCH} --workers EWR,LGA --since 2013-03-01 \
--until 2013-04-01
"""
