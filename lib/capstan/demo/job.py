"""The demo, step by step: feed, capture, verify, replay, transform, pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from capstan.core.config import ProjectConfig
from capstan.errors.shell_command import shell_line
from capstan.spark.project_home import checkout
from capstan.storage.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.replay.planning.request import Request

DECLARATIONS: Final = Path(__file__).with_name("streams.yaml")
"""What the main job works with, when no other file is named."""

STREAM = "flights"
MARCH = "march_departures"
BY_DAY = "flights_by_day"
PIPELINES = ("hourly_departures", "flights_with_weather", "late_carriers")
"""Declared replays through pipelines, each into the table of its name."""


@dataclass(frozen=True, slots=True)
class MainJob:
    """The context of the steps, with one Spark session for all."""

    spark: SparkSession
    lake: Lake
    config: ProjectConfig


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a step.

    Attributes:
        line: One line for people.
        changed: Whether it wrote anything new.
        facts: The results, for JSON.
    """

    line: str
    changed: bool
    facts: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DemoStep:
    """A step of the demo."""

    name: str
    title: str
    run: Callable[[MainJob], Done]


def require_declared(config: ProjectConfig) -> None:
    """Check that the demo can run here, before it starts."""
    config.stream(STREAM)
    config.registry.get(BY_DAY)
    for name in PIPELINES:
        config.replay(name)


def _feed(job: MainJob) -> Done:
    from capstan.demo.flights import feed

    fed = feed(f"{job.lake.root}/sources/flights")
    line = f"{fed.rows:,} departures in {len(fed.files)} files, {fed.written} of them new"
    facts = {"rows": fed.rows, "files": len(fed.files), "written": fed.written}
    return Done(line, fed.written > 0, facts)


def _capture(job: MainJob) -> Done:
    from capstan.capture.run import capture

    captured = capture(job.spark, job.lake, job.config.stream(STREAM))
    line = f"nothing new, the tape is at commit {captured.cut}"
    if captured.batches:
        late = sum(captured.late.values())
        line = f"{captured.fed:,} rows in {captured.batches} micro-batches, {late} of them late"
    return Done(line, captured.batches > 0, asdict(captured))


def _verify(job: MainJob) -> Done:
    from capstan.storage.tape.tape import open_tape
    from capstan.verify import verify

    tape = open_tape(job.lake, STREAM)
    result = verify(job.spark, job.lake, tape)
    result.raise_for_violations()
    events = sum(verdict.events for verdict in result.workers)
    line = f"{len(result.workers)} recordings are valid, {events:,} events"
    return Done(line, False, result.to_json())


def march() -> Request:
    """Newark and LaGuardia in March, copied."""
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
        declared = job.config.replay(name)
        bounds = [f"{at:%Y-%m-%d}" for at in (declared.since, declared.until) if at is not None]
        request = Request.of_replay(declared, since=bounds[0], until=bounds[1])
        outcomes[name] = replay(job.spark, job.lake, job.config, request)
    changed = [name for name, outcome in outcomes.items() if not outcome.unchanged]
    line = "all three are already published"
    if changed:
        line = f"replayed, audited, published: {', '.join(changed)}"
    return Done(
        line, bool(changed), {name: outcome.to_json() for name, outcome in outcomes.items()}
    )


def _replay(request: Callable[[], Request]) -> Callable[[MainJob], Done]:
    def run(job: MainJob) -> Done:
        from capstan.replay.run import replay

        outcome = replay(job.spark, job.lake, job.config, request())
        certificate = outcome.certificate
        assert certificate is not None
        line = (
            f"run {certificate.run} is already published"
            if outcome.unchanged
            else f"{certificate.records:,} records replayed, audited, published"
        )
        return Done(line, not outcome.unchanged, outcome.to_json())

    return run


STEPS = (
    DemoStep("feed", "write the flights of 2013 as files, in order of arrival", _feed),
    DemoStep("capture", "capture them as stream flights", _capture),
    DemoStep("verify", "verify the recordings", _verify),
    DemoStep("replay", f"replay EWR and LGA of March into {MARCH}", _replay(march)),
    DemoStep("transform", f"replay the year by airport and day into {BY_DAY}", _replay(by_day)),
    DemoStep("pipelines", "replay March through three pipelines, operator by operator", _pipelines),
)
"""The steps of the demo, in order."""


def where_to_look(lake: Lake) -> str:
    """Text with queries and commands to continue with."""
    march_path, day_path = lake.table(MARCH), lake.table(BY_DAY)
    start = shell_line("capstan", "--lake", lake.root)
    programs = "" if checkout() is None else ".venv/bin/"
    return f"""\
Explore the results, with Spark SQL ({programs}python):

  from capstan.spark.session import build_session
  build_session().sql('''
    SELECT origin, day, departures, mean_delay_minutes FROM delta.`{day_path}`
    ORDER BY mean_delay_minutes DESC LIMIT 5''').show()

with Polars or DuckDB, which need no Spark ({programs}python):

  import duckdb, polars
  march = polars.scan_delta({march_path!r})
  print(march.group_by('origin').len().collect())
  print(duckdb.sql('SELECT dest, count(*) AS flights FROM march GROUP BY dest ORDER BY 2 DESC'))

and with the command line ({programs}capstan):

  {start} show {STREAM}
  {start} runs
  {start} audit {STREAM} --against {MARCH} --workers EWR,LGA --since 2013-03-01 \
--until 2013-04-01
"""
