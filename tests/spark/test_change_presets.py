"""Presets of change streams: random messages of each, against a model in plain Python."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from capstan.capture.run import capture, close
from capstan.core.config import Mode, ProjectConfig, load_config
from capstan.replay.planning.request import Request
from capstan.replay.run import replay, rollback
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import open_tape

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

START = 1714521600000
HOUR = 3_600_000
MIDDLE = "2024-05-01T12:00:00Z"
MARKER = "__debezium_unavailable_value"
Row = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """What became of a row: `was` before, `now` after; neither for a truncate."""

    kind: str
    was: int | None = None
    now: int | None = None
    name: str | None = None
    city: str | None = None


def history(random: Random, length: int, *, truncates: bool, partial: bool) -> list[Change]:
    """Changes of a few keys in their order; each is one that its database could make."""
    made: list[Change] = []
    rows: dict[int, tuple[str, str]] = {}
    for number in range(length):
        name, city = f"name {number}", random.choice(["Ulm", "Jena", "'", "Ü"])
        free = [key for key in range(1, 7) if key not in rows]
        kind = random.choice("iiuuuumd" + "t" * truncates)
        if kind == "t" and random.random() < 0.5:
            made.append(Change("t"))
            rows.clear()
        elif kind == "i" and free:
            rows[random.choice(free)] = (name, city)
            made.append(Change("i", None, list(rows)[-1], name, city))
        elif rows and kind in "umd":
            key = random.choice(sorted(rows))
            if kind == "d":
                del rows[key]
                made.append(Change("d", key))
            elif kind == "m" and free:
                moved = random.choice(free)
                del rows[key]
                rows[moved] = (name, city)
                made.append(Change("m", key, moved, name, city))
            elif kind == "u":
                rows[key] = (name, city)
                kept = partial and random.random() < 0.4
                made.append(Change("u", key, key, MARKER if kept else name, city))
    return made


def model(changes: list[Change]) -> list[tuple[int, str | None, str | None]]:
    """The rows that changes result in."""
    rows: dict[int, tuple[str | None, str | None]] = {}
    for change in changes:
        if change.kind == "t":
            rows.clear()
            continue
        before = rows.get(change.was) if change.was is not None else None
        if change.was is not None:
            rows.pop(change.was, None)
        if change.now is not None:
            name = before[0] if before and change.name == MARKER else change.name
            rows[change.now] = (name, change.city)
    return sorted((key, *values) for key, values in rows.items())


Encode = Callable[[Change, int, Random], list[tuple[Any, Any]]]


def _position(database: str, at: int, number: int) -> Row:
    return {
        "postgresql": {"lsn": 100 + number, "txId": 7},
        "mysql": {
            "file": f"binlog.{999998 + number // 9:06}",
            "pos": 5 + (number % 9) // 3 * 95,
            "row": number % 3,
        },
        "sqlserver": {
            "commit_lsn": f"0000002a:{0xFFFFFFF0 + number // 4:08x}:0005"
            if number < 60
            else f"0000002b:{number:08x}:0001",
            "change_lsn": f"0000002a:00000758:{(number % 4) // 2:04x}",
            "event_serial_no": str(1 + number % 2),
        },
        "mongodb": {"ord": number % 7},
    }[database] | {"ts_ms": START + number // 7 * 1000 if database == "mongodb" else at}


def envelopes(database: str, change: Change, number: int, at: int, random: Random) -> Any:
    """The messages for a change, as the documentation of Debezium defines them."""

    def row(key: int | None, name: str | None, city: str | None) -> Any:
        if key is None:
            return None
        if database == "mongodb":
            return json.dumps({"_id": key, "name": name, "city": city})
        return {"id": key, "name": name, "city": city}

    def message(op: str, before: Any, after: Any, key: int | None) -> tuple[str | None, str]:
        value: Row = {"before": before, "after": after, "op": op, "ts_ms": at}
        value["source"] = {**_position(database, at, number), "snapshot": "false"}
        identity: Row = {"id": str(key)} if database == "mongodb" else {"id": key}
        if number % 2:
            value, identity = (
                {"schema": {"type": "struct"}, "payload": item} for item in (value, identity)
            )
        return None if key is None else json.dumps(identity), json.dumps(value)

    if change.kind == "t":
        return [message("t", None, None, None)]
    after = row(change.now, change.name, change.city)
    # Of a row that is deleted or that moves, the log has its key, and perhaps the rest.
    rest = random.choice([None, "old"])
    before = row(change.was, rest, rest)
    if database == "mongodb" or (change.kind == "u" and random.random() < 0.5):
        before = None
    if change.kind == "m" and (database == "mongodb" or random.random() < 0.5):
        # As Debezium itself sends it: a delete, and then an insert.
        gone = message("d", before, None, change.was)
        return [gone, (gone[0], None), message("c", None, after, change.now)]
    key = change.now if change.now is not None else change.was
    op = {"i": random.choice("cr"), "u": "u", "m": "u", "d": "d"}[change.kind]
    made = [message(op, before, after, key)]
    return [*made, (made[0][0], None)] if op == "d" else made


@dataclass
class Sent:
    """Messages with their times; `changes` are what they tell, by half of the day."""

    messages: list[tuple[str | None, str | None, int]] = field(default_factory=list)
    halves: tuple[list[Change], list[Change]] = field(default_factory=lambda: ([], []))


def send(database: str, random: Random) -> Sent:
    """The messages of two halves of a day. The second half needs no value of the first."""
    sent, number = Sent(), 0
    for half, hour in zip(sent.halves, (1, 13), strict=True):
        options = {
            "truncates": database not in ("mongodb", "kafka"),
            "partial": database == "postgresql",
        }
        half += history(random, 30, **options)
        for change in half:
            at = START + hour * HOUR + number
            if database == "kafka":
                pairs = topic_messages(change)
            else:
                pairs = envelopes(database, change, number, at, random)
            sent.messages += [(key, value, at) for key, value in pairs]
            number += 1
    return sent


def topic_messages(change: Change) -> list[tuple[str | None, str | None]]:
    """The messages of a compacted topic for a change."""
    gone = [] if change.was in (None, change.now) else [(str(change.was), None)]
    value = json.dumps({"name": change.name, "city": change.city})
    return [*gone, *([] if change.now is None else [(str(change.now), value)])]


def config_of(folder: Path, database: str) -> ProjectConfig:
    """A stream of messages that lie in a Delta table with the columns of a topic."""
    key = "_id" if database == "mongodb" else "id"
    changes = {
        "columns": f"{key} BIGINT, name STRING, city STRING",
        "keys": [key],
        "key": "key",
        "offset": "offset",
        "timestamp": "timestamp",
        **(
            {"format": "kafka"}
            if database == "kafka"
            else {"format": "debezium", "database": database}
        ),
    }
    time = {"column": "__timestamp", "every": "1 hour", "lateness": "2 days"}
    stream = {
        "source": {"format": "delta", "path": str(folder / "topic"), "changes": changes},
        "workers": {"by": "key", "columns": [key], "count": 3},
        "time": {"domain": "event", **time},
    }
    path = folder / "streams.yaml"
    path.write_text(json.dumps({"streams": {"shop": stream}}), encoding="utf-8")
    return load_config(path, lake=str(folder / "lake"))


def write(
    spark: SparkSession, folder: Path, messages: list[tuple[int, str | None, str | None, int]]
) -> None:
    """Append messages to the topic."""
    frame = spark.createDataFrame(messages, "offset BIGINT, key STRING, value STRING, at BIGINT")
    columns = ["offset", "CAST(key AS BINARY) key", "CAST(value AS BINARY) value"]
    rows = frame.selectExpr(*columns, "timestamp_millis(at) AS timestamp")
    rows.coalesce(1).write.format("delta").mode("append").save(str(folder / "topic"))


@pytest.mark.parametrize(
    ("database", "seed"),
    [
        ("postgresql", 1),
        ("mysql", 1),
        ("sqlserver", 1),
        ("mongodb", 1),
        ("kafka", 1),
        *(
            pytest.param(database, seed, marks=pytest.mark.nightly)
            for database in ("postgresql", "mysql", "sqlserver", "mongodb", "kafka")
            for seed in range(2, 6)
        ),
    ],
)
def test_messages_result_in_the_rows_of_the_model(
    spark: SparkSession, tmp_path: Path, database: str, seed: int
) -> None:
    random = Random(f"{database} {seed}")
    sent = send(database, random)
    config, lake = config_of(tmp_path, database), Lake.at(tmp_path / "lake")
    messages = [(offset, *message) for offset, message in enumerate(sent.messages)]
    random.shuffle(messages)
    cut = len(messages) // 2
    for part in (messages[:cut], messages[cut:]):
        write(spark, tmp_path, part)
        done = capture(spark, lake, config.streams["shop"])
        # Tombstones and the like are counted, and are no rows.
        assert done.fed == done.records + done.late.get("no-row", 0)
    close(spark, lake, "shop")

    def table() -> list[tuple[Any, ...]]:
        columns = ["_id" if database == "mongodb" else "id", "name", "city"]
        return sorted(pl.read_delta(lake.table("shop")).select(columns).rows())

    ranges = [{"since": MIDDLE}, {"until": MIDDLE}]
    order = random.sample([0, 1], 2)
    runs = {}
    for place in order:
        request = Request("shop", "shop", mode=Mode.MERGE, **ranges[place])
        runs[place] = replay(spark, lake, config, request)
    first, second = sent.halves
    assert table() == model([*first, *second])

    rollback(spark, lake, config, runs[1].certificate.run)

    assert table() == model(second)


NOISE = [
    (None, 0),
    (json.dumps({"op": "m", "ts_ms": START, "message": {"prefix": "p", "content": "aA=="}}), 0),
    (json.dumps({"ts_ms": START}), 0),
    (json.dumps({"schema": {}, "payload": {"ts_ms": START}}), 0),
    (json.dumps({"schema": None, "payload": None}), 0),
    (json.dumps({"status": "BEGIN", "id": "7", "event_count": None, "ts_ms": START}), 0),
    (json.dumps({"source": {}, "ts_ms": START, "ddl": "CREATE TABLE t (id INT)"}), 0),
    ("garbage", 1),
    ("", 1),
    ("{}", 1),
    ("null", 1),
    (json.dumps({"ts_ms": START, "id": 1}), 1),
    (json.dumps({"id": 1, "name": "flat", "__op": "u"}), 1),
]
_SOURCE = {"lsn": 5}
NOISE += [
    (json.dumps({"ts_ms": START, "source": _SOURCE, **each}), 1)
    for each in (
        {"op": "x", "after": {"id": 1}},
        {"after": {"id": 1}},
        {"op": "c", "after": {"name": "no key"}},
        {"op": "u", "after": None},
        {"op": "d", "before": None},
        {"op": "d", "before": {"name": "no key"}},
        {"op": "c", "after": {"id": "one"}},
        {"op": "c", "after": {"id": 1}, "source": {}},
        {"op": "u", "after": {"id": 1}, "source": {"lsn": "?"}},
        {"op": "t", "source": None},
    )
]


def test_what_is_no_change_is_late_or_no_row(spark: SparkSession, tmp_path: Path) -> None:
    good = json.dumps({"op": "c", "ts_ms": START, "source": _SOURCE, "after": {"id": 9}})
    write(
        spark,
        tmp_path,
        [(n, None, text, START) for n, text in enumerate([good, *(text for text, _ in NOISE)])],
    )
    config, lake = config_of(tmp_path, "postgresql"), Lake.at(tmp_path / "lake")

    result = capture(spark, lake, config.streams["shop"])

    wrong = sum(n for _, n in NOISE)
    assert result.records == 1
    assert dict(result.late) == {"malformed": wrong, "no-row": len(NOISE) - wrong}
    late = pl.read_delta(open_tape(lake, "shop").paths.late)["raw"].drop_nulls().to_list()
    for text, times in NOISE:
        known = [raw for raw in late if raw == text or raw.endswith(f": {text}")]
        assert not times or known, text
    assert Counter(raw.partition(":")[0] for raw in late)["unknown op x"] == 1


def test_what_is_no_row_of_a_topic_is_late(spark: SparkSession, tmp_path: Path) -> None:
    row = json.dumps({"name": "a", "city": None})
    messages = [("1", row), ("2", None), ("3", "{}"), ('{"id": 4}', row)]
    wrong = [(None, row), ("x", row), ("5", "?"), ("6", "null"), ("7", '{"payload": {"name": 1}}')]
    numbered = enumerate([*messages, *wrong])
    write(spark, tmp_path, [(offset, *message, START) for offset, message in numbered])
    config, lake = config_of(tmp_path, "kafka"), Lake.at(tmp_path / "lake")

    result = capture(spark, lake, config.streams["shop"])

    assert (result.records, dict(result.late)) == (len(messages), {"malformed": len(wrong)})


def test_envelopes_in_lines_of_text(spark: SparkSession, tmp_path: Path) -> None:
    def envelope(op: str, before: Any, after: Any, lsn: int) -> str:
        value = {"before": before, "after": after, "op": op, "ts_ms": START + lsn}
        return json.dumps({**value, "source": {"lsn": lsn}})

    lines = [
        envelope("c", None, {"id": 2, "name": "b"}, 12),
        envelope("t", None, None, 14),
        envelope("c", None, {"id": 1, "name": "long"}, 15),
        envelope("u", None, {"id": 1, "name": MARKER}, 16),
        envelope("c", None, {"id": 5, "name": "e"}, 20),
        envelope("u", {"id": 5, "name": None}, {"id": 7, "name": "e"}, 21),
    ]
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "0.txt").write_text("\n".join(lines), encoding="utf-8")
    text = f"""\
streams:
  shop:
    source:
      format: text
      path: {tmp_path / "m"}
      schema: value STRING
      changes:
        {{format: debezium, database: postgresql, columns: 'id BIGINT, name STRING', keys: [id]}}
    workers: {{by: key, columns: [id], count: 2}}
    time: {{domain: event, column: __ts_ms, unit: ms, every: 1 hour}}
"""
    (tmp_path / "streams.yaml").write_text(text, encoding="utf-8")
    lake = Lake.at(tmp_path / "lake")
    config = load_config(tmp_path / "streams.yaml", lake=lake.root)
    capture(spark, lake, config.streams["shop"])
    close(spark, lake, "shop")

    replay(spark, lake, config, Request("shop", "shop", mode=Mode.MERGE))

    rows = pl.read_delta(lake.table("shop")).select("id", "name").rows()
    assert sorted(rows) == [(1, "long"), (7, "e")]
