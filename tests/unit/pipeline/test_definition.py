"""Registered pipelines: what may be declared, what is refused, and what their identity is."""

from __future__ import annotations

import importlib.util
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from capstan.demo import pipelines as flight_pipelines
from capstan.errors import InvalidRequestError
from capstan.pipeline import TIME, Dag, DagBuilder, Pipeline, Pipelines, SideTable, Sink, pipelines
from capstan.pipeline.definition import register

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([(TIME, pa.int64()), ("key", pa.string())])


def graph() -> Dag:
    return DagBuilder().source("in", SCHEMA).sink_for("in", "out").build()


def built(give: object = graph, name: str = "made", **settings: object) -> Pipeline:
    register("made:up", give if callable(give) else lambda: give)
    fields = {"sinks": (Sink("out"),)} | settings
    return Pipeline(name, "made:up", **fields)  # type: ignore[arg-type]


def test_a_pipeline_gives_its_graph() -> None:
    assert built().dag().nodes == graph().nodes
    half = DagBuilder().source("in", SCHEMA).sink_for("in", "out")
    assert built(half).dag().nodes == graph().nodes


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sinks": (Sink("other"),)}, "has the sinks out, but declares other"),
        ({"sinks": ()}, "declares none"),
        ({"sinks": (Sink("out"), Sink("out"))}, "declares out, out"),
        ({"tables": (SideTable("in", "a:b", "t"),)}, "its tables cannot be in"),
        ({"tables": (SideTable("no", "a:b", "t"),)}, "its tables cannot be no"),
        ({"sinks": (Sink("out", time="at"),)}, "no column at at sink out, only key"),
        ({"sinks": (Sink("out", worker="_worker"),)}, "no column _worker at sink out"),
        ({"sinks": (Sink("out", keys=("key", "id")),)}, "no column id at sink out"),
        ({"lookback": -1}, "negative lookback or lookahead"),
        ({"sinks": (Sink("out", grain=0),)}, "a grain of less than one unit"),
        ({"lookahead": timedelta(seconds=-1)}, "negative lookback or lookahead"),
        ({"lookback": 1, "unbounded": True}, "is unbounded and has a lookback"),
        ({"engine_share": 0.0}, "engine_share 0.0, not one above 0 up to 1"),
        ({"engine_share": 1.5}, "engine_share 1.5, not one above 0 up to 1"),
        ({"give": 3}, "returns int, not a graph"),
        ({"give": DagBuilder().source("in").sink_for("in", "out")}, "the columns of its source in"),
    ],
)
def test_invalid_definitions_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as refused:
        built(**settings).dag()
    assert refused.value.code == "CAP-PIPELINE"
    assert refused.value.fields["pipeline"] == "made"


def test_names_are_those_of_other_things() -> None:
    with pytest.raises(InvalidRequestError, match="cannot name a pipeline"):
        built(name="../x")


def test_functions_that_are_not_there_are_refused() -> None:
    for reference in ("no.such:thing", "capstan.errors:nothing", "capstan.errors:__name__", "x"):
        with pytest.raises(InvalidRequestError, match=r"names .*, which"):
            Pipeline("lost", reference, (Sink("out"),)).dag()


def test_only_registered_names_are_known() -> None:
    known = Pipelines({"made": built()})
    assert known.names == ("made",)
    assert known.get("made") == built()
    with pytest.raises(InvalidRequestError, match="did you mean 'made'") as refused:
        known.get("mad")
    assert refused.value.hint == "known: made"
    with pytest.raises(InvalidRequestError, match="no pipeline is registered"):
        known.get("capstan.demo.pipelines:hourly_departures")
    known.add(built())
    with pytest.raises(InvalidRequestError, match="two pipelines named made"):
        known.add(built(lookback=3))


