"""The demo, step by step: feed, capture, verify, replay, transform, pipelines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from capstan import Context, Lake, ProjectConfig, ReplayRequest, ReplayResult
from capstan.core.json_object import Json
from capstan.errors.shell_command import shell_line
from capstan.spark.project_home import checkout

DECLARATIONS: Final = Path(__file__).with_name("streams.yaml")
"""What the main job works with, when no other file is named."""

STREAM = "flights"
MARCH = "march_departures"
BY_DAY = "flights_by_day"
PIPELINES = ("hourly_departures", "flights_with_weather", "late_carriers")
"""Declared replays through pipelines, each into the table of its name."""


@dataclass(frozen=True, slots=True)
class Done:
    """A step's result: a line for people, whether it wrote anything new, and its facts for JSON."""

    line: str
    changed: bool
    facts: Json


@dataclass(frozen=True, slots=True)
class DemoStep:
    """A step of the demo."""

    name: str
    title: str
    run: Callable[[Context], Done]


def require_declared(config: ProjectConfig) -> None:
    """Check that the demo can run here, before it starts."""
    config.stream(STREAM)
    config.registry.get(BY_DAY)
    for name in PIPELINES:
        config.replay(name)


def _feed(ctx: Context) -> Done:
    from capstan.demo.flights import feed

    fed = feed(f"{ctx.lake.root}/sources/flights")
    line = f"{fed.rows:,} departures in {len(fed.files)} files, {fed.written} of them new"
    facts = {"rows": fed.rows, "files": len(fed.files), "written": fed.written}
    return Done(line, fed.written > 0, facts)


def _capture(ctx: Context) -> Done:
    captured = ctx.capture(STREAM)
    line = f"nothing new, the tape is at commit {captured.cut}"
    if captured.batches:
        late = sum(captured.late.values())
        line = f"{captured.fed:,} rows in {captured.batches} micro-batches, {late} of them late"
    return Done(line, captured.batches > 0, asdict(captured))


def _verify(ctx: Context) -> Done:
    result = ctx.verify(STREAM)
    result.raise_for_violations()
    events = sum(verdict.events for verdict in result.workers)
    line = f"{len(result.workers)} recordings are valid, {events:,} events"
    return Done(line, False, result.to_json())


def march(ctx: Context) -> ReplayResult:
    """Newark and LaGuardia in March, copied."""
    return ctx.replay(STREAM, MARCH, workers="EWR,LGA", since="2013-03-01", until="2013-04-01")


def by_day(ctx: Context) -> ReplayResult:
    """All complete times of all airports, by airport and day."""
    return ctx.replay(STREAM, BY_DAY, transform=BY_DAY)


def _pipelines(ctx: Context) -> Done:
    results = {}
    for name in PIPELINES:
        declared = ctx.declarations.replay(name)
        since, until = (f"{at:%Y-%m-%d}" for at in (declared.since, declared.until) if at)
        request = ReplayRequest.of_replay(declared, since=since, until=until)
        results[name] = ctx.replay(request)
    changed = [name for name, result in results.items() if not result.unchanged]
    line = "all three are already published"
    if changed:
        line = f"replayed, audited, published: {', '.join(changed)}"
    return Done(line, bool(changed), {name: result.to_json() for name, result in results.items()})


def _replay(call: Callable[[Context], ReplayResult]) -> Callable[[Context], Done]:
    def run(ctx: Context) -> Done:
        result = call(ctx)
        certificate = result.certificate
        assert certificate is not None
        line = (
            f"run {certificate.run} is already published"
            if result.unchanged
            else f"{certificate.records:,} records replayed, audited, published"
        )
        return Done(line, not result.unchanged, result.to_json())

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
    march_path = lake.table(MARCH)
    start = shell_line("capstan", "--lake", lake.root)
    programs = "" if checkout() is None else ".venv/bin/"
    return f"""\
Explore the results, with Spark ({programs}python):

  import capstan
  days = capstan.Context({lake.root!r}).table({BY_DAY!r})
  days.select('origin', 'day', 'mean_delay_minutes') \\
      .orderBy('mean_delay_minutes', ascending=False).show(5)

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
