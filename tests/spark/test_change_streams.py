"""Merges by sequence: a table is what the changes of its runs result in, whatever their order."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations
from random import Random
from typing import TYPE_CHECKING

import polars as pl
import pytest
from deltalake import DeltaTable

from capstan.core.config import Mode, Transform
from capstan.errors import InvalidRequestError
from capstan.replay.preview import preview
from capstan.replay.publish.diff import difference
from capstan.replay.standalone_audit import audit_run
from capstan.storage.ledger.runs import read_history
from capstan.telemetry.instrumentation import subscribe
from tests.support.replay_harness import Play
from tests.support.sample_streams import HOUR, START, Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS, DELETED = 7, "gone"
_random = Random(20)
_sequences = _random.sample(range(1000), 96)
ROWS: list[Row] = [
    (
        _random.randrange(KEYS),
        _random.choice("abc"),
        START + n * HOUR / 2,
        sequence,
        DELETED if _random.random() < 0.35 else f"value {n}",
    )
    for n, sequence in enumerate(_sequences)
]
# Times are complete up to two hours before the last.
BOUNDS = ["2024-05-01T00", "2024-05-01T12", "2024-05-02T00", "2024-05-02T12", "2024-05-02T20"]
RANGES = [(f"{a}:00:00Z", f"{b}:00:00Z") for a, b in pairwise(BOUNDS)]
COPY: dict[str, object] = {
    "mode": Mode.MERGE,
    "keys": ("id",),
    "sequence_by": ("amount",),
    "delete_when": f"note = '{DELETED}'",
}
TIMELESS: dict[str, object] = {
    "transform": "changes",
    "mode": Mode.MERGE,
    "keys": ("customer",),
    "sequence_by": ("lsn",),
    "delete_when": f"op = '{DELETED}'",
}
HISTORY = {**TIMELESS, "history": True}
CHANGES = Transform(
    name="changes", sql="SELECT id AS customer, amount AS lsn, note AS op FROM records"
)
OTHER = Transform(
    name="changes", sql="SELECT id AS customer, amount AS lsn, concat(note, '!') AS op FROM records"
)


@pytest.fixture(scope="module")
def play(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Play:
    return Play.of(spark, tmp_path_factory.mktemp("changes"), ROWS, (CHANGES,))


def inside(ranges: list[tuple[str, str]]) -> list[Row]:
    return [
        row
        for row in ROWS
        for since, until in ranges
        if row[2] is not None and since <= f"{row[2]:%Y-%m-%dT%H:%M:%SZ}" < until
    ]


def latest(ranges: list[tuple[str, str]]) -> dict[object, object]:
    """The value of each key after all changes of some ranges."""
    last: dict[object, Row] = {}
    for row in sorted(inside(ranges), key=lambda row: row[3] or 0):
        last[row[0]] = row
    return {key: row[4] for key, row in last.items() if row[4] != DELETED}


def versions(ranges: list[tuple[str, str]]) -> set[tuple[object, ...]]:
    """Every version of each key after all changes of some ranges."""
    made = set()
    for key in range(KEYS):
        changes = sorted((row[3] or 0, row[4]) for row in inside(ranges) if row[0] == key)
        for (start, value), (end, _) in zip(changes, [*changes[1:], (None, None)], strict=False):
            if value != DELETED:
                made.add((key, start, value, start, end, end is None))
    return made


def values(play: Play, into: str, key: str = "id", value: str = "note") -> dict[object, object]:
    rows = play.rows(into)
    assert rows[key].n_unique() == rows.height
    return dict(zip(rows[key].to_list(), rows[value].to_list(), strict=True))


def history(play: Play, into: str) -> set[tuple[object, ...]]:
    names = ["customer", "lsn", "op", "valid_from", "valid_to", "current"]
    rows = play.rows(into).select(names).rows()
    assert len(set(rows)) == len(rows)
    return set(rows)


def kept_runs(play: Play, into: str) -> set[str]:
    rows = pl.read_delta(play.lake.kept_changes(play.lake.table(into)))
    return {name.rpartition("-")[0] for name in rows["_capstan_run"].to_list()}


def passes_audit(play: Play, run: str) -> bool:
    record = read_history(play.lake, run)
    return audit_run(play.spark, play.lake, play.declarations, record).audit.passed


def test_the_later_change_wins_in_any_order(play: Play) -> None:
    into, done = "latest", []
    order = [RANGES[2], RANGES[0], RANGES[1]]
    runs = {}
    for since, until in order:
        runs[since] = play.run(into, since=since, until=until, **COPY)
        done.append((since, until))
        assert values(play, into) == latest(done)
    # At least one key is there in an older range, and deleted by a newer one.
    older, newer = latest(order[1:]), latest(order)
    assert older.keys() - newer.keys()
    assert passes_audit(play, runs[RANGES[2][0]])

    # Later runs stand, and the table is as if this run had never been.
    first = runs[RANGES[2][0]]
    play.rollback(first)
    assert values(play, into) == latest(order[1:])
    assert kept_runs(play, into) == set(runs.values()) - {first}
    assert passes_audit(play, runs[RANGES[0][0]])
    again = play(into, since=RANGES[2][0], until=RANGES[2][1], **COPY)
    assert values(play, into) == latest(order)
    version = play.version(into)
    assert play(into, since=RANGES[0][0], until=RANGES[0][1], **COPY).unchanged
    assert play(into, since=RANGES[2][0], until=RANGES[2][1], **COPY).unchanged
    assert (again.unchanged, play.version(into)) == (False, version)


def test_every_version_is_kept_whatever_the_order(play: Play) -> None:
    into, done = "versions", []
    runs = []
    for since, until in [RANGES[1], RANGES[2], RANGES[0]]:
        runs.append(play.run(into, since=since, until=until, **HISTORY))
        done.append((since, until))
        assert history(play, into) == versions(done)
    assert passes_audit(play, runs[1])

    play.rollback(runs[0])
    assert history(play, into) == versions([RANGES[0], RANGES[2]])
    play(into, since=RANGES[1][0], until=RANGES[1][1], **HISTORY)
    assert history(play, into) == versions(RANGES[:3])
    # A replay over all of it takes the place of all of them, and changes no row.
    play(into, since=RANGES[0][0], until=RANGES[2][1], **HISTORY)
    assert history(play, into) == versions(RANGES[:3])


def test_new_code_replaces_whole_runs_and_comes_back_out(play: Play) -> None:
    into = "recoded"
    first = play.run(into, since=RANGES[0][0], until=RANGES[1][1], **TIMELESS)
    play.run(into, since=RANGES[2][0], until=RANGES[2][1], **TIMELESS)
    before = values(play, into, "customer", "op")
    declarations = replace(play.declarations, transforms={"changes": OTHER})
    other = Play(play.spark, play.lake, declarations)

    with pytest.raises(InvalidRequestError, match=f"run {first} has merged changes of a part"):
        other(into, since=RANGES[0][0], until=RANGES[0][1], **TIMELESS)
    done = other.run(into, since=RANGES[0][0], until=RANGES[1][1], **TIMELESS)

    marked = {f"{value}!" for value in latest(RANGES[:2]).values()}
    now = set(values(play, into, "customer", "op").values())
    assert now & marked
    assert not now - marked - set(before.values()) - {f"{DELETED}!"}
    recoded = values(play, into, "customer", "op")
    # The old code again is a run of its own, though its first one was never rolled back.
    again = play.run(into, since=RANGES[0][0], until=RANGES[1][1], **TIMELESS)
    assert (again != first, values(play, into, "customer", "op")) == (True, before)
    play.rollback(again)
    assert values(play, into, "customer", "op") == recoded
    other.rollback(done)
    assert values(play, into, "customer", "op") == before


def test_what_would_change_before_it_is_published(play: Play) -> None:
    into = "previewed"
    play(into, since=RANGES[1][0], until=RANGES[1][1], **COPY)
    before = values(play, into)
    request = play.request(into, since=RANGES[2][0], until=RANGES[2][1], **COPY)

    shown = difference(play.spark, preview(play.lake, play.declarations, request).plan)
    play(into, since=RANGES[2][0], until=RANGES[2][1], **COPY)

    after = values(play, into)
    assert shown.added == len(after.keys() - before.keys())
    assert shown.removed == len(before.keys() - after.keys()) > 0
    assert shown.changed == sum(after[key] != before[key] for key in after.keys() & before.keys())


def test_an_audit_names_the_key_of_an_altered_row(play: Play) -> None:
    into = "altered"
    run = play.run(into, since=RANGES[0][0], until=RANGES[1][1], **TIMELESS)
    key = play.rows(into)["customer"][0]
    play.sql(f"UPDATE {{table}} SET op = 'other' WHERE customer = {key}", into)

    record = read_history(play.lake, run)
    audit = audit_run(play.spark, play.lake, play.declarations, record).audit

    assert not audit.passed
    assert [row.expected["customer"] for row in audit.findings if row.expected] == [key]
    with pytest.raises(InvalidRequestError, match="CAP-VERSION"):
        audit_run(play.spark, play.lake, play.declarations, record, 1)


def test_a_table_has_one_rule(play: Play) -> None:
    into = "ruled"
    run = play.run(into, since=RANGES[0][0], until=RANGES[0][1], **COPY)
    version = play.version(into)
    later = {"since": RANGES[1][0], "until": RANGES[1][1]}

    for fields in (
        {},
        {"mode": Mode.APPEND},
        {"mode": Mode.MERGE, "keys": ("id",)},
        {**COPY, "keys": ("place",)},
        {**COPY, "history": True},
        {**TIMELESS},
    ):
        with pytest.raises(InvalidRequestError, match="CAP-SEQUENCE"):
            play(into, **later, **fields)
    with pytest.raises(InvalidRequestError, match="CAP-SEQUENCE: column id is a key"):
        play("other", **{**COPY, "sequence_by": ("id",)})
    assert play.version(into) == version
    play.rollback(run)
    play(into, **later)  # Nothing that merges by sequence stands there any more.


@pytest.mark.parametrize("point", ["replay.changes", "replay.publish", "replay.coverage"])
def test_a_killed_publish_completes_before_the_next_run(play: Play, point: str) -> None:
    into = f"killed_{point.rpartition('.')[2]}"
    play(into, since=RANGES[1][0], until=RANGES[1][1], **COPY)

    def kill(event: str, _fields: object) -> None:
        if event == point:
            raise KeyboardInterrupt

    with subscribe(kill), pytest.raises(KeyboardInterrupt):
        play(into, since=RANGES[2][0], until=RANGES[2][1], **COPY)
    play(into, since=RANGES[0][0], until=RANGES[0][1], **COPY)

    published = point != "replay.changes"
    done = RANGES[:3] if published else RANGES[:2]
    assert values(play, into) == latest(done)
    play(into, since=RANGES[2][0], until=RANGES[2][1], **COPY)
    assert values(play, into) == latest(RANGES[:3])


@pytest.mark.nightly
@pytest.mark.parametrize("kept", ["latest", "history"])
def test_all_orders_of_all_cuts_give_the_table_of_one_replay(play: Play, kept: str) -> None:
    requested = HISTORY if kept == "history" else TIMELESS
    read = history if kept == "history" else lambda p, t: values(p, t, "customer", "op")
    once = f"once_{kept}"
    play(once, since=RANGES[0][0], until=RANGES[3][1], **requested)
    expected = read(play, once)
    assert expected == (versions(RANGES) if kept == "history" else latest(RANGES))
    random = Random(1)
    for number, order in enumerate(random.sample([*permutations(RANGES)], 3)):
        into = f"order_{kept}_{number}"
        runs = [play.run(into, since=a, until=b, **requested) for a, b in order]
        assert read(play, into) == expected
        taken = random.sample(range(4), 2)
        for n in taken:
            play.rollback(runs[n])
        rest = [item for n, item in enumerate(order) if n not in taken]
        assert read(play, into) == (versions(rest) if kept == "history" else latest(rest))
        for n in taken[:1]:
            play(into, since=order[n][0], until=order[n][1], **requested)
        # A longer range over some that are there, and one of its parts again.
        play(into, since=RANGES[0][0], until=RANGES[3][1], **requested)
        assert read(play, into) == expected
        assert DeltaTable(play.lake.table(into)).version() < 20
