"""Passed intervals: each is told once, in bounded batches, whenever whoever tells is killed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pydantic import TypeAdapter, ValidationError

from capstan.backfill import passed_intervals
from capstan.backfill.passed_intervals import ToldIntervals, interval_key, key_fields, next_passed
from capstan.core.config import ByKey, EventTime, Partitions, Source, Stream
from capstan.errors import InvalidRequestError
from capstan.storage.lake import Lake
from tests.support.jvmless_lake import FIRST, go_on, lay_tape

EVENT = {"domain": "event", "column": "t"}
HOUR = 3_600_000_000
MONTH = [f"2024-05-{day:02}T{hour:02}:00:00" for day in range(1, 32) for hour in range(24)]


def hours(*numbers: int) -> list[tuple[int]]:
    return [(FIRST + number * HOUR,) for number in numbers]


def stream(**more: object) -> Stream:
    return Stream(
        name="s",
        source=Source(format="delta", path="/s"),
        workers=ByKey(columns=("k",), count=2),
        time=EventTime(every=timedelta(minutes=15), column="t"),
        partitions=Partitions(**{"every": timedelta(hours=1), **more}),  # type: ignore[arg-type]
    )


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.at(tmp_path)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passed_intervals, "BATCH", 3)


def lay(lake: Lake, frontier: Sequence[int] | None, *numbers: int, labels: str = "ab") -> None:
    lay_tape(lake, "s", labels, hours(*numbers), frontier)


def tell(
    lake: Lake, told: ToldIntervals | None = None, of: Stream | None = None
) -> tuple[list[str], ToldIntervals | None]:
    """All keys that are to be told, and how far they are told then."""
    keys: list[str] = []
    while (passed := next_passed(lake, of or stream(), told)) is not None:
        assert 0 < len(passed.keys) <= passed_intervals.BATCH
        keys += passed.keys
        assert len(keys) <= 10_000
        # As it comes back from an event.
        told = ToldIntervals.from_json(passed.told.to_json())
        assert told == passed.told
    return keys, told


def test_an_interval_is_told_when_the_frontier_has_passed_its_end(lake: Lake) -> None:
    lay(lake, (FIRST + 3 * HOUR - 1,), 0, 2, 5)
    keys, told = tell(lake)
    assert keys == MONTH[:2]
    # A late hour: records came, and the frontier stood.
    go_on(lake, "s", hours(6), (FIRST + 3 * HOUR - 1,))
    assert tell(lake, told) == ([], told)
    go_on(lake, "s", hours(7), (FIRST + 6 * HOUR,))
    keys, told = tell(lake, told)
    assert keys == MONTH[2:6]
    assert told is not None
    assert told.left == 0


def test_nothing_is_told_of_times_before_the_first_record(lake: Lake) -> None:
    lay(lake, (FIRST - 100 * HOUR,), 5)
    assert tell(lake) == ([], None)
    go_on(lake, "s", hours(6), (FIRST + 6 * HOUR,))
    assert tell(lake)[0] == MONTH[5:6]
    # Unless the declaration says when the stream begins.
    begun = stream(since=datetime(2024, 5, 1, tzinfo=UTC))
    assert tell(lake, None, begun)[0] == MONTH[:6]


def test_an_ended_stream_is_told_up_to_its_last_record_once(lake: Lake) -> None:
    lay(lake, (FIRST + 2 * HOUR,), 0, 1)
    keys, told = tell(lake)
    go_on(lake, "s", hours(4), None)
    more, told = tell(lake, told)
    assert keys + more == MONTH[:5]
    assert tell(lake, told) == ([], told)


def test_a_batch_that_was_not_told_is_told_again_and_no_other(lake: Lake, small: None) -> None:
    lay(lake, (FIRST + 8 * HOUR,), 0)
    first = next_passed(lake, stream(), None)
    assert first is not None
    assert (first.keys, first.told.left) == (tuple(MONTH[:3]), 5)
    # More is captured before the rest is told; a task that is killed leaves no event.
    go_on(lake, "s", hours(9), (FIRST + 20 * HOUR,))
    killed = next_passed(lake, stream(), first.told)
    again = next_passed(lake, stream(), first.told)
    assert killed == again is not None
    assert again.keys == tuple(MONTH[3:6])
    assert tell(lake, again.told)[0] == MONTH[6:20]


def test_ten_thousand_intervals_are_told_once_each_in_bounded_batches(lake: Lake) -> None:
    lay(lake, (FIRST + 10_000 * HOUR,), 0)
    keys, told = tell(lake)
    assert keys == sorted(set(keys))
    assert len(keys) == 10_000
    assert (keys[0], keys[-1]) == (MONTH[0], "2025-06-21T15:00:00")
    assert tell(lake, told) == ([], told)


def test_each_worker_is_told_when_it_has_passed(lake: Lake, small: None) -> None:
    lay(lake, (FIRST,), 0)
    both = stream(workers=True)
    go_on(lake, "s", hours(1), (FIRST + 3 * HOUR,), workers=[1])
    keys, told = tell(lake, None, both)
    assert keys == [f"b|{hour}" for hour in MONTH[:3]]
    go_on(lake, "s", hours(1), (FIRST + 2 * HOUR,), workers=[0])
    keys, told = tell(lake, told, both)
    assert keys == [MONTH[0], f"a|{MONTH[0]}", MONTH[1], f"a|{MONTH[1]}"]
    # One that ends is told up to the last time of the stream.
    go_on(lake, "s", hours(2), None, workers=[0])
    keys, told = tell(lake, told, both)
    assert keys == [MONTH[2], f"a|{MONTH[2]}"]
    go_on(lake, "s", hours(5), (FIRST + 6 * HOUR,), workers=[1])
    keys, told = tell(lake, told, both)
    assert keys == [key for hour in MONTH[3:6] for key in (hour, f"b|{hour}")]


def test_a_worker_that_comes_later_begins_where_the_stream_is(lake: Lake) -> None:
    lay(lake, (FIRST + 2 * HOUR,), 0, 1)
    both = stream(workers=True)
    _, told = tell(lake, None, both)
    known = pa.table(
        {
            "worker": pa.array([2], pa.int32()),
            "label": ["c"],
            "opened_commit": pa.array([1], pa.int64()),
        }
    )
    deltalake.write_deltalake(lake.stream("s").workers, known, mode="append")
    go_on(lake, "s", hours(3), (FIRST + 4 * HOUR,), workers=[0, 1])
    go_on(lake, "s", hours(3), (FIRST + 4 * HOUR,), workers=[2])
    keys, _ = tell(lake, told, both)
    assert keys == [before + hour for hour in MONTH[2:4] for before in ("", "a|", "b|", "c|")]


def test_a_changed_declaration_holds_for_what_is_complete_from_then_on(
    lake: Lake, small: None
) -> None:
    lay(lake, (FIRST + 30 * HOUR,), 0)
    first = next_passed(lake, stream(), None)
    assert first is not None
    days = stream(every=timedelta(days=1))
    # Nothing of the day began after what was told of it.
    assert tell(lake, first.told, days)[0] == []
    go_on(lake, "s", hours(31), (FIRST + 49 * HOUR,))
    keys, told = tell(lake, first.told, days)
    assert keys == ["2024-05-02T00:00:00"]
    assert tell(lake, told)[0] == []


def test_a_new_tape_is_told_from_its_start(lake: Lake) -> None:
    lay(lake, (FIRST + 2 * HOUR,), 0)
    _, told = tell(lake)
    shutil.rmtree(Path(lake.stream("s").events).parent)
    lay(lake, (FIRST + 1 * HOUR,), 0)
    assert tell(lake, told)[0] == MONTH[:1]


def test_anything_else_says_nothing_of_what_was_told() -> None:
    for value in (
        None,
        5,
        {},
        {"cut": 3},
        {**ToldIntervals("t", None, 3, 0, -1, 0).to_json(), "x": 1},
    ):
        assert ToldIntervals.from_json(value) is None


def test_a_key_is_taken_apart_at_one_place() -> None:
    assert interval_key(FIRST, "a|b%") == "a%7Cb%25|2024-05-01T00:00:00"
    assert interval_key(FIRST + HOUR // 2) == "2024-05-01T00:30:00"
    with pytest.raises(InvalidRequestError, match="^CAP-PARTITIONS: "):
        interval_key(FIRST, "x" * 231)
    assert len(interval_key(FIRST, "x" * 230)) == 250


@pytest.mark.parametrize(
    ("key", "since", "until"),
    [
        ("2024-05-01T10:00:00", "2024-05-01T10:00:00+00:00", "2024-05-01T10:30:00+00:00"),
        ("2024-05-01T10", "2024-05-01T10:00:00+00:00", "2024-05-01T11:00:00+00:00"),
        ("2024-02-29", "2024-02-29T00:00:00+00:00", "2024-03-01T00:00:00+00:00"),
        ("2024-02", "2024-02-01T00:00:00+00:00", "2024-03-01T00:00:00+00:00"),
        ("2024-12", "2024-12-01T00:00:00+00:00", "2025-01-01T00:00:00+00:00"),
        ("2023", "2023-01-01T00:00:00+00:00", "2024-01-01T00:00:00+00:00"),
        ("2024", "2024-01-01T00:00:00+00:00", "2025-01-01T00:00:00+00:00"),
    ],
)
def test_a_key_names_a_range(key: str, since: str, until: str) -> None:
    half = timedelta(minutes=30)
    assert key_fields(key, half) == {"since": since, "until": until}
    assert key_fields(f"a%7Cb%25|{key}", half)["workers"] == ["a|b%"]


@pytest.mark.parametrize(
    ("key", "every"),
    [
        ("2024-05-01T10:00:00", None),
        ("2024-W18", timedelta(hours=1)),
        ("", timedelta(hours=1)),
        ("9999", timedelta(hours=1)),
        ("9999-12-31T23:00:00", timedelta(hours=1)),
    ],
)
def test_a_key_that_names_none_is_refused(key: str, every: timedelta | None) -> None:
    with pytest.raises(InvalidRequestError, match="^CAP-PARTITIONS: .* names no interval"):
        key_fields(key, every)


@pytest.mark.parametrize(
    ("partitions", "time", "problem"),
    [
        ({"every": "1 hour"}, {"domain": "epoch"}, "needs event times with a lateness"),
        ({"every": "1 hour"}, {**EVENT, "domain": "epoch, event", "every": "1 hour"},
         "needs event times with a lateness"),
        ({"every": "20 minutes"}, {**EVENT, "every": "15 minutes"},
         "multiples of time.every"),
        ({"every": "1500 milliseconds"}, {**EVENT, "every": "100 milliseconds"},
         "needs intervals of whole seconds"),
        ({"every": "0 hours"}, {**EVENT, "every": "1 hour"}, "must be more than zero"),
    ],
)  # fmt: skip
def test_partitions_are_of_times_that_become_complete(
    partitions: dict[str, str], time: dict[str, str], problem: str
) -> None:
    given = {
        "name": "s",
        "source": {"format": "delta", "path": "/s"},
        "workers": {"by": "key", "columns": ["k"], "count": 1},
    }
    with pytest.raises(ValidationError, match=problem):
        TypeAdapter(Stream).validate_python({**given, "time": time, "partitions": partitions})
