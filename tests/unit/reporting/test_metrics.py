"""Figures for monitoring: gathered without a JVM, and told as a collector reads them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from capstan.cli import main
from capstan.core.config import ProjectConfig
from capstan.core.times import Box, Time, TimeType
from capstan.core.times import Kind as TimeKind
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.reporting.metrics import (
    METRICS,
    Sample,
    dotted,
    events_per_second,
    frontier_samples,
    lake_samples,
    prometheus,
)
from capstan.reporting.stream_view import StreamView
from capstan.storage.lake import Lake
from capstan.storage.tape.index import WorkerState
from capstan.storage.tape.settings import TapeSettings
from capstan.storage.tape.tape import Cut, Tape
from tests.support.jvmless_lake import Books, lay_tape
from tests.support.recorded_tapes import Recorded
from tests.support.sample_streams import declared, little_stream

AT = datetime(2024, 6, 1, 12, tzinfo=UTC)
NOTHING = ProjectConfig(Path("streams.yaml"), {}, {}, {}, {})
ODD = 'a "quoted" name\\with\nall of it'
FLIGHTS = Recorded("flights", ["EWR", ODD], commits=5, slower={1: 2}, late={"late": 3, "ahead": 7})


@pytest.fixture
def lake(tmp_path):
    actual = Lake.at(tmp_path / "lake")
    FLIGHTS.lay(actual)
    FLIGHTS.verified(actual, 2, AT)
    return actual


def of(samples, metric):
    return {sample.labels: sample.value for sample in samples if sample.metric == metric}


def test_a_tape_is_told_in_figures(lake):
    actual = lake_samples(lake, NOTHING)
    own = ("flights",)
    # A worker has one event to begin with, and 6 pairs a commit; the slower one 4.
    assert of(actual, "stream_readable") == {own: 1}
    assert of(actual, "stream_closed") == {own: 0}
    assert of(actual, "events_total") == {own: 2 + 5 * 2 * (6 + 4)}
    assert of(actual, "records_total") == {own: 5 * (6 + 4)}
    assert of(actual, "commits_total") == {own: 5}
    assert of(actual, "late_records_total") == {("flights", "ahead"): 7, ("flights", "late"): 3}
    assert of(actual, "unverified_commits") == {own: 2}
    assert of(actual, "unverified_events") == {own: 2 * 2 * (6 + 4)}
    tables = {("flights", name) for name in ("events", "records", "late", "workers")}
    assert set(of(actual, "files")) == set(of(actual, "bytes")) == tables
    assert of(actual, "files")["flights", "events"] == 5
    assert of(actual, "bytes")["flights", "events"] == sum(
        path.stat().st_size for path in Path(lake.stream("flights").events).glob("*.parquet")
    )


def test_frontiers_are_told_as_moments_and_lags(lake):
    actual = lake_samples(lake, NOTHING)
    lags = of(actual, "worker_frontier_lag_seconds")
    fast, slow = (FLIGHTS.frontier(worker, 4) for worker in (0, 1))
    assert of(actual, "frontier_timestamp_seconds") == {("flights",): slow.timestamp()}
    # The fast one has sent up to one step before what it holds.
    behind = (fast - FLIGHTS.step - slow).total_seconds()
    assert lags == {("flights", "EWR"): 0, ("flights", ODD): behind}
    assert of(actual, "frontier_lag_seconds") == {("flights",): behind}


def view(kind, greatest, *held):
    """A stream whose workers hold these values."""
    tape = Tape("s", Lake.at("/nowhere").stream("s"), TimeType.of(t=kind), TapeSettings())
    workers = tuple(
        WorkerState(n, f"w{n}", 9, 9, () if last is None else ((Time.of(last), 1),))
        for n, last in enumerate(held)
    )
    return StreamView(tape, "", Cut(3, 3), workers, greatest, {})


def test_frontiers_that_are_days_are_told_in_seconds():
    actual = list(frontier_samples(view(TimeKind.DATE, 9, 7, 8)))
    assert of(actual, "frontier_timestamp_seconds") == {("s",): 7 * 86_400}
    assert of(actual, "frontier_lag_seconds") == {("s",): 2 * 86_400}
    assert of(actual, "worker_frontier_lag_seconds")["s", "w1"] == 86_400


def test_frontiers_that_are_numbers_are_told_as_they_are():
    actual = list(frontier_samples(view(TimeKind.BIGINT, 9, 7, 8)))
    assert of(actual, "frontier_value") == {("s",): 7}
    assert of(actual, "frontier_lag_value") == {("s",): 2}
    assert of(actual, "worker_frontier_lag_value") == {("s", "w0"): 2, ("s", "w1"): 1}


def test_what_has_promised_nothing_yet_has_no_lag():
    actual = list(frontier_samples(view(TimeKind.BIGINT, 9, 0, 8)))
    assert of(actual, "frontier_value") == of(actual, "frontier_lag_value") == {}
    assert of(actual, "worker_frontier_lag_value") == {("s", "w1"): 1}


def test_a_closed_stream_is_told_as_such():
    actual = list(frontier_samples(view(TimeKind.BIGINT, 9, None, None)))
    assert actual == [Sample("stream_closed", 1, ("s",))]


def test_what_was_never_verified_is_all_unverified(tmp_path):
    lake = Lake.at(tmp_path)
    FLIGHTS.lay(lake)
    actual = lake_samples(lake, NOTHING)
    assert of(actual, "unverified_commits") == {("flights",): 5}
    assert of(actual, "unverified_events") == of(actual, "events_total")


def test_runs_are_counted_by_what_came_of_them(lake):
    books = Books(lake, "flights", lake.table("t"))
    region = Region(Box((None,), (None,)))
    for run in ("a-00000001-1", "a-00000001-2"):
        books.published(run, None, region)
    books.failed("a-00000001-3", None, region)
    actual = lake_samples(lake, NOTHING)
    counts = of(actual, "runs")
    assert sorted(counts.values()) == [1, 2]
    assert {result for _, result in counts} == {"published", "failed"}
    assert set(of(actual, "run_timestamp_seconds")) == set(counts)


def test_a_tape_that_cannot_be_read_hides_no_other(lake):
    # There is an index, and nothing beside it.
    lay_tape(lake, "torn", ["a"], [[3]], [7], time_type=TimeType.of(t=TimeKind.BIGINT))
    declarations = declared(little_stream(Path("/nowhere")))
    actual = lake_samples(lake, declarations)
    # A stream that is declared alone has nothing to be measured yet.
    assert of(actual, "stream_readable") == {("flights",): 1, ("torn",): 0}
    assert {item.labels[0] for item in actual} == {"flights", "torn"}


@pytest.mark.parametrize(
    ("commits", "rate"),
    [
        ([], None),
        ([(5_000, 10)], None),
        ([(5_000, 10), (5_000, 7)], None),
        ([(7_000, 10), (6_000, 20), (5_000, 99)], 15.0),
    ],
)
def test_how_fast_events_come(commits, rate):
    history = [
        {"timestamp": at, "operation": "WRITE", "operationMetrics": {"numOutputRows": str(rows)}}
        for at, rows in commits
    ]
    # What rewrites files brings no events, and what makes the table has none.
    others = [
        {"timestamp": 1, "operation": "OPTIMIZE", "operationMetrics": {"numOutputRows": "5"}},
        {"timestamp": 0, "operation": "CREATE TABLE"},
    ]
    assert events_per_second([*history, *others]) == rate


def test_the_text_is_read_by_the_client_of_prometheus(lake):
    samples = lake_samples(lake, NOTHING)
    families = list(text_string_to_metric_families(prometheus(samples)))
    actual = {(s.name, tuple(s.labels.items())): s.value for f in families for s in f.samples}
    assert actual == {(f"capstan_{s.metric}", tuple(s.tags.items())): s.value for s in samples}
    worker = (("stream", "flights"), ("worker", ODD))
    assert ("capstan_worker_frontier_lag_seconds", worker) in actual
    kinds = {f.name: f.type for f in families}
    # The client takes `_total` from the name of a counter.
    counters = {s.metric for s in samples if s.metric.endswith("_total")}
    assert {f"{name}_total" for name, kind in kinds.items() if kind == "counter"} == {
        f"capstan_{name}" for name in counters
    }
    assert kinds["capstan_files"] == "gauge"
    assert all(f.documentation for f in families)


def test_what_a_metric_tells_is_no_sentence():
    assert not [name for name, metric in METRICS.items() if metric.about.endswith(".")]


def test_a_sample_has_a_value_for_each_label():
    with pytest.raises(ValueError, match="labels"):
        Sample("files", 1, ("flights",))


def test_dotted_names_keep_their_parts_apart():
    assert dotted(Sample("files", 1, ("flights", "events"))) == "capstan.files.flights.events"
    assert dotted(Sample("worker_frontier_lag_seconds", 1, ("s", "a.b c/ü"))) == (
        "capstan.worker_frontier_lag_seconds.s.a_b_c__"
    )


def test_the_command_prints_them_or_leaves_them_in_a_file(lake, tmp_path, capsys):
    where = ["--lake", lake.root]
    assert main([*where, "metrics"]) == 0
    printed = capsys.readouterr().out
    assert 'capstan_events_total{stream="flights"} 102\n' in printed
    file = tmp_path / "capstan.prom"
    assert main(["--json", *where, "metrics", "--output", str(file)]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert file.read_text(encoding="utf-8") == printed
    assert {"metric": "commits_total", "value": 5, "labels": {"stream": "flights"}} in (
        reported["samples"]
    )
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["capstan.prom"]
    assert main([*where, "metrics", "--output", str(tmp_path / "no" / "file")]) == 2
    assert "CAP-OUTPUT" in capsys.readouterr().err


def test_there_has_to_be_a_lake(tmp_path):
    with pytest.raises(InvalidRequestError, match="CAP-LAKE"):
        lake_samples(Lake.at(tmp_path / "none"), NOTHING)
