"""Truncates, partial rows and sequences of text, against models in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from capstan.core.config import Mode, Transform
from capstan.core.config.change_rules import ChangeRule
from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.replay.output.change_rows import (
    GONE,
    changes_of,
    named,
    require_rule_fits,
    require_sequence,
    table_rows,
    table_schema,
)
from capstan.replay.output.sequence_order import orders
from capstan.replay.preview import preview
from capstan.replay.publish.change_merges import rows_to_merge
from capstan.replay.publish.diff import difference
from capstan.replay.standalone_audit import audit_run
from capstan.storage.ledger.runs import read_history
from tests.support.replay_harness import Play
from tests.support.sample_streams import HOUR, START, Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id INT, n INT, op STRING, a STRING, b STRING"
MARKER = "~"
LOST = object()
RULE = ChangeRule(("id",), ("n",), "op = 'd'", truncate_when="op = 't'", unchanged=MARKER)
HISTORY = ChangeRule(("id",), ("n",), "op = 'd'", True, "op = 't'", MARKER)
PLAIN = ChangeRule(("id",), ("n",), "op = 'd'", truncate_when="op = 't'")
Change = tuple[int | None, int, str, str | None, str | None]


def changes(random: Random, count: int, *, partial: bool) -> list[Change]:
    """Changes of a few keys, one of them null; equal sequences have one possible winner."""
    made: dict[tuple[object, int], Change] = {}
    for _ in range(count):
        key, n = random.choice([None, 1, 2]), random.randrange(40)
        op = random.choice("uuuuuuudt" if partial else "uuuudt")
        a, b = (random.choice(["x", "y", None]) for _ in "ab")
        if partial and op == "u" and random.random() < 0.4:
            a, b = random.choice([(MARKER, b), (a, MARKER), (MARKER, MARKER)])
        change = (None, n, op, None, None) if op == "t" else (key, n, op, a, b)
        made.setdefault((op == "t" or key, n), change)
    return whole_where_needed(list(made.values()))


def whole_where_needed(made: list[Change]) -> list[Change]:
    """The changes, whole where no earlier one has a value: all of them together are a table."""
    reported, alive = [], set()
    for key, n, op, a, b in sorted(made, key=lambda c: (c[1], c[2] != "t")):
        if op == "u" and key not in alive:
            a, b = ("new" if value == MARKER else value for value in (a, b))
        alive = set() if op == "t" else alive - {key} if op == "d" else alive | {key}
        reported.append((key, n, op, a, b))
    return reported


def rows_after(made: list[Change], *, history: bool) -> set[tuple[object, ...]] | None:
    """The rows after all changes, one after the other; None when one of them lacks a value."""
    ended: list[list[Any]] = []
    live: dict[object, list[Any]] = {}
    # A truncate removes what is before its sequence, and not what is at it.
    for key, n, op, a, b in sorted(made, key=lambda c: (c[1], c[2] != "t")):
        gone = list(live) if op == "t" else [key] if key in live else []
        last = {item: live.pop(item) for item in gone}
        ended += [[*row, n] for row in last.values()]
        if op == "u":
            before = last.get(key, [key, n, "u", LOST, LOST])
            values = [before[3] if a == MARKER else a, before[4] if b == MARKER else b]
            live[key] = [key, n, "u", *values]
    now = [tuple(row) for row in live.values()]
    if history:
        now = [(*row, row[1], None, True) for row in now]
        now += [(*row[:5], row[1], row[5], False) for row in ended]
    return None if any(LOST in row for row in now) else set(now)


@dataclass
class Table:
    """A table that a rule keeps, with the kept changes of its runs."""

    spark: SparkSession
    rule: ChangeRule
    runs: dict[str, DataFrame]
    counted: set[str] = field(default_factory=set)
    rows: list[tuple[object, ...]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return ["id", "n", "op", "a", "b", *self.rule.added]

    def to(self, counting: set[str]) -> None:
        """Publish or roll back, so that these runs count."""
        kept = None
        for name, frame in self.runs.items():
            one = named(frame, name)
            kept = one if kept is None else kept.unionByName(one, allowMissingColumns=True)
        schema = table_schema(self.rule, self.spark.createDataFrame([], SCHEMA).schema)
        present = self.spark.createDataFrame(self.rows, schema)
        merged = rows_to_merge(self.rule, kept, self.counted, counting, present)
        actual = merged.select(*self.names, GONE).collect()
        at = [self.names.index(name) for name in self.rule.identity]
        changed = [tuple(row[i] for i in at) for row in actual]
        assert len(set(changed)) == len(changed)
        left = [row for row in self.rows if tuple(row[i] for i in at) not in set(changed)]
        self.rows = left + [tuple(row)[:-1] for row in actual if not row[GONE]]
        self.counted = counting


@pytest.mark.parametrize(
    ("rule", "seed"),
    [
        pytest.param(
            rule, seed, id=f"{name}-{seed}", marks=[] if seed == 1 else [pytest.mark.nightly]
        )
        for name, rule in (("truncates", PLAIN), ("partial", RULE), ("history", HISTORY))
        for seed in range(8)
    ],
)
def test_any_cuts_and_rollbacks_give_the_counting_rows(
    spark: SparkSession, rule: ChangeRule, seed: int
) -> None:
    random = Random(seed)
    made = changes(random, 30, partial=rule.unchanged is not None)
    parts: dict[str, list[Change]] = {"r0": [], "r1": [], "r2": []}
    for change in made:
        parts[f"r{random.randrange(3)}"].append(change)
    frames = {
        name: changes_of(rule, spark.createDataFrame(part, SCHEMA)).localCheckpoint()
        for name, part in parts.items()
    }
    table = Table(spark, rule, frames)
    order = random.sample([*parts], 3)
    steps = [set(order[:1]), set(order[:2]), set(order), set(order[1:]), set(order)]
    for counting in steps:
        counted = [change for name in counting for change in parts[name]]
        expected = rows_after(counted, history=rule.history)
        if expected is None:
            before = list(table.rows)
            with pytest.raises(CheckFailedError, match="CAP-SEQUENCE: a change of id .* unchanged"):
                table.to(counting)
            assert table.rows == before
            continue
        table.to(counting)
        assert set(table.rows) == expected
        assert len(table.rows) == len(expected)
    assert table.counted == {*parts}


def binlog(text: str) -> tuple[int, int] | None:
    name, _, position = text.partition(":")
    number = name.rpartition(".")[2]
    ends = "." in name and number.isdecimal() and (position.isdecimal() or ":" not in text)
    return (int(number), int(position or 0)) if ends else None


def version(text: str) -> tuple[int, ...] | None:
    parts = text.split(".")
    if not all(part.isdecimal() for part in parts):
        return None
    numbers = [int(part) for part in parts]
    while numbers[-1:] == [0] and len(numbers) > 1:
        numbers.pop()
    return tuple(numbers)


def number(text: str) -> Fraction | None:
    return Fraction(text) if text.lstrip("+-")[:1].isdecimal() and "e" not in text else None


def moment(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


TEXTS: dict[str, tuple[Callable[[str], object], list[str]]] = {
    "number": (
        number,
        [
            "9",
            "10",
            "-1",
            "-1.5",
            "+3",
            "3.0",
            "0",
            "-0",
            "007",
            "1.1234567891",
            "18446744073709551615",
            "1.10",
            "v1",
            "1e3",
            "NaN",
        ],
    ),
    "version": (
        version,
        ["9", "10", "1.9", "1.10", "1.2", "1.2.0", "01.2", "2.0.0.1", "2", "1.", "1.x", "v1", "-1"],
    ),
    "time": (
        moment,
        [
            "2024-05-01T10:00:00Z",
            "2024-05-01T10:00:00.002Z",
            "2024-05-01T12:00:00+02:00",
            "2024-05-01T11:00:00Z",
            "2024-05-01 10:00:00.000001",
            "2024-05-01",
            "10:00",
            "later",
        ],
    ),
    "binlog": (
        binlog,
        [
            "binlog.999999",
            "binlog.1000000",
            "binlog.000042",
            "my.bin.42:7",
            "b.42:12",
            "b.42",
            "binlog",
            "42",
        ],
    ),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_text_is_ordered_as_what_it_holds(spark: SparkSession, kind: str) -> None:
    model, texts = TEXTS[kind]
    random = Random(3)
    extra = {"number": "0123456789", "version": "0123."}.get(kind, "")
    texts = texts + ["".join(random.choices(extra, k=6)) for _ in range(20 if extra else 0)]
    rule = ChangeRule(("n",), (f"text as {kind}",))
    frame = spark.createDataFrame([*enumerate(texts)], "n INT, text STRING")
    [order] = orders(rule, frame.schema)
    other = frame.select(F.col("n").alias("m"), order.alias("other"))
    actual = frame.withColumn("mine", order).crossJoin(other)
    pairs = actual.select("n", "m", F.expr("mine < other"), F.expr("mine = other")).collect()
    for n, m, less, equal in pairs:
        one, two = model(texts[n]), model(texts[m])
        if one is None or two is None:
            assert (less, equal) == (None, None), (texts[n], texts[m])
        else:
            assert (less, equal) == (one < two, one == two), (texts[n], texts[m])  # type: ignore[operator]


@pytest.mark.parametrize(
    ("by", "problem"),
    [
        ("text", "text has no order: say what it holds, as in `text as number`"),
        ("flag", "names flag, but boolean has no order"),
        ("bytes", "names bytes, but binary has no order"),
        ("many", "names many, but map<string,int> has no order"),
        ("whole as version", "whole is int and not text"),
        ("flag as number", "flag is boolean and not text"),
        ("bytes as number", "bytes is binary and not text"),
        ("at as binlog", "at is timestamp and not text"),
    ],
)
def test_what_has_no_order_is_refused(spark: SparkSession, by: str, problem: str) -> None:
    schema = "id INT, text STRING, flag BOOLEAN, bytes BINARY, many MAP<STRING, INT>, whole INT, "
    rows = spark.createDataFrame([], schema + "at TIMESTAMP")
    with pytest.raises(InvalidRequestError, match=f"^CAP-SEQUENCE: .*{problem}"):
        require_rule_fits(ChangeRule(("id",), (by,)), rows)
    for fits in ("whole", "at", "whole as number", "at as time", "text as time"):
        require_rule_fits(ChangeRule(("id",), (fits,)), rows)


def test_unreadable_sequence_values_are_refused_with_the_key(spark: SparkSession) -> None:
    rule = ChangeRule(("id",), ("a", "v as version"))
    schema = "id INT, a DOUBLE, v STRING"
    # The greater first column would hide the missing second one.
    rows = [(1, 9.0, "1.2"), (7, 1.0, "1.2-rc"), (7, 2.0, "1.3")]
    for bad, key in ((rows, 7), ([(8, float("nan"), "1")], 8), ([(9, None, "1")], 9)):
        changed = changes_of(rule, spark.createDataFrame(bad, schema))
        with pytest.raises(CheckFailedError, match=f"CAP-SEQUENCE: a change of id {key} has no a"):
            require_sequence(rule, changed)
    require_sequence(rule, changes_of(rule, spark.createDataFrame(rows[:1], schema)))


def test_a_marker_that_cannot_be_looked_up_is_refused(spark: SparkSession) -> None:
    rule = ChangeRule(("id",), ("n",), unchanged=MARKER)
    schema = "id STRING, n INT, tags ARRAY<STRING>, part STRUCT<a: STRING>, raw BINARY"
    for key, part in ((MARKER, ("x",)), ("1", (MARKER,))):
        rows = spark.createDataFrame([(key, 1, ["x"], part, b"")], schema)
        with pytest.raises(CheckFailedError, match=f"a change of id {key} leaves column"):
            require_sequence(rule, changes_of(rule, rows))
    whole = ("1", 1, ["x", MARKER], ("x",), b"raw")
    partial = ("1", 2, [MARKER], ("y",), MARKER.encode())
    made = changes_of(rule, spark.createDataFrame([whole, partial], schema))
    require_sequence(rule, made)
    [row] = table_rows(rule, made).collect()
    assert tuple(row) == ("1", 2, ["x", MARKER], ("y",), bytearray(b"raw"))


TRANSFORMS = (
    Transform(
        name="texts",
        sql="SELECT id AS customer, concat('1.', amount) AS v, CAST(amount AS STRING) AS n, "
        "note FROM records",
    ),
    Transform(name="timed", sql="SELECT id, at, note FROM records", time="at", keys=("id",)),
    Transform(name="timeless", sql="SELECT id, note FROM records", keys=("id",)),
    Transform(
        name="hourly",
        sql="SELECT 1 AS one, date_trunc('HOUR', at) AS at FROM records",
        time="at",
        keys=("one",),
    ),
)
ROWS: list[Row] = [
    (n % 5, "abc"[n % 3], START + n * HOUR / 2, (n * 37) % 101, f"value {n}") for n in range(60)
]
CUTS = ["2024-05-01T00", "2024-05-01T08", "2024-05-01T15", "2024-05-01T22"]
RANGES = [{"since": f"{a}:00:00Z", "until": f"{b}:00:00Z"} for a, b in pairwise(CUTS)]


@pytest.fixture(scope="module")
def play(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Play:
    return Play.of(spark, tmp_path_factory.mktemp("sequences"), ROWS, TRANSFORMS)


def inside(*ranges: dict[str, str]) -> list[Row]:
    return [
        row
        for row in ROWS
        for item in ranges
        if item["since"] <= f"{row[2]:%Y-%m-%dT%H:%M:%SZ}" < item["until"]
    ]


def pairs(play: Play, into: str, key: str = "id") -> list[tuple[object, ...]]:
    return sorted(play.rows(into).select(key, "note").rows())


def test_a_table_by_text_and_truncates_is_that_of_its_ranges(play: Play) -> None:
    cut = sorted(inside(RANGES[1]), key=lambda row: row[3] or 0)[-2]
    merging = {
        "transform": "texts",
        "mode": Mode.MERGE,
        "keys": ("customer",),
        "sequence_by": ("v as version", "n as number"),
        "truncate_when": f"note = '{cut[4]}'",
    }

    def wanted(*ranges: dict[str, str]) -> list[tuple[object, ...]]:
        made, last = inside(*ranges), {}
        for row in sorted(made, key=lambda row: row[3] or 0):
            last = {} if row == cut else {**last, row[0]: row[4]}
        return sorted(last.items())

    into = "by_text"
    with pytest.raises(InvalidRequestError, match="CAP-SEQUENCE: .*text has no order"):
        play(into, **RANGES[0], **{**merging, "sequence_by": ("v",)})
    with pytest.raises(InvalidRequestError, match="CAP-SEQUENCE: truncate_when needs all workers"):
        chosen = {"transform": None, "keys": ("id",), "sequence_by": ("amount",), "workers": ("a",)}
        play(into, **RANGES[0], **{**merging, **chosen})
    runs = {}
    for n, done in ((2, (2,)), (0, (0, 2)), (1, (0, 1, 2))):
        request = play.request(into, **RANGES[n], **merging)
        shown = difference(play.spark, preview(play.lake, play.declarations, request).plan)
        before = pairs(play, into, "customer") if runs else []
        runs[n] = play.run(into, **RANGES[n], **merging)
        after = pairs(play, into, "customer")
        assert after == wanted(*(RANGES[item] for item in done))
        assert shown.added - shown.removed == len(after) - len(before)
    # The truncate took a row that no change of its own range has.
    assert {key for key, _ in wanted(RANGES[0], RANGES[2])} > {key for key, _ in wanted(*RANGES)}
    for run in runs.values():
        record = read_history(play.lake, run)
        assert audit_run(play.spark, play.lake, play.declarations, record).audit.passed
    play.rollback(runs[1])
    assert pairs(play, into, "customer") == wanted(RANGES[0], RANGES[2])


def test_a_merge_without_a_sequence_keeps_the_latest_time(play: Play) -> None:
    last = sorted({row[0]: row[4] for row in inside(*RANGES)}.items())
    merging = {"transform": "timed", "mode": Mode.MERGE}
    whole = {"since": RANGES[0]["since"], "until": RANGES[-1]["until"]}
    run = play.run("at_once", **whole, **merging)
    assert pairs(play, "at_once") == last
    record = read_history(play.lake, run)
    assert audit_run(play.spark, play.lake, play.declarations, record).audit.passed
    for item in RANGES:
        play("in_parts", **item, **merging)
    assert pairs(play, "in_parts") == last

    version = play.version("in_parts")
    for ties in ("timeless", "hourly"):
        with pytest.raises(CheckFailedError, match="CAP-KEYS: .* so which of them") as caught:
            play(ties, **whole, mode=Mode.MERGE, transform=ties)
        assert "sequence_by" in caught.value.hint
    assert play.version("in_parts") == version
