"""The declaration file: what is read from it, and where and how it is refused."""

from __future__ import annotations

import dataclasses
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from capstan.core.config import (
    ByColumn,
    ByKey,
    ByPartition,
    Creation,
    EpochTime,
    EventTime,
    LatePolicy,
    Mode,
    ProjectConfig,
    Source,
    load_config,
    load_sound,
)
from capstan.core.config.loading.loader import default_path
from capstan.core.config.models import Watermark
from capstan.errors import InvalidRequestError

PROJECT = Path(__file__).resolve().parents[5]

FLIGHTS = """\
streams:
  flights:
    source: {format: parquet, path: "{lake}/sources/flights", options: {maxFilesPerTrigger: 12}}
    workers: {by: column, column: origin, labels: [EWR, JFK, LGA]}
    time: {domain: event, column: sched_dep, every: 1 hour, lateness: 3 hours}
"""
DAILY = """\
transforms:
  daily:
    sql: SELECT count(*) AS n, day FROM records GROUP BY day
    time: day
    grain: 1 day
"""
EPOCHS = """\
  clicks:
    source: {format: rate}
    workers: {by: key, columns: value, count: 4}
    time: {domain: epoch}
"""


def read(tmp_path: Path, text: str, lake: str = "/lake") -> ProjectConfig:
    path = tmp_path / "streams.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, lake=lake)


def refused(tmp_path: Path, text: str) -> tuple[int, str, str]:
    """Line, key path and problem of the error that `text` is refused with."""
    with pytest.raises(InvalidRequestError) as caught:
        read(tmp_path, text)
    error = caught.value
    assert error.code == "CAP-DECLARE"
    line, key = int(str(error.fields["line"])), str(error.fields["key"])
    where = f"{tmp_path}/streams.yaml:{line}: {key + ': ' if key else ''}"
    assert error.message.startswith(where)
    assert "\n" not in error.message
    return line, key, error.message.removeprefix(where)


def stream(**changed: str) -> str:
    """A stream declaration with lines replaced."""
    fields = {
        "source": "{format: kafka}",
        "workers": "{by: key, columns: [a], count: 4}",
        "time": "{domain: epoch}",
        **changed,
    }
    body = "".join(f"    {key}: {value}\n" for key, value in fields.items())
    return f"streams:\n  flights:\n{body}"


def replay(*lines: str) -> str:
    body = "".join(f"    {line}\n" for line in ("target: there", *lines))
    return f"replays:\n  again:\n{body}"


def test_the_projects_own_file_is_in_order() -> None:
    declared = load_config(PROJECT / "dags" / "streams.yaml", lake="/lake")
    flights = declared.stream("flights")
    assert flights.source.path == "/lake/sources/flights"
    assert flights.source.options == {"maxFilesPerTrigger": "12"}
    assert flights.workers == ByColumn(by="column", column="origin", labels=("EWR", "JFK", "LGA"))
    assert isinstance(flights.time, EventTime)
    assert (flights.time.every, flights.time.lateness) == (timedelta(hours=1), timedelta(hours=3))
    assert flights.late is LatePolicy.DEAD_LETTER
    march = declared.replay("march_departures")
    assert march.workers == ("EWR", "LGA")
    assert march.since == datetime(2013, 3, 1, tzinfo=UTC)
    assert march.until == datetime(2013, 4, 1, tzinfo=UTC)
    assert march.mode is Mode.REPLACE
    assert declared.transforms["flights_by_day"].grain == timedelta(days=1)
    for item in declared.replays.values():
        assert item.target in declared.targets


def test_defaults(tmp_path: Path) -> None:
    flights = read(tmp_path, FLIGHTS).stream("flights")
    assert isinstance(flights.time, EventTime)
    assert flights.time.minimum == datetime(1, 1, 1, tzinfo=UTC)
    assert flights.time.max_ahead is None
    assert flights.time.watermark is Watermark.STREAM
    assert flights.late is LatePolicy.DEAD_LETTER
    assert flights.schedule is None


