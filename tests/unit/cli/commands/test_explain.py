"""`capstan explain`: what it prints, and what it refuses."""

from __future__ import annotations

import json

import pytest

from capstan.cli import main
from capstan.cli.commands.explain import known
from tests.bench.workloads import nexmark_queries


def test_every_bundled_pipeline_is_known() -> None:
    # Those of the benchmarks are known to who has imported them.
    assert nexmark_queries.q5 is not None
    names = known().names
    assert {"hourly_departures", "flights_with_weather", "late_carriers", "nexmark_q5"} <= set(
        names
    )


def test_text_output_shows_graph_and_stages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "late_carriers"]) == 0
    out = capsys.readouterr().out
    assert "pipeline late_carriers" in out
    assert "by_day (operator, by carrier): tumbling window of 1 day" in out
    assert out.rstrip().endswith(
        "stages\n"
        "  0: rows as they come: flights, departed\n"
        "  1: by carrier: by_day, with_mean, carriers\n"
        "     reads departed (carrier)\n"
        "  2: by day: latest, days\n"
        "     reads with_mean (day)\n"
        "\n"
        "computed by Spark, except in a followed replay, whose state is the engine's\n"
        "  flights, departed, by_day\n"
        "computed by the engine\n"
        "  with_mean: its column mean_delay_minutes is computed by an expression or a function of "
        "Arrow\n"
        "  latest: it reads with_mean\n"
        "  days: it reads latest\n"
        "  carriers: it reads with_mean"
    )


def test_the_picture_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "hourly_departures", "--mermaid"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("flowchart LR\n")
    assert 'subgraph s1["stage 1: by origin"]' in out
    assert out.count("==>") == 1


def test_json_output_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "explain", "flights_with_weather"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["pipeline"] == "flights_with_weather"
    assert printed["tables"] == {"weather": "capstan.demo.pipelines:read_weather"}
    assert printed["sinks"] == {"flights_and_weather": "flights_with_weather"}
    assert len(printed["code"]) == 64
    assert printed["mermaid"].startswith("flowchart LR")
    assert [stage["key"] for stage in printed["stages"]] == [None, None, "origin"]
    assert printed["stages"][2]["inputs"] == [
        {"from": "flights", "by": ["origin"]},
        {"from": "weather", "by": ["origin"]},
    ]
    assert ["weather", "in_the_hour"] in printed["edges"]
    assert printed["computed_by"]["in_the_hour"] == "spark"
    joined = next(node for node in printed["nodes"] if node["node"] == "in_the_hour")
    assert joined["columns"]["temp"] == "double"


def test_an_unregistered_pipeline_is_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "capstan.demo.pipelines:late_carriers"]) == 2
    assert "no pipeline is registered" in capsys.readouterr().err
    assert main(["--json", "explain", "nexmark_q12"]) == 2
    assert "current_timestamp has no fixed value" in json.loads(capsys.readouterr().out)["message"]


def test_no_jvm_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    from pyspark import SparkContext

    before = SparkContext._gateway
    assert main(["explain", "nexmark_q5"]) == 0
    assert capsys.readouterr().out
    assert SparkContext._gateway is before