def test_the_decorator_registers() -> None:
    known = Pipelines()

    @known.pipeline(name="here", sinks=[Sink("out")], lookback=5, description="Of this test")
    def here() -> Dag:
        return graph()

    actual = known.get("here")
    assert (actual.lookback, actual.description) == (5, "Of this test")
    assert actual.function.endswith(":test_the_decorator_registers.here")
    assert actual.dag().nodes == graph().nodes
    assert {"hourly_departures", "late_carriers"} <= set(pipelines({"made": built()}).names)
    with pytest.raises(InvalidRequestError, match="two pipelines named late_carriers"):
        pipelines({"late_carriers": built(name="late_carriers")})


def test_a_reference_is_imported_when_it_is_asked_for() -> None:
    here = "capstan.demo.pipelines"
    known = Pipelines(
        references={
            "carriers": f"{here}:late_carriers",
            "weather": f"{here}:read_weather",
            "lost": "no.such.module:thing",
            "odd": ":thing",
        }
    )
    assert known.names == ("carriers", "lost", "odd", "weather")
    actual = known.get("carriers")
    assert actual.name == "carriers"
    assert actual.sinks == pipelines().get("late_carriers").sinks
    assert actual.code_hash == pipelines().get("late_carriers").code_hash
    with pytest.raises(InvalidRequestError, match="weather: .* is not registered as a pipeline"):
        known.get("weather")
    with pytest.raises(InvalidRequestError, match="lost: .* cannot be imported"):
        known.get("lost")
    with pytest.raises(InvalidRequestError, match="odd: .* cannot be imported"):
        known.get("odd")


def test_a_sink_is_found_by_name() -> None:
    late = pipelines().get("late_carriers")
    assert late.sink("days").target == "late_carriers"
    with pytest.raises(InvalidRequestError, match="has no sink 'day', only carriers, days"):
        late.sink("day")
    nodes = {node.name for node in late.plan(["carriers"]).dag.nodes}
    assert nodes == {"flights", "departed", "by_day", "with_mean", "carriers"}


MODULE = """
import pyarrow as pa
from capstan.pipeline import DagBuilder
{other}
def graph():
    return DagBuilder().source("in", pa.schema([("key", pa.string())])).sink_for("in", "out")
"""


def written(folder: Path, other: str) -> None:
    """A module `written_here` with this text, imported anew."""
    place = folder / "written_here.py"
    place.write_text(MODULE.format(other=other), encoding="utf-8")
    import linecache

    linecache.clearcache()
    spec = importlib.util.spec_from_file_location("written_here", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["written_here"] = module
    exec(compile(place.read_text(), str(place), "exec"), module.__dict__)


def test_identity_follows_from_text_and_settings(tmp_path: Path) -> None:
    def hashed(**settings: object) -> str:
        fields = {"sinks": (Sink("out"),)} | settings
        return Pipeline("w", "written_here:graph", **fields).code_hash  # type: ignore[arg-type]

    try:
        written(tmp_path, "FACTOR = 1")
        first = hashed()
        assert first == hashed(description="Said otherwise")
        changed = [
            hashed(lookback=1),
            hashed(lookahead=1),
            hashed(unbounded=True),
            hashed(coordinate="event"),
            hashed(sinks=(Sink("out", time="at"),)),
            hashed(modules=("capstan.errors",)),
            hashed(tables=(SideTable("t", "written_here:graph", "at"),)),
            hashed(tables=(SideTable("t", "written_here:graph", "at", version="2"),)),
        ]
        assert len({first, *changed}) == 1 + len(changed)
        # Where it is published is no part of what it computes.
        assert hashed(sinks=(Sink("out", target="elsewhere"),)) == first
        written(tmp_path, "FACTOR = 2")
        assert hashed() != first
        written(tmp_path, "FACTOR = 1")
        assert hashed() == first
    finally:
        sys.modules.pop("written_here", None)


def test_the_weather_is_hourly() -> None:
    weather = flight_pipelines.read_weather()
    assert weather.num_rows == 26_115
    assert set(weather["origin"].to_pylist()) == {"EWR", "JFK", "LGA"}
    first = weather.slice(0, 1).to_pylist()[0]
    assert (first["temp"], first["humid"], first["precip"]) == (39.02, 59.37, 0.0)
    assert first["time_hour"].isoformat() == "2013-01-01T06:00:00+00:00"