def test_workers_by_partition_have_watermarks_of_their_own(tmp_path: Path) -> None:
    time = "{domain: event, column: at, every: 1 hour%s}"
    text = stream(workers="{by: partition}", time=time % "")
    kafka = read(tmp_path, text).stream("flights")
    assert kafka.workers == ByPartition(by="partition", column=None)
    assert isinstance(kafka.time, EventTime)
    assert kafka.time.watermark is Watermark.WORKER
    reported = read(tmp_path, stream(workers="{by: partition}", time=time % ", watermark: stream"))
    told_time = reported.stream("flights").time
    assert isinstance(told_time, EventTime)
    assert told_time.watermark is Watermark.STREAM


def test_partitions_of_files_are_their_folders(tmp_path: Path) -> None:
    source = "{format: parquet, path: /in}"
    files = read(tmp_path, stream(source=source, workers="{by: partition}")).stream("flights")
    assert files.workers == ByPartition(by="partition", column=None)


def test_partitions_of_other_sources_have_to_be_named(tmp_path: Path) -> None:
    text = stream(source="{format: rate}", workers="{by: partition}")
    line, key, problem = refused(tmp_path, text)
    assert (line, key) == (4, "streams.flights.workers")
    assert "needs a column" in problem
    reported = read(tmp_path, text.replace("partition}", "partition, column: shard}"))
    assert reported.stream("flights").workers == ByPartition(column="shard")


def test_attached_streams_declare_no_source_settings(tmp_path: Path) -> None:
    declared = read(tmp_path, stream(source="{format: query}")).stream("flights")
    assert declared.source == Source(format="query")
    for more in ("path: /in", "options: {header: true}", "schema: at TIMESTAMP", "select: at"):
        _, key, problem = refused(tmp_path, stream(source=f"{{format: query, {more}}}"))
        assert key == "streams.flights.source"
        assert "only the query knows what it reads" in problem
    text = stream(source="{format: query}", workers="{by: partition}")
    assert "needs a column" in refused(tmp_path, text)[2]


def test_models_are_checked_in_python_too() -> None:
    hour = timedelta(hours=1)
    assert EventTime(column="at", every=hour) == EventTime(
        domain="event", column="at", every=hour, lateness=timedelta()
    )
    with pytest.raises(ValueError, match="time zone"):
        EventTime(column="at", every=hour, minimum=datetime(2013, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="negative"):
        EventTime(column="at", every=hour, lateness=-hour)
    with pytest.raises(ValueError, match="unknown key, did you mean 'lateness'"):
        EventTime(column="at", every=hour, latenes=hour)  # type: ignore[call-arg]


def test_epochs_and_keys(tmp_path: Path) -> None:
    clicks = read(tmp_path, "streams:\n" + EPOCHS).stream("clicks")
    assert clicks.workers == ByKey(by="key", columns=("value",), count=4)
    assert clicks.time == EpochTime()


def test_yaml_does_not_turn_text_into_other_things(tmp_path: Path) -> None:
    source = "{format: kafka, options: {a: NO, b: 07:00, c: 2013-01-01, d: 1_000, e: 'null'}}"
    workers = "{by: column, column: country, labels: [NO, on, 1e3, 010]}"
    flights = read(tmp_path, stream(source=source, workers=workers)).stream("flights")
    assert flights.source.options == {
        "a": "NO", "b": "07:00", "c": "2013-01-01", "d": "1_000", "e": "null",
    }  # fmt: skip
    assert isinstance(flights.workers, ByColumn)
    assert flights.workers.labels == ("NO", "on", "1e3", "010")


def test_models_are_frozen(tmp_path: Path) -> None:
    declared = read(tmp_path, FLIGHTS + DAILY)
    with pytest.raises(dataclasses.FrozenInstanceError):
        declared.stream("flights").late = LatePolicy.FAIL  # type: ignore[misc]
    with pytest.raises(TypeError):
        declared.streams["x"] = declared.stream("flights")  # type: ignore[index]


def test_the_lake_is_filled_in_where_it_may_stand(tmp_path: Path) -> None:
    text = FLIGHTS.replace("maxFilesPerTrigger: 12", 'copy: "{lake}/copy", json: \'{"a":{"0":1}}\'')
    text += 'targets:\n  march: {path: "{lake}/march"}\n'
    declared = read(tmp_path, text, lake="s3a://bucket/lake")
    source = declared.stream("flights").source
    assert source.path == "s3a://bucket/lake/sources/flights"
    assert source.options == {"copy": "s3a://bucket/lake/copy", "json": '{"a":{"0":1}}'}
    assert declared.targets["march"].path == "s3a://bucket/lake/march"


@pytest.mark.parametrize(
    ("old", "new", "key", "problem"),
    [
        ("{lake}/", "{lakes}/", "source.path", "{lakes} is not a variable, did you mean 'lake'?"),
        ("{lake}/", "{}/", "source.path", "{} is not a variable"),
        ("{lake}/", "{lake/", "source.path", "unpaired brace"),
        ("12", '"{home}/x"', "source.options.maxFilesPerTrigger", "{home} is not a variable"),
    ],
)
def test_no_other_variable_is_known(
    tmp_path: Path, old: str, new: str, key: str, problem: str
) -> None:
    line, at, printed = refused(tmp_path, FLIGHTS.replace(old, new))
    assert (line, at) == (3, f"streams.flights.{key}")
    assert problem in printed


@pytest.mark.parametrize(
    ("field", "value", "key", "said"),
    [
        ("time", "{domain: event, column: a, every: soon}", "time.every", "'15 minutes'"),
        ("time", "{domain: event, column: a, every: 0 hours}", "time.every", "more than zero"),
        ("time", "{domain: event, column: a, every: [1]}", "time.every", "found a list"),
        ("time", "{domain: event, column: a}", "time.every", "is missing"),
        ("time", "{domain: event, every: 1 hour}", "time", "column or expression"),
        (
            "time",
            "{domain: event, every: 1 hour, column: a, expression: b}",
            "time",
            "column or expression",
        ),
        (
            "time",
            "{domain: event, every: 1 hour, expression: now()}",
            "time.expression",
            "calls now",
        ),
        (
            "time",
            "{domain: event, every: 1 hour, column: a, unit: ns}",
            "time.unit",
            "none of: s, ms or us",
        ),
        ("time", "{domain: epoch, unit: ms}", "time.unit", "unknown key"),
        ("time", "{domain: event, every: 1 hour, column: a b}", "time.column", "a column's name"),
        (
            "time",
            "{domain: event, every: 1 hour, column: a, minimum: never}",
            "time.minimum",
            "ISO 8601",
        ),
        (
            "time",
            "{domain: event, every: 1 hour, column: a, watermark: mine}",
            "time.watermark",
            "none of: stream or worker",
        ),
        (
            "time",
            "{domain: event, colunm: a, every: 1 hour}",
            "time.colunm",
            "did you mean 'column'?",
        ),
        ("time", "{domain: evnt}", "time.domain", "epoch, event or 'epoch, event', found 'evnt'"),
        ("time", "{every: 1 hour}", "time.domain", "epoch, event or 'epoch, event', found nothing"),
        ("time", "hourly", "time.domain", "epoch, event or 'epoch, event'"),
        ("workers", "{by: size}", "workers.by", "key, column or partition, found 'size'"),
        ("workers", "{by: key, columns: [a]}", "workers.count", "is missing"),
        ("workers", "{by: key, columns: [a], count: 0}", "workers.count", "greater than or equal"),
        ("workers", "{by: key, columns: [a], count: four}", "workers.count", "integer"),
        ("workers", "{by: key, columns: [], count: 4}", "workers.columns", "name at least one"),
        ("workers", "{by: key, columns: [a, a], count: 4}", "workers.columns", "twice"),
        ("workers", "{by: column, column: a, labels: [x, x]}", "workers.labels", "'x' twice"),
        ("workers", "{by: column, column: a, labels: [[x]]}", "workers.labels.0", "must be text"),
        ("workers", "{by: column, column: a, count: 4}", "workers.count", "column or labels"),
        ("source", "{format: parquet}", "source", "needs a path"),
        ("source", "{format: 'a b'}", "source.format", "match"),
        ("source", "{format: kafka, paht: /x}", "source.paht", "did you mean 'path'?"),
        ("source", "{format: kafka, options: [a]}", "source.options", "must be a mapping"),
        ("source", "{format: kafka, options: {a: [b]}}", "source.options.a", "must be text"),
        ("source", "parquet", "source", "must be a mapping"),
        ("source", "{format: kafka, select: 'a, now()'}", "source.select.1", "calls now"),
        ("source", "{format: kafka, select: 'a, '}", "source.select.1", "is empty"),
        ("source", "{format: kafka, select: []}", "source.select", "is empty"),
        ("source", "{format: kafka, select: [SELECT a]}", "source.select.0", "without SELECT"),
        ("source", "{format: kafka, where: 'a IN (SELECT b)'}", "source.where", "a subquery"),
        ("source", "{format: kafka, where: 'a; b'}", "source.where", "contains a ';'"),
        ("source", "{}", "source", "needs a format, a function or a table"),
        ("source", "{format: kafka, function: 'a:b'}", "source", "only one of them"),
        ("source", "{format: delta, path: /x, table: a.b}", "source", "only one of them"),
        ("source", "{function: 'a:b', path: /x}", "source", "read from a function, without them"),
        ("source", "{table: a.b, schema: a INT}", "source", "read from a table by name, without"),
        ("source", "{table: 'a b'}", "source.table", "match"),
        ("source", "{table: /data/a}", "source.table", "match"),
        ("source", "{table: a.b.c.d.e}", "source.table", "match"),
        ("source", "{function: a.b}", "source.function", "package.module:function"),
        ("source", "{format: csv, path: /x, select: a}", "source", "needs a schema"),
        ("source", "{format: json, path: /x, where: a}", "source", "needs a schema"),
        ("late", "dead_letter", "late", "did you mean 'dead-letter'?"),
        ("late", "drop", "late", "none of: dead-letter, advance or fail"),
        ("late", "null", "late", "nothing is none of"),
        ("schedule", "'* * *'", "schedule", "cron of five fields"),
        ("name", "other", "name", "the name is the key above it"),
        ("sorce", "x", "sorce", "did you mean 'source'?"),
    ],
)
def test_each_error_names_its_line_and_key_and_what_is_allowed(
    tmp_path: Path, field: str, value: str, key: str, said: str
) -> None:
    text = stream(**{field: value})
    line, at, problem = refused(tmp_path, text)
    assert at == f"streams.flights.{key}"
    assert said in problem
    written = [i for i, item in enumerate(text.splitlines(), 1) if item.startswith(f"    {field}:")]
    assert [line] == written


def test_nested_lines_are_those_of_the_key(tmp_path: Path) -> None:
    text = """\
    # a comment
    streams:

      flights:
        source:
          format: kafka
        workers:
          by: key
          columns:
            - a
            - "b;c"
          count: 4
        time:
          domain: epoch
    """
    line, key, problem = refused(tmp_path, textwrap.dedent(text))
    assert (line, key) == (11, "streams.flights.workers.columns.1")
    assert "'b;c' cannot name a column" in problem


def test_what_is_missing_is_missed_at_the_key_around_it(tmp_path: Path) -> None:
    text = """\
    streams:
      flights:
        source: {format: kafka}
        workers:
          # at first

          by: key
          columns: [a]
        time: {domain: epoch}
    """
    line, key, _ = refused(tmp_path, textwrap.dedent(text))
    assert (line, key) == (4, "streams.flights.workers.count")


def test_of_several_errors_the_first_in_the_file_is_named(tmp_path: Path) -> None:
    text = stream(late="never", source="{}", workers="{by: key}")
    backwards = ["streams:", "  flights:", *reversed(text.splitlines()[2:])]
    with pytest.raises(InvalidRequestError) as caught:
        read(tmp_path, "\n".join(backwards))
    assert "streams.yaml:3: streams.flights.late: 'never'" in caught.value.message
    assert caught.value.hint.startswith("3 more")


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("streams: {}\nstreams: {}\n", (2, "streams"), "the first is on line 1"),
        (FLIGHTS + "    time: {domain: epoch}\n", (6, "streams.flights.time"), "duplicate key"),
        ("steams: {}\n", (1, "steams"), "did you mean 'streams'?"),
        ("streams: [a]\n", (1, "streams"), "must be a mapping of names"),
        ("- a\n", (1, ""), "must be a mapping"),
        ("streams:\n  a: {b: c\n  d: e\n", (3, ""), "expected"),
        ("streams:\n\ta: b\n", (2, ""), "found character"),
        ("a: &x {b: c}\nstreams: *x\n", (2, ""), "aliases"),
        ("streams:\n  ? [a]\n  : b\n", (2, "streams"), "plain word"),
        ("streams: " + "[" * 60 + "]" * 60 + "\n", (1, ""), "nested deeper than 50"),
        ("streams:\n  ../etc: {}\n", (2, "streams.../etc"), "cannot name a stream"),
        ("streams:\n  a': {}\n", (2, "streams.a'"), "cannot name a stream"),
        ("streams:\n  flights: parquet\n", (2, "streams.flights"), "must be a mapping of keys"),
        ("targets:\n  march: {path: ../x}\n", (2, "targets.march.path"), "contains '..'"),
        (
            "targets:\n  march: {create: {partition_by: day, cluster_by: id}}\n",
            (2, "targets.march.create"),
            "has partition_by and cluster_by; Delta allows only one of them",
        ),
        (
            "targets:\n  march: {create: {properties: {capstan.format: 2}}}\n",
            (2, "targets.march.create.properties"),
            "'capstan.format' is Capstan's own",
        ),
        (
            "targets:\n  march: {create: {properties: {delta.appendOnly: 'true'}}}\n",
            (2, "targets.march.create.properties"),
            "would let no run be rolled back",
        ),
        (
            "targets:\n  march: {create: {properties: {'a b': 'c'}}}\n",
            (2, "targets.march.create.properties"),
            "'a b' is no name of a property",
        ),
        (
            "targets:\n  march: {create: {cluster_by: [a, b, c, d, e]}}\n",
            (2, "targets.march.create.cluster_by"),
            "has 5 columns; Delta clusters by 4 at most",
        ),
        (
            "targets:\n  march: {create: {cluster_by: [_time.event, _time.a b]}}\n",
            (2, "targets.march.create.cluster_by.1"),
            "'a b' cannot name a column",
        ),
        ("targets:\n  march: {columns: []}\n", (2, "targets.march.columns"), "at least one"),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, text: str, place: tuple[int, str], said: str
) -> None:
    line, key, problem = refused(tmp_path, text)
    assert (line, key) == place
    assert said in problem


def test_how_a_target_is_created(tmp_path: Path) -> None:
    text = """\
targets:
  days: {create: {partition_by: day}}
  hours:
    create:
      cluster_by: [_time.event, id]
      properties: {delta.enableChangeDataFeed: true}
"""
    declared = read(tmp_path, text).targets
    assert declared["days"].create == Creation(partition_by=("day",))
    hours = declared["hours"].create
    assert hours == Creation(
        cluster_by=("_time.event", "id"), properties={"delta.enableChangeDataFeed": "true"}
    )
    assert hours.columns == ("_time", "id")


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "streams:\ntargets: {}\n", "{}"])
def test_nothing_declared_is_in_order(tmp_path: Path, text: str) -> None:
    assert not read(tmp_path, text).streams


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"CAP-DECLARE.*gone.yaml: cannot be read"):
        load_config(tmp_path / "gone.yaml", lake="/lake")
    (tmp_path / "latin.yaml").write_bytes(b"streams: \xff\n")
    with pytest.raises(InvalidRequestError, match=r"CAP-DECLARE.*not UTF-8"):
        load_config(tmp_path / "latin.yaml", lake="/lake")


@pytest.mark.parametrize(
    ("lines", "key", "said"),
    [
        (["stream: flihgts"], "stream", "did you mean 'flights'?"),
        (["stream: flights", "transform: dayly"], "transform", "did you mean 'daily'?"),
        (["stream: flights", "workers: [EWR, JFX]"], "workers", "did you mean 'JFK'?"),
        (["stream: flights", "since: 7"], "since", "give an instant"),
        (["stream: clicks", "until: 2013-01-01"], "until", "number of a micro-batch"),
        (["stream: clicks", "until: 9999999999999999999"], "until", "BIGINT"),
        (["stream: flights", "since: 2013-02-01", "until: 2013-01-01"], "until", "after since"),
        (["stream: clicks", "since: 3", "until: 3"], "until", "after since"),
        (
            ["stream: flights", "until: 2013-01-01T05:30:00Z"],
            "until",
            "not a multiple of 1 hour, the times of flights",
        ),
        (["stream: clicks", "partitions: true"], "partitions", "needs event times"),
        (["stream: flights", "mode: merge"], "mode", "merge needs keys"),
        (["stream: flights", "mode: upsert"], "mode", "replace, append or merge"),
        (["stream: flights", "transform: daily", "workers: [EWR]"], "workers", "leave out workers"),
        (
            ["stream: flights", "transform: daily", "since: 2013-01-01T05:00:00Z"],
            "since",
            "not a multiple of 1 day",
        ),
        (
            ["stream: flights", "transform: total", "since: 2013-01-01"],
            "mode",
            "use append or merge",
        ),
        (["stream: flights", "transform: odd"], "transform", "not a multiple of 1 hour"),
    ],
)
def test_a_replay_fits_its_stream_and_transform(
    tmp_path: Path, lines: list[str], key: str, said: str
) -> None:
    others = """\
  total: {sql: SELECT count(*) FROM records}
  odd: {sql: SELECT day FROM records, time: day, grain: 90 minutes}
"""
    text = FLIGHTS + EPOCHS + DAILY + others + replay(*lines)
    line, at, problem = refused(tmp_path, text)
    assert at == f"replays.again.{key}"
    assert said in problem
    written = [i for i, item in enumerate(text.splitlines(), 1) if item.startswith("  again:")]
    assert written[0] < line <= written[0] + 1 + len(lines) or key == "mode"


def test_replays_that_fit_are_read(tmp_path: Path) -> None:
    lines = ["stream: flights", "transform: daily", "since: 2013-01-01", "until: 2013-03-01"]
    again = read(tmp_path, FLIGHTS + DAILY + replay(*lines)).replay("again")
    assert (again.workers, again.mode, again.keys) == (None, Mode.REPLACE, ())
    numbers = replay("stream: clicks", "since: 3", "until: 5", "workers: ['0', '1']")
    epochs = read(tmp_path, FLIGHTS + EPOCHS + numbers).replay("again")
    assert (epochs.since, epochs.until, epochs.workers) == (3, 5, ("0", "1"))


def test_an_unknown_stream_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    declared = read(tmp_path, FLIGHTS)
    with pytest.raises(InvalidRequestError) as caught:
        declared.stream("flight")
    assert caught.value.code == "CAP-STREAM"
    assert "did you mean 'flights'?" in caught.value.message
    assert "declares: flights" in caught.value.hint
    with pytest.raises(InvalidRequestError, match="CAP-REPLAY"):
        declared.replay("again")


def test_the_default_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAPSTAN_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    assert default_path() == PROJECT / "dags" / "streams.yaml"
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "streams.yaml").touch()
    assert default_path() == Path("dags/streams.yaml")
    monkeypatch.setenv("CAPSTAN_CONFIG", "/elsewhere.yaml")
    assert default_path() == Path("/elsewhere.yaml")


def test_the_former_name_of_the_variable_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAPSTAN_CONFIG", raising=False)
    monkeypatch.setenv("CAPSTAN_STREAMS", "/former.yaml")
    assert default_path() == Path("/former.yaml")
    monkeypatch.setenv("CAPSTAN_CONFIG", "/elsewhere.yaml")
    assert default_path() == Path("/elsewhere.yaml")


def test_what_is_right_is_read_beside_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "streams.yaml"
    path.write_text(
        """
stremas: {}
streams:
  good: {source: {format: parquet, path: "{lake}/a"}, workers: {by: key, columns: [id], count: 2},
    time: {domain: epoch}}
  bad: {source: {format: parquet, path: "{lake}/b"}, worker: {by: key}, time: {domain: epoch}}
  brace: {source: {format: parquet, path: "{lakes}/b"}, workers: {by: key, columns: [id], count: 2},
    time: {domain: epoch}}
targets:
  wide: {columns: 7}
replays:
  one: {stream: good, target: t}
  two: {stream: bad, target: t}
""",
        encoding="utf-8",
    )
    actual = load_sound(path, lake="/lake")
    assert (set(actual.streams), set(actual.replays)) == ({"good"}, {"one"})
    assert [mistake.place for mistake in actual.mistakes] == [
        ("stremas",), ("streams", "brace"), ("streams", "bad"), ("targets", "wide"),
        ("replays", "two"),
    ]  # fmt: skip
    assert {mistake.error.code for mistake in actual.mistakes} == {"CAP-DECLARE"}
    for ask in (
        lambda: actual.stream("bad"),
        lambda: actual.replay("two"),
        lambda: actual.require_sound("targets", "wide"),
        lambda: actual.require_sound("targets", None),
        lambda: load_config(path, lake="/lake"),
    ):
        with pytest.raises(InvalidRequestError, match="CAP-DECLARE"):
            ask()
    actual.require_read()
    actual.require_sound("targets", "other")
    with pytest.raises(InvalidRequestError, match="CAP-STREAM"):
        actual.stream("nobody")


def test_of_a_file_that_cannot_be_read_nothing_is_left(tmp_path: Path) -> None:
    actual = load_sound(tmp_path / "none.yaml", lake="/lake")
    assert (dict(actual.streams), len(actual.mistakes)) == ({}, 1)
    for ask in (actual.require_read, lambda: actual.stream("s")):
        with pytest.raises(InvalidRequestError, match="cannot be read"):
            ask()


def test_the_module_of_a_source_is_shipped_and_not_imported(tmp_path: Path) -> None:
    (tmp_path / "shop_sources.py").write_text("raise RuntimeError", encoding="utf-8")
    config = read(tmp_path, stream(source="{function: 'shop_sources:orders', options: {a: 1}}"))
    assert config.modules == (tmp_path / "shop_sources.py",)
    assert config.stream("flights").source.options == {"a": "1"}
    sys.path.remove(str(tmp_path))


def test_roots_are_a_list_among_the_targets(tmp_path: Path) -> None:
    roots = '["{lake}", "{here}/tables/", s3://bucket/tables]'
    config = read(tmp_path, f"targets:\n  roots: {roots}\n  day: {{time: day}}\n")
    assert config.roots == ("/lake", f"{tmp_path}/tables", "s3a://bucket/tables")
    assert list(config.targets) == ["day"]
    assert read(tmp_path, 'targets: {roots: "/data"}').roots == ("/data",)
    # A mapping, or nothing, is a target of that name, as before there were roots.
    for given in ("{time: day}", ""):
        config = read(tmp_path, f"targets:\n  roots: {given}\n")
        assert (config.roots, list(config.targets)) == ((), ["roots"])


@pytest.mark.parametrize(
    ("roots", "problem"),
    [
        ("[]", "is empty; name at least one"),
        ("[[2]]", "must be a list of folders and URIs"),
        ("[data]", "'data' cannot be a root: a path starts with '/'"),
        ("[/data/../etc]", "cannot be a root: it contains '..'"),
        ("[/]", "cannot be a root: it is the root of all files"),
        ('["{lak}/x"]', "{lak} is not a variable, did you mean 'lake'?"),
    ],
)
def test_a_mistake_in_roots_binds_forms_to_nothing(
    tmp_path: Path, roots: str, problem: str
) -> None:
    path = tmp_path / "streams.yaml"
    path.write_text(f"targets:\n  roots: {roots}\n  day: {{time: day}}\n", encoding="utf-8")
    config = load_sound(path, lake="/lake")
    [mistake] = config.mistakes
    assert mistake.place == ("targets", "roots")
    assert problem in mistake.error.message
    assert f"{path}:2" in mistake.error.message
    # The other targets stay, and no form may name one of its own.
    assert list(config.targets) == ["day"]
    with pytest.raises(InvalidRequestError, match="CAP-DECLARE"):
        config.require_sound("targets", "roots")
